#include "ops/row_stats.h"

namespace specfast {

void row_stats_cpu(const RowStatsParams& p) {
  with_row_form(p.rows, p.sampling, [&](auto form) {
    for (int64_t r = 0; r < p.accept.num_rows; ++r) {
      SerialTeam team;
      ShardRow<decltype(form)>(p, r, 0).run(team);
    }
  });
}

}  // namespace specfast
