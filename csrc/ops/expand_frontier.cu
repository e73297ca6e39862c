// Two launches: a cluster per row, as the sampled ops read theirs, then a CTA per request for the
// next frontier. A row comes from memory once; while it lies in shared memory, one pass adds up its
// mass and lists its best tokens. The second launch starts under the first and needs a few hundred
// cycles.

#include "core/sampled_launch.cuh"
#include "ops/expand_frontier.h"

namespace specfast {
namespace {

constexpr int kChoiceThreads = 128;

__global__ void __launch_bounds__(kChoiceThreads)
    choose_frontier_kernel(const __grid_constant__ ExpandFrontierParams p) {
  begin_after_previous_kernel();
  BlockTeam team;
  FrontierChoice{p, team.index()}.run(team);
}

}  // namespace

void expand_frontier_cuda(const ExpandFrontierParams& p, CUstream_st* stream) {
  if (p.batch_size == 0) return;
  int rows = p.batch_size * p.num_nodes;
  with_frontier_type(p, [&](auto type) {
    launch_sampled<FrontierRow<decltype(type)>>(p, rows, p.vocab_size, sampled_shape(rows), stream);
  });
  ScratchSizer sizer;
  FrontierChoice{p, 0}.place(sizer);
  LaunchShape shape;
  shape.grid = dim3(p.batch_size);
  shape.block = dim3(kChoiceThreads);
  shape.shared_bytes = sizer.bytes();
  shape.begins_early = true;
  launch(choose_frontier_kernel, shape, stream, p);
}

}  // namespace specfast
