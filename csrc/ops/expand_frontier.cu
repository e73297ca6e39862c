// Two launches: a CTA per row, or a cluster where there are few, then a CTA per request for the
// next frontier. Each warp has a tile of a row in registers and asks for its next one; what has a
// place among the best is read again, from L2. Twelve instructions per logit make the exponentials,
// and bound it together with the one read. The second launch starts under the first and needs a few
// hundred cycles.

#include "core/device_team.cuh"
#include "core/launch.cuh"
#include "ops/expand_frontier.h"

namespace specfast {
namespace {

constexpr int kThreads = 256;
constexpr int kChoiceThreads = 128;

// CTAs of so many registers that an SM has room for.
template <class T>
constexpr int kPerSm = sizeof(T) == 4 ? 2 : 4;

template <class Team, class T>
__global__ void __launch_bounds__(kThreads, kPerSm<T>)
    frontier_row_kernel(const __grid_constant__ ExpandFrontierParams p) {
  begin_after_previous_kernel();
  Team team;
  FrontierRow<T>(p, team.index()).run(team);
}

__global__ void __launch_bounds__(kChoiceThreads)
    choose_frontier_kernel(const __grid_constant__ ExpandFrontierParams p) {
  begin_after_previous_kernel();
  BlockTeam team;
  FrontierChoice{p, team.index()}.run(team);
}

// Few rows are divided among more CTAs, as long as all of them run at once.
int parts_of_row(int rows) {
  constexpr int kAtOnce = 4 * 132;
  int parts = 1;
  while (2 * parts <= min_of(kMaxParts, cluster_size_limit()) && 2 * parts * rows <= kAtOnce) {
    parts *= 2;
  }
  return parts;
}

template <class T>
void launch_rows(const ExpandFrontierParams& p, cudaStream_t stream) {
  int rows = p.batch_size * p.num_nodes;
  int parts = parts_of_row(rows);
  ScratchSizer sizer;
  FrontierRow<T>(p, 0).place(sizer, parts);
  LaunchShape shape;
  shape.grid = dim3(rows * parts);
  shape.block = dim3(kThreads);
  shape.shared_bytes = sizer.bytes();
  shape.cluster_size = parts;
  shape.begins_early = true;
  if (parts == 1) return launch(frontier_row_kernel<BlockTeam, T>, shape, stream, p);
  launch(frontier_row_kernel<ClusterTeam, T>, shape, stream, p);
}

}  // namespace

void expand_frontier_cuda(const ExpandFrontierParams& p, CUstream_st* stream) {
  if (p.batch_size == 0) return;
  with_frontier_type(p, [&](auto type) { launch_rows<decltype(type)>(p, stream); });
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
