// One CTA per request (several where the mask is large); the tree is built in shared memory.
//
// Bytes: 8..16 N read, 24..28 N and the mask written per request; bound by latency: one round of
// global loads, two barriers, and a walk of at most 32 + N / 32 nodes per node.

#include "core/device_team.cuh"
#include "core/tree_launch.cuh"
#include "ops/tree_from_parents.h"

namespace specfast {
namespace {

__global__ void __launch_bounds__(1024, 1)
    tree_from_parents_kernel(const __grid_constant__ TreeFromParentsParams p) {
  begin_after_previous_kernel();
  SplitTeam team;
  TreeScratch scratch = tree_from_parents_scratch(team, p);
  tree_from_parents_request(team, p, scratch, blockIdx.x);
}

}  // namespace

void tree_from_parents_cuda(const TreeFromParentsParams& p, CUstream_st* stream) {
  if (p.record.batch_size == 0) return;
  ScratchSizer sizer;
  tree_from_parents_scratch(sizer, p);
  LaunchShape shape = tree_launch_shape(p.record, p.record.num_nodes, sizer.bytes());
  launch(tree_from_parents_kernel, shape, stream, p);
}

}  // namespace specfast
