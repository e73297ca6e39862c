// A CTA per request. Rows of all candidates in both codebooks come into shared memory at once
// (2 M K R elements: 112 KB for 7 slots of 16 candidates, R = 256, bfloat16), since which of them a
// slot needs is known only when it waits for them. A slot is then a few hundred cycles: a warp per
// candidate makes its score, every warp takes the same token. Bound by latency.

#include "core/device_team.cuh"
#include "core/launch.cuh"
#include "ops/walk_selector.h"

namespace specfast {
namespace {

constexpr int kThreads = 512;

template <class W>
__global__ void __launch_bounds__(kThreads)
    walk_selector_kernel(const __grid_constant__ WalkSelectorParams p, bool stages) {
  begin_after_previous_kernel();
  BlockTeam team;
  SelectorWalk<W>{p, team.index(), stages}.run(team);
}

template <class W>
void launch_walk(const WalkSelectorParams& p, cudaStream_t stream) {
  constexpr size_t kMostBytes = 224 * 1024;
  auto bytes = [&](bool stages) {
    ScratchSizer sizer;
    SelectorWalk<W>{p, 0, stages}.place(sizer);
    return sizer.bytes();
  };
  bool stages = bytes(true) <= kMostBytes;
  LaunchShape shape;
  shape.grid = dim3(p.batch_size);
  shape.block = dim3(kThreads);
  shape.shared_bytes = bytes(stages);
  shape.begins_early = true;
  launch(walk_selector_kernel<W>, shape, stream, p, stages);
}

}  // namespace

void walk_selector_cuda(const WalkSelectorParams& p, CUstream_st* stream) {
  if (p.batch_size == 0) return;
  if (p.codebook_type == FloatType::kFloat32) return launch_walk<float>(p, stream);
  launch_walk<BFloat16>(p, stream);
}

}  // namespace specfast
