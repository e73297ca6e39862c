#include "device_array.h"
#include "ops/commit_state.h"
#include "state_case.h"
#include "testing.h"

namespace specfast {
namespace {

using testing::DeviceArray;
using testing::StateCase;

// Runs the kernel on copies and brings pools and status back.
void commit_on_device(StateCase& test) {
  std::vector<DeviceArray<char>> arrays;
  arrays.reserve(64);
  CommitStateParams p = test.params([&](auto& host) {
    auto bytes = reinterpret_cast<const char*>(host.data());
    arrays.emplace_back(std::vector<char>(bytes, bytes + host.size() * sizeof(host[0])));
    using Element = typename std::remove_reference_t<decltype(host)>::value_type;
    return reinterpret_cast<Element*>(arrays.back().data());
  });
  commit_state_cuda(p, nullptr);
  for (DeviceArray<char>& array : arrays) {
    void* data = array.data();
    for (int i = 0; i < p.num_buffers; ++i) {
      if (p.buffers[i].pool == data) test.pools_[i] = array.to_host();
    }
    if (p.status == data) {
      std::vector<char> status = array.to_host();
      memcpy(test.status_.data(), status.data(), status.size());
    }
  }
}

void expect_kernel_equals_cpu(StateCase test) {
  StateCase on_cpu = test;
  commit_state_cpu(on_cpu.params());
  commit_on_device(test);
  CHECK(test.pools_ == on_cpu.pools_);
  CHECK_EQ(test.status_, on_cpu.status_);
}

TEST(commit_state_random_paths) {
  for (unsigned seed = 0; seed < 10; ++seed) {
    for (int batch : {1, 4, 7}) expect_kernel_equals_cpu(StateCase(seed, batch));
  }
}

TEST(commit_state_empty_batch) {
  StateCase test(2, 0);
  StateCase before = test;
  commit_on_device(test);
  CHECK(test.pools_ == before.pools_);
}

TEST(commit_state_bad_requests) {
  StateCase test(3, 5);
  test.commit_lens_ = {-1, StateCase::kWidth + 1, 2, 0, 2};
  test.accept_index_[2 * StateCase::kWidth + 1] = 5 * StateCase::kWidth;
  test.accept_index_[4 * StateCase::kWidth + 1] = 0;
  test.slots_[4] = -1;
  expect_kernel_equals_cpu(test);
}

}  // namespace
}  // namespace specfast
