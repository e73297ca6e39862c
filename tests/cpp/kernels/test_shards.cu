#include "shard_case.h"
#include "testing.h"
#include "uploads.h"

namespace specfast {
namespace {

using testing::ShardCase;
using testing::Uploads;

struct Size {
  int batch, nodes, vocab, shards;
};
// As many rows as reach every launch shape; shards of less than a group and of many.
constexpr Size kSizes[] = {
    {1, 2, 3, 2}, {3, 9, 40, 4}, {9, 5, 2100, 3}, {70, 4, 1030, 2}, {2, 6, 40000, 1}};

TEST(shard_kernels_equal_the_cpu_bodies) {
  unsigned seed = 0;
  for (Size size : kSizes) {
    if (testing::is_skipped(size.batch, size.vocab)) continue;
    for (int variant = 0; variant < 8; ++variant, ++seed) {
      bool filtered = (variant & 1) != 0;
      bool chain = (variant & 2) != 0;
      ShardCase host(size.batch, size.nodes, size.vocab, size.shards, seed, seed % 5 == 4);
      ShardCase device = host;
      {
        Uploads uploads;
        auto place = [&](const auto& values) { return uploads(values); };
        uint64_t* all = uploads(device.stats);
        for (int shard = 0; shard < host.num_shards(); ++shard) {
          row_stats_cpu(host.stats_params(shard, filtered, chain));
          row_stats_cuda(device.stats_params(place, shard, filtered, chain, all), nullptr);
        }
        uploads.fetch(device.stats.data());
      }
      CHECK_EQ(device.stats, host.stats);
      Uploads uploads;
      auto place = [&](const auto& values) { return uploads(values); };
      merge_row_stats_cpu(host.merge_params(filtered));
      merge_row_stats_cuda(device.merge_params(place, filtered), nullptr);
      uploads.fetch(device.predict_of_row.data());
      uploads.fetch(device.status_of_row.data());
      CHECK_EQ(device.merged(), host.merged());
    }
  }
}

}  // namespace
}  // namespace specfast
