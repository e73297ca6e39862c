#include <algorithm>

#include "core/thread_team.h"
#include "ops/build_tree.h"
#include "ops/select_and_build_tree.h"
#include "ops/select_draft_tokens.h"
#include "ops/tree_from_parents.h"
#include "testing.h"
#include "tree_case.h"

namespace specfast {
namespace {

using testing::kInPlace;
using testing::TreeCase;
using testing::TreeSize;

// Two parts of four threads; run_request(team, b) makes its scratch and runs the body.
template <class RunRequest>
void run_on_threads(int batch_size, RunRequest run_request, int dropped_barrier = -1) {
  for (int b = 0; b < batch_size; ++b) {
    ThreadTeam::run(2, 4, [&](ThreadTeam& team) { run_request(team, b); }, dropped_barrier);
  }
}

void select_on_threads(TreeCase& c) {
  SelectDraftTokensParams p = c.select(kInPlace);
  run_on_threads(c.B, [&](ThreadTeam& team, int b) {
    select_draft_tokens_request(team, p, select_draft_tokens_scratch(team, p), b);
  });
}
void build_on_threads(TreeCase& c, int dropped_barrier = -1) {
  BuildTreeParams p = c.build(kInPlace);
  run_on_threads(
      c.B,
      [&](ThreadTeam& team, int b) { build_tree_request(team, p, build_tree_scratch(team, p), b); },
      dropped_barrier);
}
void select_and_build_on_threads(TreeCase& c, int dropped_barrier = -1) {
  SelectAndBuildTreeParams p = c.select_and_build(kInPlace);
  run_on_threads(
      c.B,
      [&](ThreadTeam& team, int b) {
        select_and_build_tree_request(team, p, select_and_build_tree_scratch(team, p), b);
      },
      dropped_barrier);
}
void from_parents_on_threads(TreeCase& c, int dropped_barrier = -1) {
  TreeFromParentsParams p = c.from_parents(kInPlace);
  run_on_threads(
      c.B,
      [&](ThreadTeam& team, int b) {
        tree_from_parents_request(team, p, tree_from_parents_scratch(team, p), b);
      },
      dropped_barrier);
}

constexpr TreeSize kSizes[] = {{3, 2, 3, 7}, {2, 3, 3, 22}, {2, 4, 4, 45}, {2, 1, 6, 5},
                               {2, 5, 1, 4}, {2, 2, 2, 1},  {1, 1, 1, 2}};

// serially(case) and on_threads(case) leave the same bytes.
template <class Serially, class OnThreads>
void expect_equal(Serially serially, OnThreads on_threads, MaskMode mode = MaskMode::kBits) {
  for (TreeSize size : kSizes) {
    for (bool unsound : {false, true}) {
      TreeCase serial(size, 7, unsound, mode);
      TreeCase threads = serial;
      serially(serial);
      on_threads(threads);
      CHECK_EQ(threads.written(), serial.written());
    }
  }
}

TEST(selection_on_threads_equals_serial) {
  expect_equal([](TreeCase& c) { select_draft_tokens_cpu(c.select(kInPlace)); }, select_on_threads);
}
TEST(building_on_threads_equals_serial) {
  expect_equal([](TreeCase& c) { build_tree_cpu(c.build(kInPlace)); },
               [](TreeCase& c) { build_on_threads(c); });
}
TEST(selecting_and_building_on_threads_equals_serial) {
  expect_equal([](TreeCase& c) { select_and_build_tree_cpu(c.select_and_build(kInPlace)); },
               [](TreeCase& c) { select_and_build_on_threads(c); });
}
TEST(a_tree_from_parents_on_threads_equals_serial) {
  for (MaskMode mode : {MaskMode::kBits, MaskMode::kQlen, MaskMode::kFull}) {
    expect_equal([](TreeCase& c) { tree_from_parents_cpu(c.from_parents(kInPlace)); },
                 [](TreeCase& c) { from_parents_on_threads(c); }, mode);
  }
}

TEST(keys_order_scores) {
  float ascending[] = {-INFINITY, -3e38f, -1.0f, -1e-45f, 0.0f, 1e-45f, 2.0f, INFINITY};
  for (int i = 1; i < 8; ++i) CHECK(score_key(ascending[i - 1]) < score_key(ascending[i]));
  CHECK_EQ(score_key(-0.0f), score_key(0.0f));
  CHECK_EQ(score_key(NAN), score_key(-INFINITY));
  CHECK_EQ(score_key(-INFINITY), kMinusInfinityKey);
}

TEST(a_small_divisor_divides_exactly) {
  constexpr int kLargest = 1 << 15;
  for (int d = 1; d <= kLargest; ++d) {
    SmallDivisor divisor(d);
    for (int multiple = d; multiple <= kLargest; multiple += d) {
      CHECK_EQ((multiple - 1) / divisor, multiple / d - 1);
      CHECK_EQ(multiple / divisor, multiple / d);
    }
  }
}

TEST(the_cut_takes_exactly_as_many_as_wanted) {
  // Ties and the largest range; then keys so close that every bound is one of them.
  const std::vector<uint32_t> rows[] = {{7, 0, 9, 7, 0xffffffffu, 7, 9, 0}, {3, 0, 5, 1, 4, 2}};
  SerialTeam team;
  for (const std::vector<uint32_t>& keys : rows) {
    int n = static_cast<int>(keys.size());
    KeyRange range{0, *std::max_element(keys.begin(), keys.end())};
    for (int wanted = 0; wanted <= n; ++wanted) {
      Cut cut = find_cut(team, keys.data(), n, wanted, range);
      int above = 0;
      int ties = 0;
      for (uint32_t key : keys) {
        above += key > cut.key;
        ties += key == cut.key;
      }
      CHECK(cut.num_ties >= 0 && cut.num_ties <= ties);
      CHECK_EQ(above + cut.num_ties, wanted);
    }
  }
}

TEST(the_cut_of_equal_keys_takes_as_many_of_them_as_wanted) {
  SerialTeam team;
  std::vector<uint32_t> keys = {5, 5, 5};
  for (int wanted = 0; wanted <= 3; ++wanted) {
    Cut cut = find_cut(team, keys.data(), 3, wanted, {5, 5});
    CHECK_EQ(cut.key, 5u);
    CHECK_EQ(cut.num_ties, wanted);
  }
}

TEST(the_next_sibling_is_found_over_any_distance) {
  SerialTeam team;
  constexpr int kNodes = 40;
  constexpr int kLast = kNodes - 1;
  for (int far = 3; far < kLast; ++far) {
    // 1, `far` and kLast hang under the root, all others under 1.
    TreeScratch tree = tree_scratch(team, kNodes);
    for (int node = 0; node < kNodes; ++node) {
      place_node(tree, node, node == 0 ? -1 : node == 1 || node == far || node == kLast ? 0 : 1);
    }
    for (int node = 0; node < kNodes; ++node) link_node(team, tree, node);
    CHECK_EQ(next_sibling(tree, 1), far);
    CHECK_EQ(next_sibling(tree, far), kLast);
    CHECK_EQ(next_sibling(tree, kLast), -1);
    CHECK_EQ(next_sibling(tree, far - 1), far + 1 < kLast ? far + 1 : -1);
  }
}

TEST(a_power_of_two_is_rounded_up_to) {
  for (uint32_t n = 1; n <= 4096; ++n) {
    int bits = log2_ceil(n);
    CHECK((1u << bits) >= n && (bits == 0 || (1u << (bits - 1)) < n));
  }
}

TEST(a_chain_of_1024_nodes_has_all_its_ancestors) {
  SerialTeam team;
  TreeScratch tree = tree_scratch(team, 1024);
  for (int node = 0; node < 1024; ++node) place_node(tree, node, node - 1);
  for (int node = 0; node < 1024; ++node) link_node(team, tree, node);
  CHECK_EQ(depth_of(tree, 1023), 1023);
  for (int word = 0; word < 32; ++word) CHECK_EQ(path_word(tree, 1023, word), 0xffffffffu);
  CHECK_EQ(path_word(tree, 40, 1), 0x1ffu);
  CHECK_EQ(path_word(tree, 40, 2), 0u);
}

// One fault per barrier of the bodies, in their order.
constexpr TreeSize kPlanted = {1, 2, 2, 7};

PLANTED_FAULT(select_without_the_barrier_after_the_limits) {
  // Unsound: only scores that rise need limits.
  TreeCase c(kPlanted, 0, true);
  select_and_build_on_threads(c, 0);
}
PLANTED_FAULT(select_and_build_without_the_barrier_between) {
  // A chain of one candidate per thread: the collectives of a second round would order the first.
  TreeCase c({1, 1, 3, 4}, 0, false);
  select_and_build_on_threads(c, 0);
}
PLANTED_FAULT(build_without_the_barrier_after_clearing) {
  // Unsound: candidates in any order. In order, each would be cleared and set by the same thread.
  TreeCase c(kPlanted, 0, true);
  build_on_threads(c, 0);
}
PLANTED_FAULT(build_without_the_barrier_after_numbering) {
  TreeCase c({1, 2, 4, 15}, 0, false);
  build_on_threads(c, 1);
}
PLANTED_FAULT(tree_without_the_barrier_after_linking) {
  TreeCase c(kPlanted, 0, false);
  from_parents_on_threads(c, 0);
}

}  // namespace
}  // namespace specfast
