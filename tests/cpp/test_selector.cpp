#include "core/thread_team.h"
#include "selector_case.h"
#include "testing.h"

namespace specfast {
namespace {

using testing::SelectorCase;

template <class W>
void walk_on_threads(const WalkSelectorParams& p, bool stages, int dropped_barrier = -1) {
  for (int32_t b = 0; b < p.batch_size; ++b) {
    ThreadTeam::run(
        1, 4, [&](ThreadTeam& team) { SelectorWalk<W, 4>{p, b, stages}.run(team); },
        dropped_barrier);
  }
}

TEST(walk_selector_on_threads_equals_serial) {
  for (unsigned seed = 0; seed < 16; ++seed) {
    SelectorCase<BFloat16> serial({3, 4, 1 + static_cast<int>(seed), 24, 60}, seed, seed % 2 == 1);
    SelectorCase<BFloat16> threads = serial;
    walk_selector_cpu(serial.params());
    walk_on_threads<BFloat16>(threads.params(), seed % 4 < 2);
    CHECK_EQ(threads.written(), serial.written());
  }
}

PLANTED_FAULT(walk_selector_scores_read_too_early) {
  SelectorCase<float> c({1, 4, 6, 24, 60}, 0, false);
  walk_on_threads<float>(c.params(), true, 2);
}

}  // namespace
}  // namespace specfast
