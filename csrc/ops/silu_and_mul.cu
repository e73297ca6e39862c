// A thread per 16 bytes of the result, blocks enough for each row. Bound by memory bandwidth: 3 R W
// elements; with few rows by the latency of a launch and a load.

#include "core/device_team.cuh"
#include "core/launch.cuh"
#include "ops/silu_and_mul.h"

namespace specfast {
namespace {

constexpr int kThreads = 128;

template <class T>
__global__ void __launch_bounds__(kThreads)
    silu_and_mul_kernel(const __grid_constant__ SiluAndMulParams p) {
  begin_after_previous_kernel();
  SplitTeam team;
  GatedRow<T>{p, static_cast<int32_t>(blockIdx.x)}.run(team);
}

template <class T>
void launch_gates(const SiluAndMulParams& p, CUstream_st* stream) {
  constexpr int kMaxBlocks = 1024;
  int elements = kThreads * (p.has_wide_rows ? kWidePiece : 1);
  LaunchShape shape;
  shape.grid = dim3(p.num_rows, clamp_to(ceil_div(p.width, elements), 1, kMaxBlocks));
  shape.block = dim3(kThreads);
  shape.begins_early = true;
  launch(silu_and_mul_kernel<T>, shape, stream, p);
}

}  // namespace

void silu_and_mul_cuda(const SiluAndMulParams& p, CUstream_st* stream) {
  if (p.num_rows == 0) return;
  switch (p.type) {
    case FloatType::kFloat32:
      return launch_gates<float>(p, stream);
    case FloatType::kBFloat16:
      return launch_gates<BFloat16>(p, stream);
    case FloatType::kFloat16:
      return launch_gates<Float16>(p, stream);
  }
}

}  // namespace specfast
