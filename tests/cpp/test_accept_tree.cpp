#include "accept_case.h"
#include "core/thread_team.h"
#include "testing.h"

namespace specfast {
namespace {

using testing::AcceptCase;

template <class Source>
void accept_on_threads(AcceptCase& c, Source source, int dropped_barrier = -1) {
  AcceptParams p = c.params();
  p.cap_trim_lens = nullptr;
  for (int b = 0; b < c.B; ++b) {
    ThreadTeam::run(
        2, 4, [&](ThreadTeam& team) { accept_request<1>(team, p, c.tree_links(), source, b); },
        dropped_barrier);
  }
}

void accept_serially(AcceptCase& c, const TargetRows& rows) {
  AcceptTreeParams p{c.params(), rows, c.tree_links()};
  p.accept.cap_trim_lens = nullptr;
  accept_tree_cpu(p);
}

TEST(tree_on_threads_equals_serial) {
  for (unsigned seed = 0; seed < 16; ++seed) {
    AcceptCase serial(3, 12, 3, seed, seed % 2 == 1);
    AcceptCase threads = serial;
    accept_serially(serial, serial.logit_rows());
    accept_on_threads(threads, GreedyLogits<float>{threads.logits.data(), threads.stride, 3});
    CHECK_EQ(threads.record(), serial.record());
  }
}

TEST(tree_of_given_predictions_on_threads_equals_serial) {
  for (unsigned seed = 0; seed < 16; ++seed) {
    AcceptCase serial(3, 12, 3, seed, seed % 2 == 1);
    AcceptCase threads = serial;
    accept_serially(serial, {nullptr, {}, 0, {serial.target_predict.data(), false}});
    accept_on_threads(threads, GivenPredictions{{threads.target_predict.data(), false}, 3});
    CHECK_EQ(threads.record(), serial.record());
  }
}

TEST(half_precision_reads_as_written) {
  // Every finite half and bfloat16 converts exactly; a few by hand.
  CHECK_EQ(to_float(Float16{0x3c00}), 1.0f);
  CHECK_EQ(to_float(Float16{0x0001}), 5.9604644775390625e-8f);
  CHECK_EQ(to_float(Float16{0xfbff}), -65504.0f);
  CHECK_EQ(to_float(Float16{0x7c00}), INFINITY);
  CHECK(to_float(Float16{0x7e00}) != to_float(Float16{0x7e00}));
  CHECK_EQ(to_float(BFloat16{0xc040}), -3.0f);
}

TEST(keys_order_values_and_prefer_low_ids) {
  float ascending[] = {-3e38f, -1.0f, -1e-45f, 0.0f, 1e-45f, 2.0f, INFINITY};
  for (int i = 1; i < 7; ++i) CHECK(argmax_key(ascending[i - 1], 0) < argmax_key(ascending[i], 9));
  CHECK(argmax_key(1.0f, 3) > argmax_key(1.0f, 4));
  CHECK_EQ(argmax_key(-0.0f, 5), argmax_key(0.0f, 5));
  CHECK_EQ(argmax_key(-INFINITY, 0), 0u);
  CHECK_EQ(argmax_key(NAN, 0), 0u);
  CHECK_EQ(argmax_id(argmax_key(-7.0f, 151935) | 1), 151935);
}

PLANTED_FAULT(tree_without_the_path_barrier) {
  // One token in the vocabulary, given: the second barrier is the one before the tail.
  AcceptCase c(1, 12, 1, 0, false);
  c.verify_lens[0] = 12;
  c.target_predict.assign(12, 0);
  accept_on_threads(c, GivenPredictions{{c.target_predict.data(), false}, 1}, 1);
}

}  // namespace
}  // namespace specfast
