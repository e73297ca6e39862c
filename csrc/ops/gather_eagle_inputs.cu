// Two blocks per node, for its token and for its features, a thread per running sum of a norm.
//
// Bytes: 4 B n W elements. One request is bound by the chain launch -> token -> row -> sum.

#include "core/device_team.cuh"
#include "core/launch.cuh"
#include "ops/gather_eagle_inputs.h"

namespace specfast {
namespace {

constexpr int kThreads = kRowSums;

template <class T>
__global__ void __launch_bounds__(kThreads)
    gather_eagle_inputs_kernel(const __grid_constant__ GatherEagleInputsParams p) {
  begin_after_previous_kernel();
  SplitTeam team;
  EagleInput<T>{p, team.index()}.run(team);
}

template <class T>
void launch_nodes(const GatherEagleInputsParams& p, CUstream_st* stream) {
  ScratchSizer sizer;
  NormedRow<T>::scratch_of(sizer);
  LaunchShape shape;
  shape.grid = dim3(p.batch_size * p.num_nodes, 2);
  shape.block = dim3(kThreads);
  shape.shared_bytes = sizer.bytes();
  shape.begins_early = true;
  launch(gather_eagle_inputs_kernel<T>, shape, stream, p);
}

}  // namespace

void gather_eagle_inputs_cuda(const GatherEagleInputsParams& p, CUstream_st* stream) {
  if (p.batch_size * p.num_nodes == 0) return;
  switch (p.type) {
    case FloatType::kFloat32:
      return launch_nodes<float>(p, stream);
    case FloatType::kBFloat16:
      return launch_nodes<BFloat16>(p, stream);
    case FloatType::kFloat16:
      return launch_nodes<Float16>(p, stream);
  }
}

}  // namespace specfast
