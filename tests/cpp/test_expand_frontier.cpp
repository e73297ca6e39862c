#include "core/thread_team.h"
#include "frontier_case.h"
#include "testing.h"

namespace specfast {
namespace {

using testing::FrontierCase;

constexpr int kThreads = 4;

template <class T>
void rows_on_threads(const ExpandFrontierParams& p, int parts, int dropped_barrier = -1) {
  for (int64_t r = 0; r < p.batch_size * p.num_nodes; ++r) {
    ThreadTeam::run(
        parts, kThreads, [&](ThreadTeam& team) { FrontierRow<T>(p, r).run(team); },
        dropped_barrier);
  }
}

void choices_on_threads(const ExpandFrontierParams& p, int dropped_barrier = -1) {
  for (int64_t b = 0; b < p.batch_size; ++b) {
    ThreadTeam::run(
        1, kThreads, [&](ThreadTeam& team) { FrontierChoice{p, b}.run(team); }, dropped_barrier);
  }
}

// With up to as many children as threads a part has a bound to list by, and a row of equal values
// has more tokens at it than a part lists; with more, every thread keeps a list of its own.
template <class T>
void expect_equal_to_serial() {
  using Case = FrontierCase<T>;
  for (unsigned seed = 0; seed < 24; ++seed) {
    int topk = 1 + static_cast<int>(seed) % 6;
    int vocab = seed % 3 == 0 ? 2000 : seed % 3 == 1 ? 90 : topk;
    typename Case::Size size{2, 1 + static_cast<int>(seed) % topk, topk, vocab};
    Case serial(size, seed, seed % 4 == 3);
    Case threads = serial;
    expand_frontier_cpu(serial.params());
    rows_on_threads<T>(threads.params(), 1 + static_cast<int>(seed) % 3);
    choices_on_threads(threads.params());
    CHECK_EQ(threads.written(), serial.written());
  }
}

TEST(expand_frontier_float32_on_threads_equals_serial) { expect_equal_to_serial<float>(); }
TEST(expand_frontier_bfloat16_on_threads_equals_serial) { expect_equal_to_serial<BFloat16>(); }

TEST(expand_frontier_gives_distinct_ids_of_the_vocabulary) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    FrontierCase<float> c({2, 3, 5, 5 + static_cast<int>(seed % 7)}, seed, true);
    ExpandFrontierParams p = c.params();
    p.d2t = nullptr;
    expand_frontier_cpu(p);
    for (size_t i = 0; i < c.candidate_tokens.size(); ++i) {
      CHECK(c.candidate_tokens[i] >= 0 && c.candidate_tokens[i] < c.size.vocab);
      for (size_t j = i / 5 * 5; j < i; ++j) CHECK(c.candidate_tokens[i] != c.candidate_tokens[j]);
    }
    for (int32_t parent : c.parents) CHECK(parent >= 0 && parent < 3);
  }
}

// The best of a part are in order before any thread sends them.
PLANTED_FAULT(frontier_lists_sent_too_early) {
  FrontierCase<float> c({1, 1, 4, 300}, 0, false);
  rows_on_threads<float>(c.params(), 2, 2);
}

PLANTED_FAULT(frontier_keys_compared_too_early) {
  FrontierCase<float> c({1, 4, 4, 60}, 0, false);
  expand_frontier_cpu(c.params());
  choices_on_threads(c.params(), 0);
}

}  // namespace
}  // namespace specfast
