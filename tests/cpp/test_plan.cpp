#include "core/thread_team.h"
#include "plan_case.h"
#include "testing.h"

namespace specfast {
namespace {

using testing::kForms;
using testing::PlanCase;

constexpr auto kInPlace = [](auto& values) { return values.data(); };

struct Size {
  int batch, drafts;
};
constexpr Size kSizes[] = {{1, 1}, {2, 3}, {5, 4}, {9, 2}, {2, 17}, {3, 0}, {0, 2}};

void schedule_on_threads(PlanCase& c, ConfidenceForm form, int dropped_barrier = -1) {
  ScheduleVerifyLensParams p = c.schedule(kInPlace, form);
  ThreadTeam::run(
      1, 4,
      [&](ThreadTeam& team) {
        schedule_verify_lens_batch(team, p, schedule_verify_lens_scratch(team, p));
      },
      dropped_barrier);
}
void window_on_threads(PlanCase& c, int parts, int dropped_barrier = -1) {
  BuildVerifyWindowParams p = c.window(kInPlace);
  ThreadTeam::run(
      parts, 4,
      [&](ThreadTeam& team) {
        build_verify_window_batch(team, p, build_verify_window_scratch(team, p, parts));
      },
      dropped_barrier);
}

TEST(scheduling_on_threads_equals_serial) {
  for (Size size : kSizes) {
    for (unsigned seed = 0; seed < 6; ++seed) {
      for (ConfidenceForm form : kForms) {
        PlanCase serial(size.batch, size.drafts, seed, seed % 2 == 1);
        PlanCase threads = serial;
        schedule_verify_lens_cpu(serial.schedule(kInPlace, form));
        schedule_on_threads(threads, form);
        CHECK_EQ(threads.written(), serial.written());
      }
    }
  }
}

TEST(a_window_on_threads_equals_serial) {
  for (Size size : kSizes) {
    for (unsigned seed = 0; seed < 6; ++seed) {
      for (int parts : {1, 2, 7}) {
        PlanCase serial(size.batch, size.drafts, seed, seed % 2 == 1);
        PlanCase threads = serial;
        build_verify_window_cpu(serial.window(kInPlace));
        window_on_threads(threads, parts);
        CHECK_EQ(threads.written(), serial.written());
      }
    }
  }
}

TEST(survivals_never_rise) {
  float given[] = {0.5f, 0.25f, 0.75f, NAN, 1.0f, INFINITY, -0.0f};
  float expected[] = {0.5f, 0.25f, 0.25f, 0.0f, 0.0f, 0.0f, 0.0f};
  SurvivalChain chain(ConfidenceForm::kSurvival);
  for (int i = 0; i < 7; ++i) {
    float survival = chain.next(given[i], 1.0f);
    CHECK_EQ(float_bits(survival), float_bits(expected[i]));
  }
  CHECK_EQ(chain.status(), kBadParam);
}

TEST(keys_order_survivals) {
  float ascending[] = {0.0f, 1e-45f, 1e-38f, 0.1f, 0.5f, 1.0f};
  CHECK(survival_key(0.0f) > 0);
  for (int i = 1; i < 6; ++i) CHECK(survival_key(ascending[i - 1]) < survival_key(ascending[i]));
}

TEST(a_sigmoid_is_close_to_the_real_one) {
  for (int i = -800; i <= 800; ++i) {
    float x = static_cast<float>(i) / 40;
    double exact = 1 / (1 + std::exp(-static_cast<double>(x) / 1.5));
    // Three roundings of the exponent, and those of its power and of the quotient.
    CHECK(std::fabs(sigmoid(x / 1.5f) - exact) <= (4e-7 + 2e-7 * std::fabs(x / 1.5)) * exact);
  }
}

// One fault per barrier of the bodies.
PLANTED_FAULT(schedule_without_the_barrier_after_the_last_tie) {
  // One request of equal confidences: the thread of its chain is not the one that finds the tie.
  float equal[] = {0.5f, 0.5f, 0.5f, 0.5f};
  float survival[4];
  int32_t len;
  int32_t status;
  ScheduleVerifyLensParams p{};
  p.batch_size = 1;
  p.num_drafts = 4;
  p.confidence = equal;
  p.budget = 3;
  p.verify_lens = &len;
  p.survival = survival;
  p.status = &status;
  ThreadTeam::run(
      1, 4,
      [&](ThreadTeam& team) {
        schedule_verify_lens_batch(team, p, schedule_verify_lens_scratch(team, p));
      },
      0);
}
PLANTED_FAULT(window_without_the_barrier_after_the_first_rows) {
  PlanCase c(5, 4, 0, false);
  window_on_threads(c, 2, 0);
}

}  // namespace
}  // namespace specfast
