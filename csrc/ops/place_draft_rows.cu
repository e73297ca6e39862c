// A block per request, more where its pages are many. Bound by the latency of a launch and two
// loads.

#include "core/device_team.cuh"
#include "core/launch.cuh"
#include "ops/place_draft_rows.h"

namespace specfast {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    place_draft_rows_kernel(const __grid_constant__ PlaceDraftRowsParams p) {
  begin_after_previous_kernel();
  SplitTeam team;
  DraftPlaces{p, static_cast<int32_t>(blockIdx.x)}.run(team);
}

}  // namespace

void place_draft_rows_cuda(const PlaceDraftRowsParams& p, CUstream_st* stream) {
  if (p.batch_size == 0) return;
  constexpr int kMaxBlocks = 64;
  int most = max_of(p.num_columns + p.scratch_pages, p.num_rows);
  LaunchShape shape;
  shape.grid = dim3(p.batch_size, clamp_to(ceil_div(most, kThreads), 1, kMaxBlocks));
  shape.block = dim3(kThreads);
  shape.begins_early = true;
  launch(place_draft_rows_kernel, shape, stream, p);
}

}  // namespace specfast
