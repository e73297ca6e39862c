// One CTA per request (several where the mask is large); the tree is built in shared memory.
//
// Bytes: 8..16 N + 4..8 C/k read, 24..28 N and the mask written per request; bound by latency: one
// round of global loads, four barriers, and a walk of at most 32 + N / 32 nodes per node.

#include "core/device_team.cuh"
#include "core/tree_launch.cuh"
#include "ops/build_tree.h"

namespace specfast {
namespace {

__global__ void __launch_bounds__(1024, 1)
    build_tree_kernel(const __grid_constant__ BuildTreeParams p) {
  begin_after_previous_kernel();
  SplitTeam team;
  BuildTreeScratch scratch = build_tree_scratch(team, p);
  build_tree_request(team, p, scratch, blockIdx.x);
}

}  // namespace

void build_tree_cuda(const BuildTreeParams& p, CUstream_st* stream) {
  if (p.record.batch_size == 0) return;
  ScratchSizer sizer;
  build_tree_scratch(sizer, p);
  LaunchShape shape = tree_launch_shape(p.record, p.lists.num_candidates, sizer.bytes());
  launch(build_tree_kernel, shape, stream, p);
}

}  // namespace specfast
