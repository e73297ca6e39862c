#include <cmath>

#include "attention_case.h"
#include "testing.h"
#include "uploads.h"

namespace specfast {
namespace {

using testing::AttentionCase;
using testing::AttentionShape;
using testing::Uploads;

template <class T, class Kv>
std::vector<T> run_kernel(AttentionCase<T, Kv>& c, const std::vector<int32_t>* workspace = nullptr,
                          int max_rows = kMaxAttentionRows) {
  Uploads uploads;
  auto place = [&](const auto& values) { return uploads(values); };
  VerifyAttentionParams p = c.params(place);
  p.max_rows = min_of(p.max_rows, max_rows);
  if (workspace != nullptr) {
    p.workspace = uploads(*workspace);
    p.workspace_bytes = static_cast<int64_t>(workspace->size()) * 4;
  }
  // A second run finds the workspace as the first one left it.
  verify_attention_cuda(p, nullptr);
  verify_attention_cuda(p, nullptr);
  uploads.fetch(c.out.data());
  return c.out;
}

// Both are rounded to T once, and the kernel rounds weights to T before it multiplies them: in all
// three roundings, relative to the weighted sum of |value|. Sums and scores are
// float32 in another order; the scores of these cases stay below 64, where 2^-18 of one is far
// above what their sums are off by, and a weight is off by as much in relative terms.
template <class T, class Kv = T>
void check_close(const AttentionShape& shape, unsigned seed) {
  AttentionCase<T, Kv> device(shape, seed);
  AttentionCase<T, Kv> host = device;
  AttentionCase<T, Kv> magnitudes = device;
  magnitudes.take_magnitudes();
  auto in_place = [](auto& values) { return values.data(); };
  verify_attention_cpu(host.params(in_place));
  verify_attention_cpu(magnitudes.params(in_place));
  std::vector<int32_t> workspace(1 << 22, 0);
  run_kernel(device, &workspace);
  const float unit = sizeof(T) == 4 ? 0x1p-20f : std::is_same_v<T, BFloat16> ? 0x1p-8f : 0x1p-11f;
  for (size_t i = 0; i < host.out.size(); ++i) {
    float got = to_float(device.out[i]);
    float want = to_float(host.out[i]);
    float bound = (3.1f * unit + 0x1p-12f) * to_float(magnitudes.out[i]) + 1e-7f;
    if (std::fabs(got - want) <= bound) continue;
    throw testing::Failure("out[" + std::to_string(i) + "]: the kernel wrote " +
                           std::to_string(got) + ", the CPU body " + std::to_string(want) + " +- " +
                           std::to_string(bound));
  }
}

template <class T>
void check_all_close(const AttentionShape& shape, unsigned seed) {
  check_close<BFloat16>(shape, seed);
  check_close<Float16>(shape, seed);
  check_close<BFloat16, Float8>(shape, seed);
  check_close<Float16, Float8>(shape, seed);
  if (sizeof(T) == 4) check_close<float>(shape, seed);
  if (sizeof(T) == 4) check_close<float, Float8>(shape, seed);
}

constexpr AttentionShape::Window kWindows[] = {AttentionShape::kChain, AttentionShape::kBlock,
                                               AttentionShape::kTree};

TEST(attention_kernels_agree_with_the_cpu_body) {
  unsigned seed = 0;
  for (int head_dim : {64, 128, 256, 40}) {
    for (auto window : kWindows) {
      for (int heads : {2, 6, 16}) {
        AttentionShape shape{{0, 30, 600, 63}, {3, 0, 5, 1}};
        shape.head_dim = head_dim;
        shape.window = window;
        shape.heads = heads;
        shape.page_size = seed % 3 == 0 ? 1 : seed % 3 == 1 ? 16 : 7;
        shape.sliding_window = seed % 4 == 3 ? 40 : 0;
        check_all_close<float>(shape, ++seed);
      }
    }
  }
}

TEST(attention_kernels_agree_on_many_rows) {
  for (auto window : kWindows) {
    AttentionShape shape{{700, 5}, {128, 70}};
    shape.heads = 8;
    shape.head_dim = 128;
    shape.window = window;
    check_all_close<void*>(shape, 40);
  }
}

TEST(attention_kernels_agree_on_long_prefixes) {
  for (int prefix : {511, 2049, 5000, 8191, 8192, 10300}) {
    AttentionShape shape{{prefix, 1}, {4, 2}};
    shape.sliding_window = prefix == 5000 ? 2500 : prefix == 10300 ? 8700 : 0;
    check_all_close<void*>(shape, 50);
  }
}

// The bits of a row do not depend on how its keys are shared out.
TEST(attention_is_the_same_under_any_split) {
  AttentionShape shape{{12000, 100, 2100}, {7, 3, 20}};
  shape.heads = 8;
  shape.head_dim = 128;
  for (size_t words : {size_t{0}, size_t{33000}, size_t{1} << 17, size_t{1} << 22}) {
    AttentionCase<BFloat16> whole(shape, 60);
    AttentionCase<BFloat16> split = whole;
    std::vector<int32_t> workspace(words, 0);
    run_kernel(whole, nullptr);
    run_kernel(split, words == 0 ? nullptr : &workspace, 20);
    CHECK(memcmp(whole.out.data(), split.out.data(), whole.out.size() * 2) == 0);
  }
}

// Nor on how many rows a CTA takes at once: 128, as there are more than 64 rows in all, or 64 and
// chunks apart.
TEST(attention_is_the_same_in_tiles_of_any_size) {
  for (int head_dim : {64, 128}) {
    AttentionShape shape{{9300, 700, 40}, {7, 7, 7}};
    shape.heads = 8;
    shape.head_dim = head_dim;
    AttentionCase<Float16> large(shape, 70);
    AttentionCase<Float16> small = large;
    std::vector<int32_t> workspace(1 << 22, 0);
    run_kernel(large);
    run_kernel(small, &workspace, 7);
    CHECK(memcmp(large.out.data(), small.out.data(), large.out.size() * 2) == 0);
  }
}

}  // namespace
}  // namespace specfast
