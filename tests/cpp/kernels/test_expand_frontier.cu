#include "frontier_case.h"
#include "testing.h"
#include "uploads.h"

namespace specfast {
namespace {

using testing::FrontierCase;
using testing::Uploads;

// As many rows as reach every launch shape; vocabularies of less than a group and of many.
template <class T>
void expect_equal_to_the_cpu() {
  using Case = FrontierCase<T>;
  constexpr typename Case::Size kSizes[] = {
      {1, 1, 1, 3},     {2, 3, 5, 40},    {3, 8, 8, 2100},
      {9, 2, 32, 1030}, {40, 8, 8, 3000}, {2, 8, 10, 40000},
  };
  unsigned seed = 0;
  for (const auto& size : kSizes) {
    if (testing::is_skipped(size.batch, size.vocab)) continue;
    for (int variant = 0; variant < 8; ++variant, ++seed) {
      Case host(size, seed, variant % 4 == 3);
      Case device = host;
      expand_frontier_cpu(host.params());
      Uploads uploads;
      expand_frontier_cuda(device.params([&](const auto& values) { return uploads(values); }),
                           nullptr);
      device.for_each_output([&](auto& values) { uploads.fetch(values.data()); });
      CHECK_EQ(device.written(), host.written());
    }
  }
}

TEST(expand_frontier_float32_equals_the_cpu_body) { expect_equal_to_the_cpu<float>(); }
TEST(expand_frontier_bfloat16_equals_the_cpu_body) { expect_equal_to_the_cpu<BFloat16>(); }
TEST(expand_frontier_float16_equals_the_cpu_body) { expect_equal_to_the_cpu<Float16>(); }

}  // namespace
}  // namespace specfast
