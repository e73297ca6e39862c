#include "ops/accept_block.h"
#include "ops/accept_rejection.h"
#include "ops/accept_target_only.h"
#include "sampled_case.h"
#include "testing.h"
#include "uploads.h"

namespace specfast {
namespace {

using testing::SampledCase;
using testing::Uploads;

// Batches that reach every launch shape; vocabularies of less than a group, of some tiles, and of
// more tiles than a cluster has parts.
struct Size {
  int batch, nodes, vocab;
};
constexpr Size kSizes[] = {{1, 8, 3}, {3, 9, 40}, {9, 5, 2100}, {70, 4, 1030}, {2, 6, 40000}};

template <class OnCpu, class OnCuda>
void check_equals_cpu_body(OnCpu on_cpu, OnCuda on_cuda, bool chains_only) {
  unsigned seed = 0;
  for (Size size : kSizes) {
    if (testing::is_skipped(size.batch, size.vocab)) continue;
    for (int variant = 0; variant < 8; ++variant, ++seed) {
      bool edited = (variant & 1) != 0;
      bool filtered = (variant & 2) != 0;
      bool chain = chains_only || (variant & 4) != 0;
      auto form = static_cast<SampledCase::Form>(seed % 3);
      SampledCase host(size.batch, size.nodes, size.vocab, seed, seed % 5 == 4, form);
      SampledCase device = host;
      on_cpu(host.sampled_params(edited, filtered, chain));
      Uploads uploads;
      auto place = [&](const auto& values) { return uploads(values); };
      SampledAcceptParams p = device.sampled_params(place, edited, filtered, chain);
      if (seed / 2 % 2 == 1) p.stored_rows = place(device.stored_rows);
      on_cuda(p);
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
  check_equals_cpu_body([](const SampledAcceptParams& p) { accept_target_only_cpu(p); },
                        [](const SampledAcceptParams& p) { accept_target_only_cuda(p, nullptr); },
                        false);
}
TEST(accept_rejection_kernel_equals_the_cpu_body) {
  check_equals_cpu_body([](const SampledAcceptParams& p) { accept_rejection_cpu(p); },
                        [](const SampledAcceptParams& p) { accept_rejection_cuda(p, nullptr); },
                        false);
}
TEST(accept_block_kernel_equals_the_cpu_body) {
  check_equals_cpu_body([](const SampledAcceptParams& p) { accept_block_cpu(p); },
                        [](const SampledAcceptParams& p) { accept_block_cuda(p, nullptr); }, true);
}

}  // namespace
}  // namespace specfast
