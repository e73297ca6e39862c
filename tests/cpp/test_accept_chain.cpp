#include <algorithm>

#include "accept_case.h"
#include "core/thread_team.h"
#include "ops/accept_chain.h"
#include "testing.h"

namespace specfast {
namespace {

using testing::AcceptCase;

constexpr int kParts = 2;
constexpr int kThreads = 4;

template <int kAhead, class Source>
void accept_on_threads(AcceptCase& c, Source source, int threads = kThreads,
                       int dropped_barrier = -1) {
  AcceptParams p = c.params();
  for (int b = 0; b < c.B; ++b) {
    ThreadTeam::run(
        kParts, threads,
        [&](ThreadTeam& team) { accept_request<kAhead>(team, p, ChainLinks{}, source, b); },
        dropped_barrier);
  }
}

template <int kAhead>
void threads_equal_serial() {
  for (unsigned seed = 0; seed < 12; ++seed) {
    AcceptCase serial(3, 7, 4, seed, seed % 2 == 1);
    AcceptCase threads = serial;
    accept_chain_cpu({serial.params(), serial.logit_rows()});
    accept_on_threads<kAhead>(
        threads, GreedyLogits<float>{threads.logits.data(), threads.stride, threads.V});
    CHECK_EQ(threads.record(), serial.record());
  }
}

TEST(chain_on_threads_equals_serial) { threads_equal_serial<1>(); }
TEST(chain_reading_two_rows_ahead_equals_serial) { threads_equal_serial<2>(); }
TEST(chain_reading_four_rows_ahead_equals_serial) { threads_equal_serial<4>(); }

// One token in the vocabulary: everything is accepted.
AcceptCase all_accepted() {
  AcceptCase c(1, 7, 1, 0, false);
  c.verify_lens[0] = 7;
  c.target_predict.assign(7, 0);
  return c;
}
TEST(trimmed_rows_leave_the_mailbox_of_the_last_read_alone) {
  // Two reads of two rows up to the cut, then single rows for the statistic. Few threads, so that
  // ThreadSanitizer remembers every access.
  AcceptCase serial = all_accepted();
  serial.verify_lens[0] = 4;
  AcceptCase threads = serial;
  accept_chain_cpu({serial.params(), serial.logit_rows()});
  accept_on_threads<2>(threads, GreedyLogits<float>{threads.logits.data(), threads.stride, 1}, 2);
  CHECK_EQ(threads.record(), serial.record());
}

TEST(rows_of_an_empty_batch_are_padding) {
  AcceptCase c(1, 3, 4, 0, false);
  AcceptCase expected = c;
  std::fill(expected.predict.begin(), expected.predict.end(), -1);
  AcceptParams p = c.params();
  p.batch_size = 0;
  accept_chain_cpu({p, c.logit_rows()});
  CHECK_EQ(c.record(), expected.record());
}

// Barrier 0 publishes the links, barrier 1 the first row's keys.
PLANTED_FAULT(chain_without_the_links_barrier) {
  AcceptCase c = all_accepted();
  accept_on_threads<1>(c, GivenPredictions{{c.target_predict.data(), false}, c.V}, kThreads, 0);
}
// One thread a part: ThreadSanitizer remembers few readers of a word, and parts that read different
// keys would part ways and hang.
PLANTED_FAULT(chain_without_the_mailbox_barrier) {
  AcceptCase c = all_accepted();
  accept_on_threads<1>(c, GreedyLogits<float>{c.logits.data(), c.stride, c.V}, 1, 1);
}

}  // namespace
}  // namespace specfast
