#include <deque>

#include "device_array.h"
#include "testing.h"
#include "tree_case.h"

namespace specfast {
namespace {

using testing::DeviceArray;
using testing::kInPlace;
using testing::TreeCase;
using testing::TreeSize;

// Copies of a case's vectors on the device; fetch() brings them all back.
class OnDevice {
 public:
  int32_t* operator()(std::vector<int32_t>& host) {
    ints_.emplace_back(&host, DeviceArray<int32_t>(host));
    return ints_.back().second.data();
  }
  float* operator()(std::vector<float>& host) {
    floats_.emplace_back(host);
    return floats_.back().data();
  }
  void fetch() {
    for (auto& [host, device] : ints_) *host = device.to_host();
  }

 private:
  std::deque<std::pair<std::vector<int32_t>*, DeviceArray<int32_t>>> ints_;
  std::deque<DeviceArray<float>> floats_;
};

// Sizes around the warp, the CTA and the mask's words; the last ones take several CTAs a request,
// and the very last just less than 48 KB of dynamic shared memory.
constexpr TreeSize kSizes[] = {{3, 2, 3, 7},    {2, 4, 4, 33},    {5, 8, 6, 64},    {2, 1, 6, 5},
                               {2, 5, 1, 4},    {300, 2, 2, 1},   {1, 1, 1, 2},     {1, 40, 2, 129},
                               {2, 16, 6, 300}, {1, 32, 8, 1024}, {1, 16, 22, 1024}};
constexpr MaskMode kModes[] = {MaskMode::kBits, MaskMode::kQlen, MaskMode::kFull};

// on_cpu(case) and on_gpu(case, place) leave the same bytes.
template <class OnCpu, class OnGpu>
void expect_equal(OnCpu on_cpu, OnGpu on_gpu) {
  for (TreeSize size : kSizes) {
    for (MaskMode mode : kModes) {
      for (bool unsound : {false, true}) {
        TreeCase host(size, 7, unsound, mode);
        TreeCase device = host;
        on_cpu(host);
        OnDevice place;
        on_gpu(device, [&](auto& values) { return place(values); });
        place.fetch();
        CHECK_EQ(device.written(), host.written());
      }
    }
  }
}

TEST(select_draft_tokens_kernel_equals_the_cpu_body) {
  expect_equal([](TreeCase& c) { select_draft_tokens_cpu(c.select(kInPlace)); },
               [](TreeCase& c, auto place) { select_draft_tokens_cuda(c.select(place), nullptr); });
}

TEST(build_tree_kernel_equals_the_cpu_body) {
  expect_equal([](TreeCase& c) { build_tree_cpu(c.build(kInPlace)); },
               [](TreeCase& c, auto place) { build_tree_cuda(c.build(place), nullptr); });
}

TEST(select_and_build_tree_kernel_equals_the_cpu_body) {
  expect_equal([](TreeCase& c) { select_and_build_tree_cpu(c.select_and_build(kInPlace)); },
               [](TreeCase& c, auto place) {
                 select_and_build_tree_cuda(c.select_and_build(place), nullptr);
               });
}

TEST(tree_from_parents_kernel_equals_the_cpu_body) {
  expect_equal(
      [](TreeCase& c) { tree_from_parents_cpu(c.from_parents(kInPlace)); },
      [](TreeCase& c, auto place) { tree_from_parents_cuda(c.from_parents(place), nullptr); });
}

}  // namespace
}  // namespace specfast
