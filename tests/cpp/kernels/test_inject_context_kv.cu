#include "context_case.h"
#include "testing.h"
#include "uploads.h"

namespace specfast {
namespace {

using testing::ContextCase;
using testing::Uploads;

template <class T>
void expect_kernel_equals_cpu(ContextCase<T> test) {
  ContextCase<T> on_cpu = test;
  inject_context_kv_cpu(on_cpu.params());
  Uploads uploads;
  inject_context_kv_cuda(test.params([&](const auto& values) { return uploads(values); }), nullptr);
  for (auto& buffer : test.buffers_) uploads.fetch(buffer.data());
  uploads.fetch(test.status_.data());
  CHECK(test.buffers_ == on_cpu.buffers_);
  CHECK_EQ(test.status_, on_cpu.status_);
}

template <class T>
void expect_equal_at_all_sizes() {
  constexpr typename ContextCase<T>::Size kSizes[] = {
      {1, 1, 8, 0},   {4, 2, 128, 128}, {3, 8, 64, 32},   {40, 2, 10, 6},
      {2, 5, 64, 64}, {3, 3, 16, 16},   {2, 1, 264, 256},
  };
  unsigned seed = 0;
  for (const auto& size : kSizes) {
    for (bool by_path : {false, true})
      expect_kernel_equals_cpu(ContextCase<T>(size, ++seed, by_path));
  }
}

TEST(inject_context_kv_float32_equals_the_cpu_body) { expect_equal_at_all_sizes<float>(); }
TEST(inject_context_kv_bfloat16_equals_the_cpu_body) { expect_equal_at_all_sizes<BFloat16>(); }

TEST(inject_context_kv_bad_requests) {
  ContextCase<BFloat16> test({5, 2, 64, 64}, 3, true);
  test.commit_lens_ = {-1, 3, 2, 0, test.kRows + 1};
  test.accept_index_[test.kRows + 1] = -1;
  test.prefix_lens_[2] = test.kPages * test.kPageSize - 1;
  test.prefix_lens_[3] = -1;
  expect_kernel_equals_cpu(test);
}

TEST(inject_context_kv_empty_batch) {
  expect_kernel_equals_cpu(ContextCase<float>({0, 1, 8, 8}, 1, false));
}

}  // namespace
}  // namespace specfast
