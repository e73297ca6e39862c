#pragma once

#include <algorithm>

#include "ops/merge_row_stats.h"
#include "ops/row_stats.h"
#include "sampled_case.h"

namespace specfast::testing {

// A sampled case whose vocabulary is cut into shards of any size, and what both ops write. Every
// value is an integer, so ties between shards are common.
struct ShardCase : SampledCase {
  ShardCase(int batch_size, int num_nodes, int vocab, int num_shards, unsigned seed, bool unsound)
      : SampledCase(batch_size, num_nodes, vocab, seed, unsound, Form::kRecord),
        record{static_cast<int32_t>(seed % 4),
               seed % 3 == 0 ? 20 : static_cast<int32_t>(seed % 5)} {
    std::mt19937 rng(seed + 3000);
    for (int i = 1; i < num_shards; ++i) {
      offsets.push_back(std::uniform_int_distribution<int>(0, vocab)(rng));
    }
    std::sort(offsets.begin(), offsets.end());
    stats.assign(static_cast<size_t>(num_shards) * B * N * record.words(), 77);
    predict_of_row.assign(B * N, -77);
    status_of_row.assign(B * N, -77);
  }

  int num_shards() const { return static_cast<int>(offsets.size()); }

  // The parameters of one shard; `all` are the records of all of them.
  template <class Place>
  RowStatsParams stats_params(Place place, int shard, bool filtered, bool chain,
                              uint64_t* all) const {
    RowStatsParams p{};
    SampledAcceptParams whole = sampled_params(place, false, filtered, chain);
    p.accept = batch_of(whole.accept);
    p.rows = whole.rows;
    p.rows.logits = static_cast<const float*>(whole.rows.logits) + offsets[shard];
    p.links = whole.links;
    p.sampling = whole.sampling;
    p.record = record;
    p.vocab_offset = offsets[shard];
    int end = shard + 1 < num_shards() ? offsets[shard + 1] : V;
    p.shard_size = end - offsets[shard];
    p.stats = all + static_cast<size_t>(shard) * B * N * record.words();
    return p;
  }
  RowStatsParams stats_params(int shard, bool filtered, bool chain) {
    return stats_params(in_place, shard, filtered, chain, stats.data());
  }

  template <class Place>
  MergeRowStatsParams merge_params(Place place, bool filtered) const {
    MergeRowStatsParams p{};
    SampledAcceptParams whole = sampled_params(place, false, filtered, true);
    p.accept = batch_of(whole.accept);
    p.sampling = whole.sampling;
    p.record = record;
    p.num_shards = num_shards();
    p.stats = place(stats);
    p.threshold_single = 1.0f;
    p.threshold_acc = 1.0f;
    p.target_predict = place(predict_of_row);
    p.status = place(status_of_row);
    return p;
  }
  MergeRowStatsParams merge_params(bool filtered) { return merge_params(in_place, filtered); }

  // What the merge writes.
  std::vector<int32_t> merged() const {
    std::vector<int32_t> all = predict_of_row;
    all.insert(all.end(), status_of_row.begin(), status_of_row.end());
    return all;
  }

  ShardRecord record;
  std::vector<int32_t> offsets{0};
  std::vector<uint64_t> stats;
  std::vector<int32_t> predict_of_row, status_of_row;

 private:
  static AcceptParams batch_of(AcceptParams p) {
    p.width = 0;  // there is no path
    return p;
  }
  template <class T>
  static T* in_place_of(const std::vector<T>& values) {
    return const_cast<T*>(values.data());
  }
  static constexpr auto in_place = [](const auto& values) { return in_place_of(values); };
};

}  // namespace specfast::testing
