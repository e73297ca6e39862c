#include "core/thread_team.h"
#include "drafter_rows_case.h"
#include "testing.h"

namespace specfast {
namespace {

using testing::ConvCase;
using testing::EagleCase;
using testing::GateCase;
using testing::NormCase;
using testing::same_bits;

template <class T>
void norm_on_threads(const FusedAddRmsNormParams& p, int dropped_barrier = -1) {
  for (int32_t row = 0; row < p.num_rows; ++row) {
    ThreadTeam::run(
        1, 4, [&](ThreadTeam& team) { RowOfNorms<T>{p, row}.run(team); }, dropped_barrier);
  }
}

template <class T>
void gather_on_threads(const GatherEagleInputsParams& p, int parts, int dropped_barrier = -1) {
  for (int32_t i = 0; i < p.batch_size * p.num_nodes; ++i) {
    ThreadTeam::run(
        parts, 4, [&](ThreadTeam& team) { EagleInput<T>{p, i}.run(team); }, dropped_barrier);
  }
}

template <class T>
void expect_equal_norms() {
  unsigned seed = 0;
  for (testing::RowsSize size : {testing::RowsSize{2, 40}, {3, 13}, {1, 4104}}) {
    ++seed;
    NormCase<T> serial(size, seed, seed % 2 == 1);
    NormCase<T> threads = serial;
    NormCase<T> before = serial;
    fused_add_rms_norm_cpu(serial.params());
    norm_on_threads<T>(threads.params());
    CHECK(same_bits(threads.out, serial.out));
    CHECK(same_bits(threads.sum, serial.sum));
    CHECK(!same_bits(before.out, serial.out));
  }
}

TEST(threads_norm_as_one_thread) {
  expect_equal_norms<float>();
  expect_equal_norms<BFloat16>();
  expect_equal_norms<Float16>();
}

TEST(threads_gate_as_one_thread) {
  for (testing::RowsSize size : {testing::RowsSize{2, 40}, {3, 13}}) {
    GateCase<BFloat16> serial(size, 1);
    GateCase<BFloat16> threads = serial;
    GateCase<BFloat16> before = serial;
    silu_and_mul_cpu(serial.params());
    SiluAndMulParams p = threads.params();
    for (int32_t row = 0; row < size.rows; ++row) {
      ThreadTeam::run(2, 4, [&](ThreadTeam& team) { GatedRow<BFloat16>{p, row}.run(team); });
    }
    CHECK(same_bits(threads.out, serial.out));
    CHECK(!same_bits(before.out, serial.out));
  }
}

TEST(threads_convolve_as_one_thread) {
  for (ConvCase<float>::Size size : {ConvCase<float>::Size{2, 5, 48, 3, 16}, {2, 3, 30, 4, 5}}) {
    ConvCase<float> serial(size, 1);
    ConvCase<float> threads = serial;
    ConvCase<float> before = serial;
    grouped_dynamic_conv_cpu(serial.params());
    GroupedDynamicConvParams p = threads.params();
    for (int32_t i = 0; i < size.batch * size.rows; ++i) {
      ThreadTeam::run(2, 4, [&](ThreadTeam& team) { ConvolvedRow<float>{p, i}.run(team); });
    }
    CHECK(same_bits(threads.out, serial.out));
    CHECK(!same_bits(before.out, serial.out));
  }
}

TEST(threads_gather_as_one_thread) {
  for (unsigned seed = 0; seed < 8; ++seed) {
    int width = seed % 3 == 0 ? 13 : 24;
    EagleCase<float> serial({2, 3, width}, seed, seed % 2 == 1, seed % 4 < 2);
    EagleCase<float> threads = serial;
    EagleCase<float> before = serial;
    gather_eagle_inputs_cpu(serial.params());
    gather_on_threads<float>(threads.params(), 1 + seed % 2);
    CHECK(same_bits(threads.out, serial.out));
    CHECK(same_bits(threads.gathered, serial.gathered));
    CHECK(!same_bits(before.out, serial.out));
  }
}

// The running sums are written before it and read after it.
PLANTED_FAULT(sums_before_the_barrier) {
  NormCase<float> test({1, 40}, 1, false);
  norm_on_threads<float>(test.params(), 0);
}

// A part that makes both halves writes the sums of the second over those of the first.
PLANTED_FAULT(halves_without_a_barrier) {
  EagleCase<float> test({1, 1, 40}, 1, false, true);
  test.tokens[0] = 0;
  gather_on_threads<float>(test.params(), 1, 1);
}

}  // namespace
}  // namespace specfast
