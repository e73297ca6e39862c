#include "core/device_team.cuh"
#include "core/launch.cuh"
#include "ops/merge_row_stats.h"

namespace specfast {
namespace {

__global__ void __launch_bounds__(128)
    merge_row_stats_kernel(const __grid_constant__ MergeRowStatsParams p) {
  begin_after_previous_kernel();
  BlockTeam team;
  MergedRow(p, team.index()).run(team);
}

}  // namespace

void merge_row_stats_cuda(const MergeRowStatsParams& p, CUstream_st* stream) {
  if (p.accept.num_rows == 0) return;
  ScratchSizer sizer;
  MergedRow(p, 0).place(sizer);
  // Without lists a warp has a shard or a candidate per lane.
  int threads = p.record.max_top_k > 0 ? 128 : 32;
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(p.accept.num_rows));
  shape.block = dim3(static_cast<unsigned>(threads));
  shape.shared_bytes = sizer.bytes();
  shape.begins_early = true;
  launch(merge_row_stats_kernel, shape, stream, p);
}

}  // namespace specfast
