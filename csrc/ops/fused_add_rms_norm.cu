// A block per row, a thread per running sum: with 4096 channels each thread has one load of 16
// bytes of each row. What it has summed it reads again, from L1, to norm it.
//
// Bytes: 2 R W elements, 4 R W with a residual. One request is bound by the latency of a launch,
// two loads and a barrier.

#include "core/device_team.cuh"
#include "core/launch.cuh"
#include "ops/fused_add_rms_norm.h"

namespace specfast {
namespace {

constexpr int kThreads = kRowSums;

template <class T>
__global__ void __launch_bounds__(kThreads)
    fused_add_rms_norm_kernel(const __grid_constant__ FusedAddRmsNormParams p) {
  begin_after_previous_kernel();
  BlockTeam team;
  RowOfNorms<T>{p, team.index()}.run(team);
}

template <class T>
void launch_norms(const FusedAddRmsNormParams& p, CUstream_st* stream) {
  ScratchSizer sizer;
  NormedRow<T>::scratch_of(sizer);
  LaunchShape shape;
  shape.grid = dim3(p.num_rows);
  shape.block = dim3(kThreads);
  shape.shared_bytes = sizer.bytes();
  shape.begins_early = true;
  launch(fused_add_rms_norm_kernel<T>, shape, stream, p);
}

}  // namespace

void fused_add_rms_norm_cuda(const FusedAddRmsNormParams& p, CUstream_st* stream) {
  if (p.num_rows == 0) return;
  switch (p.type) {
    case FloatType::kFloat32:
      return launch_norms<float>(p, stream);
    case FloatType::kBFloat16:
      return launch_norms<BFloat16>(p, stream);
    case FloatType::kFloat16:
      return launch_norms<Float16>(p, stream);
  }
}

}  // namespace specfast
