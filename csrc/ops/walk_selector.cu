// A CTA per request, with eight threads per candidate. Rows of the candidates of some slots are on
// their way into shared memory at any time (4 K R bytes per slot in bfloat16: 16 KB for 16
// candidates, R = 256). What of a score does not wait for the token before is made ahead; a step is
// then a sum by eight lanes, a barrier and a choice that every warp makes. Bound by latency.

#include "core/device_team.cuh"
#include "core/launch.cuh"
#include "ops/walk_selector.h"

namespace specfast {
namespace {

constexpr int kMaxThreads = kSelectorLanes * kMaxCandidates;

template <class W, int kAhead, int kRank>
__global__ void __launch_bounds__(kMaxThreads)
    walk_selector_kernel(const __grid_constant__ WalkSelectorParams p, bool may_stage) {
  begin_after_previous_kernel();
  BlockTeam team;
  SelectorWalk<W, kAhead, kRank>{p, team.index(), may_stage}.run(team);
}

// False: there is not so much shared memory.
template <class W, int kAhead, int kRank>
bool launch_walk(const WalkSelectorParams& p, bool stages, cudaStream_t stream) {
  constexpr size_t kMostBytes = 224 * 1024;
  ScratchSizer sizer;
  SelectorWalk<W, kAhead, kRank>{p, 0, stages}.place(sizer);
  if (sizer.bytes() > kMostBytes) return false;
  LaunchShape shape;
  shape.grid = dim3(p.batch_size);
  shape.block = dim3(ceil_div(kSelectorLanes * p.num_candidates, 32) * 32);
  shape.shared_bytes = sizer.bytes();
  shape.begins_early = true;
  launch(walk_selector_kernel<W, kAhead, kRank>, shape, stream, p, stages);
  return true;
}

template <class W>
void launch_walks(const WalkSelectorParams& p, cudaStream_t stream) {
  if (p.rank == 256 && kSelectorLanes * p.num_candidates % 32 == 0) {
    // All slots of a usual walk at once, where a request has an SM for itself.
    if (p.batch_size <= 128 && launch_walk<W, 8, 256>(p, true, stream)) return;
    if (launch_walk<W, 4, 256>(p, true, stream)) return;
  }
  if (launch_walk<W, 4, 0>(p, true, stream)) return;
  if (launch_walk<W, 4, 0>(p, false, stream)) return;
  throw Error("walk_selector: too many slots of this rank for shared memory");
}

}  // namespace

void walk_selector_cuda(const WalkSelectorParams& p, CUstream_st* stream) {
  if (p.batch_size == 0) return;
  if (p.codebook_type == FloatType::kFloat32) return launch_walks<float>(p, stream);
  launch_walks<BFloat16>(p, stream);
}

}  // namespace specfast
