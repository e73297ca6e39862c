#include "plan_case.h"
#include "testing.h"
#include "uploads.h"

namespace specfast {
namespace {

using testing::kForms;
using testing::PlanCase;
using testing::Uploads;

// One thread per draft and several drafts per thread; one CTA and many.
struct Size {
  int batch, drafts;
};
constexpr Size kSizes[] = {{1, 1}, {3, 7}, {40, 7}, {300, 7}, {900, 3}, {2, 300}, {4, 0}};

constexpr auto kInPlace = [](auto& values) { return values.data(); };

void fetch(Uploads& uploads, PlanCase& c) {
  for (auto* part : {&c.lens, &c.rows, &c.indptr, &c.status}) uploads.fetch(part->data());
  uploads.fetch(c.survival.data());
}

TEST(schedule_verify_lens_kernel_equals_the_cpu_body) {
  unsigned seed = 0;
  for (Size size : kSizes) {
    for (ConfidenceForm form : kForms) {
      for (bool unsound : {false, true}) {
        PlanCase host(size.batch, size.drafts, ++seed, unsound);
        PlanCase device = host;
        schedule_verify_lens_cpu(host.schedule(kInPlace, form));
        Uploads uploads;
        auto place = [&](const auto& values) { return uploads(values); };
        schedule_verify_lens_cuda(device.schedule(place, form), nullptr);
        fetch(uploads, device);
        CHECK_EQ(device.written(), host.written());
      }
    }
  }
}

TEST(build_verify_window_kernel_equals_the_cpu_body) {
  unsigned seed = 0;
  for (Size size : kSizes) {
    for (bool unsound : {false, true}) {
      PlanCase host(size.batch, size.drafts, ++seed, unsound);
      PlanCase device = host;
      build_verify_window_cpu(host.window(kInPlace));
      Uploads uploads;
      auto place = [&](const auto& values) { return uploads(values); };
      build_verify_window_cuda(device.window(place), nullptr);
      fetch(uploads, device);
      CHECK_EQ(device.written(), host.written());
    }
  }
}

}  // namespace
}  // namespace specfast
