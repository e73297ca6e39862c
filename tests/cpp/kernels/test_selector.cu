#include "selector_case.h"
#include "testing.h"
#include "uploads.h"

namespace specfast {
namespace {

using testing::SelectorCase;
using testing::Uploads;

// Rows of codebooks that fit into shared memory, and that do not.
template <class W>
void expect_equal_to_the_cpu() {
  using Case = SelectorCase<W>;
  constexpr typename Case::Size kSizes[] = {
      {1, 1, 1, 8, 40},    {3, 7, 16, 256, 300}, {70, 3, 5, 16, 60},
      {2, 16, 32, 64, 99}, {2, 15, 32, 512, 99}, {4, 64, 32, 8, 99},
  };
  unsigned seed = 0;
  for (const auto& size : kSizes) {
    for (int variant = 0; variant < 6; ++variant, ++seed) {
      Case host(size, seed, variant % 3 == 2);
      Case device = host;
      walk_selector_cpu(host.params());
      Uploads uploads;
      walk_selector_cuda(device.params([&](const auto& values) { return uploads(values); }),
                         nullptr);
      uploads.fetch(device.tokens.data());
      uploads.fetch(device.q.data());
      uploads.fetch(device.status.data());
      CHECK_EQ(device.written(), host.written());
    }
  }
}

TEST(walk_selector_float32_equals_the_cpu_body) { expect_equal_to_the_cpu<float>(); }
TEST(walk_selector_bfloat16_equals_the_cpu_body) { expect_equal_to_the_cpu<BFloat16>(); }

}  // namespace
}  // namespace specfast
