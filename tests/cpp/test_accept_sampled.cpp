#include "core/block_rule.h"
#include "core/rejection_rule.h"
#include "core/target_only_rule.h"
#include "ops/accept_block.h"
#include "ops/accept_rejection.h"
#include "ops/accept_target_only.h"
#include "sampled_case.h"
#include "sampled_on_threads.h"
#include "testing.h"

namespace specfast {
namespace {

using testing::chain_rows_on_threads;
using testing::sampled_accept_on_threads;
using testing::SampledCase;
using Form = SampledCase::Form;

struct Setting {
  bool edited, filtered, chain;
};

template <class Rule, class SerialOp>
void check_threads_equal_serial(SerialOp serial_op, bool chains_only) {
  for (unsigned seed = 0; seed < 24; ++seed) {
    Setting setting{(seed & 1) != 0, (seed & 2) != 0, chains_only || (seed & 4) != 0};
    Form form = static_cast<Form>(seed % 3);
    // Three tiles and a rest, so that parts and threads own different numbers of them.
    SampledCase serial(2, 8, seed % 4 == 0 ? 3200 : 5, seed, seed % 5 == 4, form);
    SampledCase threads = serial;
    serial_op(serial.sampled_params(setting.edited, setting.filtered, setting.chain));
    for (bool stores_rows : {false, true}) {
      SampledAcceptParams p =
          threads.sampled_params(setting.edited, setting.filtered, setting.chain);
      if (stores_rows) p.stored_rows = threads.stored_rows.data();
      sampled_accept_on_threads<Rule>(p, 2 + seed % 2, 1);
      CHECK_EQ(threads.sampled_record(), serial.sampled_record());
      SampledCase two_passes = serial;
      p = two_passes.sampled_params(setting.edited, setting.filtered, setting.chain);
      if (stores_rows) p.stored_rows = two_passes.stored_rows.data();
      serial_op(p);
      CHECK_EQ(two_passes.sampled_record(), serial.sampled_record());
    }
  }
}

TEST(target_only_on_threads_equals_serial) {
  auto serial_op = [](const SampledAcceptParams& p) { accept_target_only_cpu(p); };
  check_threads_equal_serial<TargetOnlyRule>(serial_op, false);
}
TEST(rejection_on_threads_equals_serial) {
  auto serial_op = [](const SampledAcceptParams& p) { accept_rejection_cpu(p); };
  check_threads_equal_serial<RejectionRule>(serial_op, false);
}
TEST(block_on_threads_equals_serial) {
  auto serial_op = [](const SampledAcceptParams& p) { accept_block_cpu(p); };
  check_threads_equal_serial<BlockRule>(serial_op, true);
}

// A cluster per row of a chain, whichever comes first.
template <class Rule, class SerialOp>
void check_rows_at_once_equal_serial(SerialOp serial_op) {
  for (unsigned seed = 0; seed < 24; ++seed) {
    bool filtered = (seed & 2) != 0;
    // Of one request, and of too many rows to read them all in vain.
    int batch = seed % 3 == 0 ? 1 : 2;
    SampledCase serial(batch, 8, seed % 4 == 0 ? 3200 : 5, seed, seed % 5 == 4,
                       static_cast<Form>(seed / 2 % 3));
    for (bool is_backwards : {false, true}) {
      SampledCase rows = serial;
      SampledCase walk = serial;
      SampledAcceptParams p{};
      auto change = [&](SampledCase& c) {
        p = c.sampled_params(false, filtered, true);
        p.accept.cap_trim_lens = nullptr;
        if (seed % 2 == 0) p.logprobs.logprobs = nullptr;
      };
      change(walk);
      serial_op(p);
      change(rows);
      p.outcomes = rows.outcomes.data();
      for (int run = 0; run < 2; ++run) {
        chain_rows_on_threads<Rule>(p, 2 + seed % 2, 1, is_backwards);
        CHECK_EQ(rows.sampled_record(), walk.sampled_record());
        for (const RowOutcome& outcome : rows.outcomes) CHECK_EQ(outcome.progress, uint64_t{0});
      }
    }
  }
}

TEST(target_only_rows_at_once_equal_serial) {
  check_rows_at_once_equal_serial<TargetOnlyRule>(
      [](const SampledAcceptParams& p) { accept_target_only_cpu(p); });
}
TEST(rejection_rows_at_once_equal_serial) {
  check_rows_at_once_equal_serial<RejectionRule>(
      [](const SampledAcceptParams& p) { accept_rejection_cpu(p); });
}

// Rows without filters have a form of their own.
template <class SerialOp>
void check_absent_filters(SerialOp serial_op, bool chain) {
  for (unsigned seed = 0; seed < 12; ++seed) {
    SampledCase absent(2, 8, seed % 4 == 0 ? 3200 : 5, seed, false, static_cast<Form>(seed % 3));
    SampledCase off = absent;
    serial_op(absent.sampled_params(false, false, chain));
    SampledAcceptParams p = off.sampled_params(false, false, chain);
    std::vector<int32_t> top_k(2, -1);
    std::vector<float> top_p(2, 1.0f);
    std::vector<float> min_p(2, 0.0f);
    p.sampling.top_k = top_k.data();
    p.sampling.top_p = top_p.data();
    p.sampling.min_p = min_p.data();
    serial_op(p);
    CHECK_EQ(off.sampled_record(), absent.sampled_record());
  }
}

TEST(filters_that_are_off_equal_none) {
  check_absent_filters([](const SampledAcceptParams& p) { accept_target_only_cpu(p); }, false);
  check_absent_filters([](const SampledAcceptParams& p) { accept_rejection_cpu(p); }, false);
  check_absent_filters([](const SampledAcceptParams& p) { accept_block_cpu(p); }, true);
}

PLANTED_FAULT(target_only_without_the_links_barrier) {
  // Without edits the first barrier is the one before links and tokens are looked at.
  SampledCase c(1, 4, 5, 0, false, Form::kRecord);
  c.verify_lens[0] = 4;
  sampled_accept_on_threads<TargetOnlyRule>(c.sampled_params(false, false, true), 2, 1, 0);
}

}  // namespace
}  // namespace specfast
