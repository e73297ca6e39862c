#include "device_array.h"
#include "ops/accept_block.h"
#include "ops/accept_rejection.h"
#include "ops/accept_target_only.h"
#include "sampled_case.h"
#include "testing.h"

namespace specfast {
namespace {

using testing::DeviceArray;
using testing::SampledCase;

// Copies of host vectors on the device, whatever they hold; fetch() brings back what a record is
// made of.
class Uploads {
 public:
  template <class T>
  T* operator()(const std::vector<T>& values) {
    std::vector<char> bytes(values.size() * sizeof(T));
    if (!bytes.empty()) memcpy(bytes.data(), values.data(), bytes.size());
    arrays_.emplace_back(const_cast<T*>(values.data()), DeviceArray<char>(bytes));
    return reinterpret_cast<T*>(arrays_.back().second.data());
  }
  void fetch(const void* host) {
    for (auto& [target, device] : arrays_) {
      if (target != host) continue;
      std::vector<char> bytes = device.to_host();
      memcpy(target, bytes.data(), bytes.size());
    }
  }

 private:
  std::vector<std::pair<void*, DeviceArray<char>>> arrays_;
};

struct Op {
  void (*on_cpu)(const SampledAcceptParams&);
  void (*on_cuda)(const SampledAcceptParams&, CUstream_st*);
  bool chains_only;
};

// Batches that reach every launch shape; vocabularies of less than a group, of some tiles, and of
// more tiles than a cluster has parts.
struct Size {
  int batch, nodes, vocab;
};
constexpr Size kSizes[] = {{1, 8, 3}, {3, 9, 40}, {9, 5, 2100}, {70, 4, 1030}, {2, 6, 40000}};

void check_equals_cpu_body(const Op& op) {
  unsigned seed = 0;
  for (Size size : kSizes) {
    for (int variant = 0; variant < 8; ++variant, ++seed) {
      bool edited = (variant & 1) != 0;
      bool filtered = (variant & 2) != 0;
      bool chain = op.chains_only || (variant & 4) != 0;
      auto form = static_cast<SampledCase::Form>(seed % 3);
      SampledCase host(size.batch, size.nodes, size.vocab, seed, seed % 5 == 4, form);
      SampledCase device = host;
      op.on_cpu(host.sampled_params(edited, filtered, chain));
      Uploads uploads;
      auto place = [&](const auto& values) { return uploads(values); };
      op.on_cuda(device.sampled_params(place, edited, filtered, chain), nullptr);
      for (void* part :
           {static_cast<void*>(device.per_request.data()),
            static_cast<void*>(device.per_step.data()), static_cast<void*>(device.predict.data()),
            static_cast<void*>(device.slots.data()), static_cast<void*>(device.logprobs.data())}) {
        uploads.fetch(part);
      }
      CHECK_EQ(device.sampled_record(), host.sampled_record());
    }
  }
}

TEST(accept_target_only_kernel_equals_the_cpu_body) {
  check_equals_cpu_body({accept_target_only_cpu, accept_target_only_cuda, false});
}
TEST(accept_rejection_kernel_equals_the_cpu_body) {
  check_equals_cpu_body({accept_rejection_cpu, accept_rejection_cuda, false});
}
TEST(accept_block_kernel_equals_the_cpu_body) {
  check_equals_cpu_body({accept_block_cpu, accept_block_cuda, true});
}

}  // namespace
}  // namespace specfast
