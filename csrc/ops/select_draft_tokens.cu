// One CTA per request, one thread per score and parent: everything after the loads of scores and
// parents happens in shared memory.
//
// Bytes: 4 C + 4..8 C/k read and 4 N written per request; bound by latency: one round of global
// loads, about 10 barriers to find the cut (32 at worst, when scores tie), three for the rest, and
// D - 1 dependent reads of shared memory if a score exceeds that of its parent.

#include "core/device_team.cuh"
#include "core/tree_launch.cuh"
#include "ops/select_draft_tokens.h"

namespace specfast {
namespace {

__global__ void __launch_bounds__(1024, 1)
    select_draft_tokens_kernel(const __grid_constant__ SelectDraftTokensParams p) {
  begin_after_previous_kernel();
  BlockTeam team;
  SelectScratch scratch = select_draft_tokens_scratch(team, p);
  select_draft_tokens_request(team, p, scratch, blockIdx.x);
}

}  // namespace

void select_draft_tokens_cuda(const SelectDraftTokensParams& p, CUstream_st* stream) {
  if (p.batch_size == 0) return;
  ScratchSizer sizer;
  select_draft_tokens_scratch(sizer, p);
  int loads = p.lists.num_candidates + p.lists.num_candidates / p.lists.topk;
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(p.batch_size));
  shape.block = dim3(static_cast<unsigned>(tree_threads(loads)));
  shape.shared_bytes = sizer.bytes();
  shape.begins_early = true;
  launch(select_draft_tokens_kernel, shape, stream, p);
}

}  // namespace specfast
