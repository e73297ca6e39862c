// One CTA per request (several where the mask is large), one thread per score and parent; only
// scores, parents and tokens come from global memory, only the record goes there.
//
// Bytes: 4 C + 4..8 C/k + 4..8 N read, 24..28 N and the mask written per request; bound by latency:
// one round of global loads, about 10 barriers to find the cut (32 at worst, when scores tie), six
// for the rest.

#include "core/device_team.cuh"
#include "core/tree_launch.cuh"
#include "ops/select_and_build_tree.h"

namespace specfast {
namespace {

__global__ void __launch_bounds__(1024, 1)
    select_and_build_tree_kernel(const __grid_constant__ SelectAndBuildTreeParams p) {
  begin_after_previous_kernel();
  SplitTeam team;
  SelectAndBuildTreeScratch scratch = select_and_build_tree_scratch(team, p);
  select_and_build_tree_request(team, p, scratch, blockIdx.x);
}

}  // namespace

void select_and_build_tree_cuda(const SelectAndBuildTreeParams& p, CUstream_st* stream) {
  if (p.record.batch_size == 0) return;
  ScratchSizer sizer;
  select_and_build_tree_scratch(sizer, p);
  int loads = p.lists.num_candidates + p.lists.num_candidates / p.lists.topk;
  LaunchShape shape = tree_launch_shape(p.record, loads, sizer.bytes());
  launch(select_and_build_tree_kernel, shape, stream, p);
}

}  // namespace specfast
