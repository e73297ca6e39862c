#include "core/thread_team.h"
#include "shard_case.h"
#include "testing.h"

namespace specfast {
namespace {

using testing::ShardCase;

void stats_on_threads(const RowStatsParams& p, int parts) {
  with_row_form(p.rows, p.sampling, [&](auto form) {
    for (int64_t r = 0; r < p.accept.num_rows; ++r) {
      ThreadTeam::run(parts, 4, [&](ThreadTeam& team) {
        // One group of a part's share is kept, others are read again.
        ShardRow<decltype(form)>(p, r, 1).run(team);
      });
    }
  });
}

void merge_on_threads(const MergeRowStatsParams& p, int parts, int dropped_barrier = -1) {
  for (int64_t r = 0; r < p.accept.num_rows; ++r) {
    ThreadTeam::run(
        parts, 4, [&](ThreadTeam& team) { MergedRow(p, r).run(team); }, dropped_barrier);
  }
}

TEST(shards_on_threads_equal_serial) {
  for (unsigned seed = 0; seed < 24; ++seed) {
    bool filtered = (seed & 1) != 0;
    bool chain = (seed & 2) != 0;
    ShardCase serial(2, 5, seed % 4 == 0 ? 700 : 9, 1 + seed % 4, seed, seed % 5 == 4);
    ShardCase threads = serial;
    for (int shard = 0; shard < serial.num_shards(); ++shard) {
      row_stats_cpu(serial.stats_params(shard, filtered, chain));
      stats_on_threads(threads.stats_params(shard, filtered, chain), 1 + seed % 3);
    }
    CHECK_EQ(threads.stats, serial.stats);
    merge_row_stats_cpu(serial.merge_params(filtered));
    merge_on_threads(threads.merge_params(filtered), 1 + seed % 2);
    CHECK_EQ(threads.merged(), serial.merged());
  }
}

// Every request is sampled, with a top_k, and has a row of drafts.
ShardCase a_merge_of_lists() {
  ShardCase c(2, 3, 40, 3, 3, false);
  c.record = {2, 20};
  c.stats.assign(static_cast<size_t>(c.num_shards()) * c.B * c.N * c.record.words(), 77);
  for (int b = 0; b < c.B; ++b) {
    c.temperature[b] = 1.0f;
    c.top_k[b] = 7;
    c.top_p[b] = 0.8f;
    c.min_p[b] = 0.0f;
    c.verify_lens[b] = c.N;
  }
  for (int shard = 0; shard < c.num_shards(); ++shard)
    row_stats_cpu(c.stats_params(shard, true, true));
  return c;
}

TEST(merge_row_stats_bears_records_of_no_shard) {
  std::mt19937_64 rng(1);
  for (int round = 0; round < 200; ++round) {
    ShardCase c = a_merge_of_lists();
    for (uint64_t& word : c.stats) {
      if (rng() % 4 == 0) word = rng() % 2 == 0 ? rng() : 0;
    }
    merge_row_stats_cpu(c.merge_params(true));
    for (int32_t token : c.predict_of_row) CHECK(token >= -1 && token < c.V);
  }
}

// Candidates are listed by all threads before any of them looks for earlier ones.
PLANTED_FAULT(merge_without_the_candidates_barrier) {
  ShardCase c = a_merge_of_lists();
  merge_on_threads(c.merge_params(true), 1, 10);
}

}  // namespace
}  // namespace specfast
