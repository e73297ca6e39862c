#include "ops/sample_rows.h"

namespace specfast {

void sample_rows_cpu(const SampleRowsParams& p) {
  with_row_form(p.rows, p.sampling, [&](auto form) {
    for (int64_t r = 0; r < p.num_rows; ++r) {
      SerialTeam team;
      RowSampler<decltype(form)>(p, r, 0).run(team);
    }
  });
}

}  // namespace specfast
