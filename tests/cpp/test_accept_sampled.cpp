#include "core/block_rule.h"
#include "core/rejection_rule.h"
#include "core/sampled_request.h"
#include "core/target_only_rule.h"
#include "core/thread_team.h"
#include "ops/accept_block.h"
#include "ops/accept_rejection.h"
#include "ops/accept_target_only.h"
#include "sampled_case.h"
#include "testing.h"

namespace specfast {
namespace {

using testing::SampledCase;
using Form = SampledCase::Form;

struct Setting {
  bool edited, filtered, chain;
};

template <class Rule>
void on_threads(SampledCase& c, const Setting& setting, int parts, int dropped_barrier = -1) {
  SampledAcceptParams p = c.sampled_params(setting.edited, setting.filtered, setting.chain);
  for (int b = 0; b < c.B; ++b) {
    ThreadTeam::run(
        parts, 4,
        [&](ThreadTeam& team) {
          // One tile of a part's share is kept, others are read again.
          if (setting.edited) {
            SampledRequest<float, true, Rule>(p, b, 1).run(team);
          } else {
            SampledRequest<float, false, Rule>(p, b, 1).run(team);
          }
        },
        dropped_barrier);
  }
}

template <class Rule, class SerialOp>
void check_threads_equal_serial(SerialOp serial_op, bool chains_only) {
  for (unsigned seed = 0; seed < 24; ++seed) {
    Setting setting{(seed & 1) != 0, (seed & 2) != 0, chains_only || (seed & 4) != 0};
    Form form = static_cast<Form>(seed % 3);
    // Three tiles and a rest, so that parts and threads own different numbers of them.
    SampledCase serial(2, 8, seed % 4 == 0 ? 3200 : 5, seed, seed % 5 == 4, form);
    SampledCase threads = serial;
    serial_op(serial.sampled_params(setting.edited, setting.filtered, setting.chain));
    on_threads<Rule>(threads, setting, 2 + seed % 2);
    CHECK_EQ(threads.sampled_record(), serial.sampled_record());
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

PLANTED_FAULT(target_only_without_the_links_barrier) {
  // Without edits the first barrier is the one before links and tokens are looked at.
  SampledCase c(1, 4, 5, 0, false, Form::kRecord);
  c.verify_lens[0] = 4;
  on_threads<TargetOnlyRule>(c, {false, false, true}, 2, 0);
}

}  // namespace
}  // namespace specfast
