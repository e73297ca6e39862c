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
constexpr Size kSizes[] = {{1, 8, 3},     {3, 9, 40},    {9, 5, 2100},
                           {70, 4, 1030}, {130, 3, 520}, {2, 6, 40000}};

void fetch_record(Uploads& uploads, SampledCase& device) {
  for (void* part :
       {static_cast<void*>(device.per_request.data()), static_cast<void*>(device.per_step.data()),
        static_cast<void*>(device.predict.data()), static_cast<void*>(device.slots.data()),
        static_cast<void*>(device.logprobs.data())}) {
    uploads.fetch(part);
  }
}

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
      fetch_record(uploads, device);
      CHECK_EQ(device.sampled_record(), host.sampled_record());
    }
  }
}

// Rows of a chain at once, twice with the same workspace.
template <class OnCpu, class OnCuda>
void check_rows_at_once_equal_cpu_body(OnCpu on_cpu, OnCuda on_cuda) {
  unsigned seed = 0;
  for (Size size : kSizes) {
    if (testing::is_skipped(size.batch, size.vocab)) continue;
    for (int variant = 0; variant < 6; ++variant, ++seed) {
      bool filtered = variant % 2 == 1;
      auto form = static_cast<SampledCase::Form>(variant / 2);
      SampledCase host(size.batch, size.nodes, size.vocab, seed, seed % 5 == 4, form);
      SampledCase device = host;
      Uploads uploads;
      auto change = [&](SampledAcceptParams p) {
        p.accept.cap_trim_lens = nullptr;
        if (seed % 3 != 0) p.logprobs.logprobs = nullptr;
        return p;
      };
      on_cpu(change(host.sampled_params(false, filtered, true)));
      auto place = [&](const auto& values) { return uploads(values); };
      SampledAcceptParams p = change(device.sampled_params(place, false, filtered, true));
      p.outcomes = place(device.outcomes);
      for (int run = 0; run < 2; ++run) {
        on_cuda(p);
        fetch_record(uploads, device);
        CHECK_EQ(device.sampled_record(), host.sampled_record());
      }
      uploads.fetch(device.outcomes.data());
      for (const RowOutcome& outcome : device.outcomes) CHECK_EQ(outcome.progress, uint64_t{0});
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
TEST(rows_at_once_by_target_only_equal_the_cpu_body) {
  check_rows_at_once_equal_cpu_body(
      [](const SampledAcceptParams& p) { accept_target_only_cpu(p); },
      [](const SampledAcceptParams& p) { accept_target_only_cuda(p, nullptr); });
}
TEST(rows_at_once_by_rejection_equal_the_cpu_body) {
  check_rows_at_once_equal_cpu_body(
      [](const SampledAcceptParams& p) { accept_rejection_cpu(p); },
      [](const SampledAcceptParams& p) { accept_rejection_cuda(p, nullptr); });
}
TEST(accept_block_kernel_equals_the_cpu_body) {
  check_equals_cpu_body([](const SampledAcceptParams& p) { accept_block_cpu(p); },
                        [](const SampledAcceptParams& p) { accept_block_cuda(p, nullptr); }, true);
}

}  // namespace
}  // namespace specfast
