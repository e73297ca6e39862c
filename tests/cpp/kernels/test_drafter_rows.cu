#include "drafter_rows_case.h"
#include "testing.h"
#include "uploads.h"

namespace specfast {
namespace {

using testing::ConvCase;
using testing::EagleCase;
using testing::GateCase;
using testing::NormCase;
using testing::RowsSize;
using testing::same_bits;
using testing::Uploads;

constexpr RowsSize kSizes[] = {{1, 4096}, {3, 40}, {5, 13}, {2, 8200}, {1, 1}, {70, 2560}, {0, 8}};

template <class T>
void expect_equal_rows() {
  unsigned seed = 0;
  for (RowsSize size : kSizes) {
    for (bool has_residual : {false, true}) {
      NormCase<T> test(size, ++seed, has_residual);
      NormCase<T> on_cpu = test;
      fused_add_rms_norm_cpu(on_cpu.params());
      Uploads uploads;
      fused_add_rms_norm_cuda(test.params([&](const auto& values) { return uploads(values); }),
                              nullptr);
      uploads.fetch(test.out.data());
      uploads.fetch(test.sum.data());
      CHECK(same_bits(test.out, on_cpu.out));
      CHECK(same_bits(test.sum, on_cpu.sum));
    }
    GateCase<T> test(size, ++seed);
    GateCase<T> on_cpu = test;
    silu_and_mul_cpu(on_cpu.params());
    Uploads uploads;
    silu_and_mul_cuda(test.params([&](const auto& values) { return uploads(values); }), nullptr);
    uploads.fetch(test.out.data());
    CHECK(same_bits(test.out, on_cpu.out));
  }
}

TEST(drafter_rows_float32_equal_the_cpu_bodies) { expect_equal_rows<float>(); }
TEST(drafter_rows_bfloat16_equal_the_cpu_bodies) { expect_equal_rows<BFloat16>(); }
TEST(drafter_rows_float16_equal_the_cpu_bodies) { expect_equal_rows<Float16>(); }

template <class T>
void expect_equal_inputs() {
  constexpr
      typename EagleCase<T>::Size kNodes[] = {{1, 1, 4096}, {3, 8, 40}, {2, 5, 13}, {0, 1, 8}};
  unsigned seed = 0;
  for (const auto& size : kNodes) {
    for (int form = 0; form < 4; ++form) {
      EagleCase<T> test(size, ++seed, form % 2 == 1, form / 2 == 1);
      EagleCase<T> on_cpu = test;
      gather_eagle_inputs_cpu(on_cpu.params());
      Uploads uploads;
      gather_eagle_inputs_cuda(test.params([&](const auto& values) { return uploads(values); }),
                               nullptr);
      uploads.fetch(test.out.data());
      uploads.fetch(test.gathered.data());
      CHECK(same_bits(test.out, on_cpu.out));
      CHECK(same_bits(test.gathered, on_cpu.gathered));
    }
  }
}

template <class T>
void expect_equal_convolutions() {
  constexpr typename ConvCase<T>::Size kBlocks[] = {
      {1, 8, 4096, 2, 16}, {3, 5, 48, 4, 16}, {2, 3, 30, 3, 5}, {2, 2, 16, 5, 8}, {0, 8, 16, 2, 8}};
  unsigned seed = 0;
  for (const auto& size : kBlocks) {
    ConvCase<T> test(size, ++seed);
    ConvCase<T> on_cpu = test;
    grouped_dynamic_conv_cpu(on_cpu.params());
    Uploads uploads;
    grouped_dynamic_conv_cuda(test.params([&](const auto& values) { return uploads(values); }),
                              nullptr);
    uploads.fetch(test.out.data());
    CHECK(same_bits(test.out, on_cpu.out));
  }
}

TEST(grouped_dynamic_conv_float32_equals_the_cpu_body) { expect_equal_convolutions<float>(); }
TEST(grouped_dynamic_conv_bfloat16_equals_the_cpu_body) { expect_equal_convolutions<BFloat16>(); }

TEST(gather_eagle_inputs_float32_equals_the_cpu_body) { expect_equal_inputs<float>(); }
TEST(gather_eagle_inputs_bfloat16_equals_the_cpu_body) { expect_equal_inputs<BFloat16>(); }

}  // namespace
}  // namespace specfast
