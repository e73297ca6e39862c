#include "sample_rows_case.h"
#include "testing.h"
#include "uploads.h"

namespace specfast {
namespace {

using testing::SampleRowsCase;
using testing::Uploads;

// As many rows as reach every launch shape; vocabularies of less than a group and of many.
struct Size {
  int batch, nodes, vocab;
};
constexpr Size kSizes[] = {{1, 2, 3}, {3, 9, 40}, {9, 5, 2100}, {70, 4, 1030}, {2, 6, 40000}};

TEST(sample_rows_kernel_equals_the_cpu_body) {
  unsigned seed = 0;
  for (Size size : kSizes) {
    if (testing::is_skipped(size.batch, size.vocab)) continue;
    for (int variant = 0; variant < 8; ++variant, ++seed) {
      bool edited = (variant & 1) != 0;
      bool filtered = (variant & 2) != 0;
      Purpose purpose = (variant & 4) != 0 ? kFinalDraw : kDraftDraw;
      bool given_coins = variant == 7;
      SampleRowsCase host(size.batch, size.nodes, size.vocab, seed, seed % 5 == 4);
      SampleRowsCase device = host;
      sample_rows_cpu(host.rows_params(edited, filtered, purpose, given_coins));
      Uploads uploads;
      auto place = [&](const auto& values) { return uploads(values); };
      sample_rows_cuda(device.rows_params(place, edited, filtered, purpose, given_coins), nullptr);
      uploads.fetch(device.tokens.data());
      uploads.fetch(device.row_records.data());
      uploads.fetch(device.row_status.data());
      CHECK_EQ(device.drawn(), host.drawn());
    }
  }
}

}  // namespace
}  // namespace specfast
