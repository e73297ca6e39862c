#include "context_case.h"
#include "core/thread_team.h"
#include "testing.h"

namespace specfast {
namespace {

using testing::ContextCase;

template <class T>
void inject_on_threads(const InjectContextKvParams& p) {
  for (int32_t b = 0; b < p.batch_size; ++b) {
    ThreadTeam::run(2, 4, [&](ThreadTeam& team) { ContextInjection<T>{p, b}.run(team); });
  }
}

template <class T>
void expect_threads_equal_serial(typename ContextCase<T>::Size size) {
  for (unsigned seed = 0; seed < 6; ++seed) {
    ContextCase<T> serial(size, seed, seed % 2 == 1);
    ContextCase<T> threads = serial;
    ContextCase<T> before = serial;
    inject_context_kv_cpu(serial.params());
    inject_on_threads<T>(threads.params());
    CHECK(threads.buffers_ == serial.buffers_);
    CHECK(threads.buffers_ != before.buffers_);
    CHECK_EQ(threads.status_, std::vector<int32_t>(size.batch, kNanLogits));
  }
}

TEST(threads_store_the_same_context_as_one_thread) {
  expect_threads_equal_serial<BFloat16>({4, 2, 32, 16});
  expect_threads_equal_serial<float>({3, 2, 10, 6});
}

TEST(bad_requests_store_nothing) {
  ContextCase<float> test({6, 2, 8, 8}, 1, true);
  test.commit_lens_ = {-1, test.kRows + 1, 2, 2, 2, 2};
  test.accept_index_[2 * test.kRows + 1] = 6 * test.kRows;
  test.prefix_lens_[3] = test.kPages * test.kPageSize - 1;
  test.table_rows_[4] = 6;
  test.prefix_lens_[5] = 0;
  test.page_table_[test.table_rows_[5] * test.kPages] = 6 * test.kPages + 1;
  ContextCase<float> before = test;
  inject_on_threads<float>(test.params());
  CHECK(test.buffers_ == before.buffers_);
  std::vector<int32_t> expected;
  for (int32_t bit : {kBadPath, kBadPath, kBadPath, kBadParam, kBadParam, kBadParam}) {
    expected.push_back(kNanLogits | bit);
  }
  CHECK_EQ(test.status_, expected);
}

}  // namespace
}  // namespace specfast
