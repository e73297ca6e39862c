#include "accept_case.h"
#include "device_array.h"
#include "ops/accept_chain.h"
#include "testing.h"

namespace specfast {
namespace {

using testing::AcceptCase;
using testing::DeviceArray;

// A case's storage on the device; fetch() brings the record back into the case.
class OnDevice {
 public:
  explicit OnDevice(AcceptCase& c) {
    params = c.params([this](const auto& values) { return upload(values); });
    rows = c.logit_rows();
    rows.logits = upload(c.logits);
    links = {upload(c.next_token), upload(c.next_sibling), nullptr};
    predictions.target_predict = {upload(c.target_predict), false};
  }
  void fetch() {
    for (auto& [host, device] : ints_) *host = device.to_host();
  }

  AcceptParams params;
  TargetRows rows{};
  TargetRows predictions{};
  TreeLinks links{};

 private:
  template <class T>
  T* upload(const std::vector<T>& values) {
    if constexpr (std::is_same_v<T, int32_t>) {
      ints_.emplace_back(const_cast<std::vector<T>*>(&values), DeviceArray<T>(values));
      return ints_.back().second.data();
    } else if constexpr (std::is_same_v<T, float>) {
      floats_.emplace_back(values);
      return floats_.back().data();
    } else {
      bytes_.emplace_back(values);
      return bytes_.back().data();
    }
  }

  std::vector<std::pair<std::vector<int32_t>*, DeviceArray<int32_t>>> ints_;
  std::vector<DeviceArray<float>> floats_;
  std::vector<DeviceArray<uint8_t>> bytes_;
};

// Batch sizes that reach every launch shape, vocabularies around the vector width.
struct Size {
  int batch, nodes, vocab;
};
constexpr Size kSizes[] = {{1, 8, 3},   {1, 1, 1},    {3, 9, 4},     {9, 5, 33},
                           {40, 6, 17}, {70, 4, 130}, {300, 3, 1030}};

TEST(accept_chain_kernel_equals_the_cpu_body) {
  for (Size size : kSizes) {
    for (unsigned seed = 0; seed < 4; ++seed) {
      AcceptCase host(size.batch, size.nodes, size.vocab, seed, seed % 2 == 1);
      AcceptCase device = host;
      accept_chain_cpu({host.params(), host.logit_rows()});
      OnDevice on_device(device);
      accept_chain_cuda({on_device.params, on_device.rows}, nullptr);
      on_device.fetch();
      CHECK_EQ(device.record(), host.record());
    }
  }
}

TEST(accept_tree_kernel_equals_the_cpu_body) {
  for (Size size : kSizes) {
    for (unsigned seed = 0; seed < 4; ++seed) {
      AcceptCase host(size.batch, size.nodes, size.vocab, seed, seed % 2 == 1);
      AcceptCase device = host;
      AcceptTreeParams on_host{host.params(), host.logit_rows(), host.tree_links()};
      on_host.accept.cap_trim_lens = nullptr;
      accept_tree_cpu(on_host);
      OnDevice on_device(device);
      on_device.params.cap_trim_lens = nullptr;
      accept_tree_cuda({on_device.params, on_device.rows, on_device.links}, nullptr);
      on_device.fetch();
      CHECK_EQ(device.record(), host.record());
    }
  }
}

TEST(accept_kernels_on_given_predictions_equal_the_cpu_body) {
  for (unsigned seed = 0; seed < 4; ++seed) {
    AcceptCase host(33, 7, 4, seed, seed % 2 == 1);
    AcceptCase device = host;
    accept_chain_cpu({host.params(), {nullptr, {}, 0, {host.target_predict.data(), false}}});
    OnDevice on_device(device);
    accept_chain_cuda({on_device.params, on_device.predictions}, nullptr);
    on_device.fetch();
    CHECK_EQ(device.record(), host.record());
  }
}

}  // namespace
}  // namespace specfast
