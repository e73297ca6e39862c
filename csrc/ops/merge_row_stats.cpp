#include "ops/merge_row_stats.h"

namespace specfast {

void merge_row_stats_cpu(const MergeRowStatsParams& p) {
  for (int64_t r = 0; r < p.accept.num_rows; ++r) {
    SerialTeam team;
    MergedRow(p, r).run(team);
  }
}

}  // namespace specfast
