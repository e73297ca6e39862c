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
  SerialTeam team;
  std::vector<uint32_t> keys = {7, 0, 9, 7, 0xffffffffu, 7, 9, 0};
  for (int wanted = 0; wanted <= 8; ++wanted) {
    Cut cut = find_cut(team, keys.data(), 8, wanted);
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

PLANTED_FAULT(select_without_the_barrier_after_loading) {
  TreeCase c(kPlanted, 0, false);
  select_and_build_on_threads(c, 0);
}
PLANTED_FAULT(select_without_the_barrier_after_the_limits) {
  TreeCase c(kPlanted, 0, false);
  select_and_build_on_threads(c, 1);
}
PLANTED_FAULT(select_and_build_without_the_barrier_between) {
  TreeCase c(kPlanted, 0, false);
  select_and_build_on_threads(c, 2);
}
PLANTED_FAULT(build_without_the_barrier_after_clearing) {
  // Unsound: candidates in any order. In order, each would be cleared and set by the same thread.
  TreeCase c(kPlanted, 0, true);
  build_on_threads(c, 0);
}
PLANTED_FAULT(build_without_the_barrier_after_numbering) {
  TreeCase c(kPlanted, 0, false);
  build_on_threads(c, 1);
}
PLANTED_FAULT(tree_without_the_barrier_after_linking) {
  TreeCase c(kPlanted, 0, false);
  from_parents_on_threads(c, 0);
}

}  // namespace
}  // namespace specfast
