#include "core/thread_team.h"
#include "sample_rows_case.h"
#include "testing.h"

namespace specfast {
namespace {

using testing::SampleRowsCase;

void sample_on_threads(const SampleRowsParams& p, int parts) {
  with_row_form(p.rows, p.sampling, [&](auto form) {
    for (int64_t r = 0; r < p.num_rows; ++r) {
      ThreadTeam::run(parts, 4, [&](ThreadTeam& team) {
        // One group of a part's share is kept, others are read again.
        RowSampler<decltype(form)>(p, r, 1).run(team);
      });
    }
  });
}

TEST(sample_rows_on_threads_equals_serial) {
  for (unsigned seed = 0; seed < 16; ++seed) {
    bool edited = (seed & 1) != 0;
    bool filtered = (seed & 2) != 0;
    Purpose purpose = (seed & 4) != 0 ? kFinalDraw : kDraftDraw;
    bool given_coins = seed % 8 == 7;
    SampleRowsCase serial(2, 4, seed % 4 == 0 ? 1000 : 5, seed, seed % 5 == 4);
    SampleRowsCase threads = serial;
    sample_rows_cpu(serial.rows_params(edited, filtered, purpose, given_coins));
    sample_on_threads(threads.rows_params(edited, filtered, purpose, given_coins), 2 + seed % 2);
    CHECK_EQ(threads.drawn(), serial.drawn());
  }
}

TEST(sample_rows_draws_without_replacement) {
  SampleRowsCase c(2, 4, 5, 0, false);
  sample_rows_cpu(c.rows_params(false, false, kDraftDraw, false));
  constexpr int kDraws = SampleRowsCase::kDraws;
  for (int row = 0; row < c.B * c.N; ++row) {
    const int32_t* of_row = &c.tokens[row * kDraws];
    bool ordinary = c.row_records[row].kind == kOrdinaryRow;
    CHECK(of_row[0] >= 0 && of_row[0] < c.V);
    CHECK_EQ(of_row[1] >= 0, ordinary);
    if (ordinary) CHECK(of_row[0] != of_row[1] && of_row[1] != of_row[2] && of_row[0] != of_row[2]);
  }
}

}  // namespace
}  // namespace specfast
