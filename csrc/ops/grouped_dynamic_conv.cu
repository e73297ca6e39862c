// A thread per 16 bytes of the result, blocks enough for each row. Rows of a block that taps reach
// back to come from L2. Bound by the latency of a launch and a load, with many rows by bandwidth.

#include "core/device_team.cuh"
#include "core/launch.cuh"
#include "ops/grouped_dynamic_conv.h"

namespace specfast {
namespace {

constexpr int kThreads = 128;

template <class T>
__global__ void __launch_bounds__(kThreads)
    grouped_dynamic_conv_kernel(const __grid_constant__ GroupedDynamicConvParams p) {
  begin_after_previous_kernel();
  SplitTeam team;
  ConvolvedRow<T>{p, static_cast<int32_t>(blockIdx.x)}.run(team);
}

template <class T>
void launch_rows(const GroupedDynamicConvParams& p, CUstream_st* stream) {
  constexpr int kMaxBlocks = 1024;
  int elements = kThreads * (p.has_wide_rows ? kWidePiece : 1);
  LaunchShape shape;
  shape.grid =
      dim3(p.batch_size * p.num_rows, clamp_to(ceil_div(p.width, elements), 1, kMaxBlocks));
  shape.block = dim3(kThreads);
  shape.begins_early = true;
  launch(grouped_dynamic_conv_kernel<T>, shape, stream, p);
}

}  // namespace

void grouped_dynamic_conv_cuda(const GroupedDynamicConvParams& p, CUstream_st* stream) {
  if (p.batch_size * p.num_rows == 0) return;
  switch (p.type) {
    case FloatType::kFloat32:
      return launch_rows<float>(p, stream);
    case FloatType::kBFloat16:
      return launch_rows<BFloat16>(p, stream);
    case FloatType::kFloat16:
      return launch_rows<Float16>(p, stream);
  }
}

}  // namespace specfast
