#include "drafter_cache_case.h"
#include "testing.h"
#include "uploads.h"

namespace specfast {
namespace {

using testing::PlacesCase;
using testing::RopeCase;
using testing::same_bits;
using testing::Uploads;

template <class T>
void expect_equal_rope() {
  constexpr typename RopeCase<T>::Size kSizes[] = {
      {1, 1, 32, 8, 128, 128}, {4, 8, 4, 2, 64, 32},    {3, 5, 2, 1, 10, 6},
      {2, 3, 2, 2, 5, 0},      {40, 8, 8, 2, 264, 256}, {0, 1, 1, 1, 8, 8},
  };
  unsigned seed = 0;
  for (const auto& size : kSizes) {
    for (bool is_normed : {false, true}) {
      RopeCase<T> test(size, ++seed, is_normed);
      RopeCase<T> on_cpu = test;
      rope_append_kv_cpu(on_cpu.params());
      Uploads uploads;
      rope_append_kv_cuda(test.params([&](const auto& values) { return uploads(values); }),
                          nullptr);
      for (auto* values : {&test.queries, &test.keys, &test.values}) uploads.fetch(values->data());
      CHECK(same_bits(test.queries, on_cpu.queries));
      CHECK(same_bits(test.keys, on_cpu.keys));
      CHECK(same_bits(test.values, on_cpu.values));
    }
  }
}

TEST(rope_append_kv_float32_equals_the_cpu_body) { expect_equal_rope<float>(); }
TEST(rope_append_kv_bfloat16_equals_the_cpu_body) { expect_equal_rope<BFloat16>(); }

TEST(place_draft_rows_equals_the_cpu_body) {
  for (unsigned seed = 0; seed < 12; ++seed) {
    PlacesCase test(static_cast<int>(seed % 5), 1 + seed * 5, 4 + 60 * (seed % 2), seed % 3, seed);
    PlacesCase on_cpu = test;
    place_draft_rows_cpu(on_cpu.params());
    Uploads uploads;
    place_draft_rows_cuda(test.params([&](const auto& values) { return uploads(values); }),
                          nullptr);
    for (auto* values : {&test.pages, &test.positions, &test.slots, &test.row_counts}) {
      uploads.fetch(values->data());
    }
    CHECK_EQ(test.pages, on_cpu.pages);
    CHECK_EQ(test.positions, on_cpu.positions);
    CHECK_EQ(test.slots, on_cpu.slots);
    CHECK_EQ(test.row_counts, on_cpu.row_counts);
  }
}

}  // namespace
}  // namespace specfast
