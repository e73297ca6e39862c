#include "core/sampled_launch.cuh"
#include "ops/row_stats.h"

namespace specfast {

void row_stats_cuda(const RowStatsParams& p, CUstream_st* stream) {
  int count = static_cast<int>(p.accept.num_rows);
  if (count == 0) return;
  with_row_form(p.rows, p.sampling, [&](auto form) {
    launch_sampled<ShardRow<decltype(form)>>(p, count, p.shard_size, sampled_shape(count), stream);
  });
}

}  // namespace specfast
