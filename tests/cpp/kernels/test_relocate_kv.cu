#include "device_array.h"
#include "ops/relocate_kv.h"
#include "relocate_case.h"
#include "testing.h"

namespace specfast {
namespace {

using testing::DeviceArray;
using testing::RelocateCase;

// Runs the kernel on copies and brings buffers and status back.
void relocate_on_device(RelocateCase& test) {
  std::vector<DeviceArray<char>> arrays;
  RelocateKvParams p = test.params([&](auto& host) {
    auto bytes = reinterpret_cast<const char*>(host.data());
    arrays.emplace_back(std::vector<char>(bytes, bytes + host.size() * sizeof(host[0])));
    using Element = typename std::remove_reference_t<decltype(host)>::value_type;
    return reinterpret_cast<Element*>(arrays.back().data());
  });
  relocate_kv_cuda(p, nullptr);
  for (DeviceArray<char>& array : arrays) {
    void* data = array.data();
    for (int i = 0; i < p.num_buffers; ++i) {
      if (p.buffers[i] == data) test.buffers_[i] = array.to_host();
    }
    if (p.status == data) {
      std::vector<char> status = array.to_host();
      memcpy(test.status_.data(), status.data(), status.size());
    }
  }
}

void expect_kernel_equals_cpu(RelocateCase test) {
  RelocateCase on_cpu = test;
  relocate_kv_cpu(on_cpu.params());
  relocate_on_device(test);
  CHECK(test.buffers_ == on_cpu.buffers_);
  CHECK_EQ(test.status_, on_cpu.status_);
}

TEST(relocate_kv_random_windows) {
  for (unsigned seed = 0; seed < 10; ++seed) expect_kernel_equals_cpu(RelocateCase(seed, 3, 21));
}

TEST(relocate_kv_one_long_path) { expect_kernel_equals_cpu(RelocateCase(1, 1, 64)); }

TEST(relocate_kv_empty_batch) {
  RelocateCase test(2, 0, 21);
  RelocateCase before = test;
  relocate_on_device(test);
  CHECK(test.buffers_ == before.buffers_);
}

TEST(relocate_kv_bad_paths_and_padded_slots) {
  RelocateCase test(3, 3, 21);
  test.path(0)[0] = 20;
  test.commit_lens_[1] = 0;
  test.slots_[2 * 21] = -1;
  expect_kernel_equals_cpu(test);
}

}  // namespace
}  // namespace specfast
