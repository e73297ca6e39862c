// A vocabulary in eight shards: what one rank reads of chains of eight rows, and the merge of what
// all ranks gathered.

#include "logit_pool.cuh"
#include "ops/merge_row_stats.h"
#include "ops/row_stats.h"
#include "random.h"
#include "set_array.cuh"
#include "workload.h"

namespace specfast::bench {
namespace {

constexpr int kShards = 8;
constexpr int kTopK = 50;

bool is_filtered(const Point& point) { return point.variant.find("top-k") != std::string::npos; }

// Chains whose drafts are the planted tokens, and how their requests sample.
class ShardWorkload : public Workload {
 public:
  // `columns`: of a shard.
  ShardWorkload(const Point& point, int sets, int columns)
      : batch_(point.batch),
        nodes_(point.nodes),
        rows_(point.batch * point.nodes),
        sets_(sets),
        columns_(columns),
        filtered_(is_filtered(point)),
        record_{1, filtered_ ? kTopK : 0},
        temperature_(1, batch_),
        top_p_(1, batch_),
        top_k_(1, batch_),
        seeds_(1, batch_),
        prefix_lens_(sets, batch_),
        draft_tokens_(sets, rows_) {
    for (int b = 0; b < batch_; ++b) {
      temperature_.host(0)[b] = 1.0f;
      top_p_.host(0)[b] = 0.9f;
      top_k_.host(0)[b] = kTopK;
      seeds_.host(0)[b] = b * 7919;
    }
    for (int set = 0; set < sets_; ++set) {
      Random random(set);
      for (int b = 0; b < batch_; ++b) prefix_lens_.host(set)[b] = random.below(8192);
      for (int row = 0; row < rows_; ++row) {
        LogitPool::shared().fetch(first_row(set) + row);
        int32_t before = row % nodes_ == 0 ? 0 : LogitPool::best_token(first_row(set) + row - 1);
        draft_tokens_.host(set)[row] = before;
      }
    }
    temperature_.upload();
    top_p_.upload();
    top_k_.upload();
    seeds_.upload();
    prefix_lens_.upload();
    draft_tokens_.upload();
  }

  int sets() const override { return sets_; }

 protected:
  int64_t first_row(int set) const { return LogitPool::window_begin(set, sets_, rows_); }

  AcceptParams batch(Side side, int set) {
    AcceptParams p{};
    p.batch_size = batch_;
    p.num_nodes = nodes_;
    p.num_rows = rows_;
    p.vocab_size = kShards * columns_;
    p.draft_tokens = {draft_tokens_.on(side, set), false};
    p.draft_tokens_stride = nodes_;
    p.prefix_lens = prefix_lens_.on(side, set);
    return p;
  }
  SamplingParams sampling(Side side) {
    SamplingParams p{};
    p.temperature = temperature_.on(side, 0);
    p.seeds = seeds_.on(side, 0);
    if (filtered_) p.top_k = top_k_.on(side, 0);
    if (filtered_) p.top_p = top_p_.on(side, 0);
    return p;
  }
  RowStatsParams shard(Side side, int set, int number, uint64_t* stats) {
    const LogitPool& pool = LogitPool::shared();
    const BFloat16* logits =
        side == Side::kHost ? pool.host(first_row(set)) : pool.device(first_row(set));
    RowStatsParams p{};
    p.accept = batch(side, set);
    p.rows.logits = logits + number * columns_;
    p.rows.logits_type = FloatType::kBFloat16;
    p.rows.logits_stride = LogitPool::kVocab;
    p.sampling = sampling(side);
    p.record = record_;
    p.vocab_offset = number * columns_;
    p.shard_size = columns_;
    p.stats = stats;
    return p;
  }

  int batch_, nodes_, rows_, sets_, columns_;
  bool filtered_;
  ShardRecord record_;
  SetArray<float> temperature_, top_p_;
  SetArray<int32_t> top_k_;
  SetArray<int64_t> seeds_;
  SetArray<int32_t> prefix_lens_, draft_tokens_;
};

class RowStats : public ShardWorkload {
 public:
  explicit RowStats(const Point& point)
      : ShardWorkload(point, sets_for(point), kColumns), stats_(sets_, rows_ * record_.words()) {}

  void launch(int set, CUstream_st* stream) override {
    row_stats_cuda(shard(Side::kDevice, set, kShard, stats_.on(Side::kDevice, set)), stream);
  }
  void check(int set) override {
    row_stats_cpu(shard(Side::kHost, set, kShard, stats_.on(Side::kHost, set)));
    stats_.expect_equal(set, "stats");
  }
  Traffic traffic() override {
    return {2.0 * kColumns * rows_ + stats_.bytes(), static_cast<double>(nodes_),
            static_cast<double>(nodes_)};
  }

 private:
  static constexpr int kColumns = LogitPool::kVocab / kShards;
  static constexpr int kShard = 3;

  // Several times the L2 cache.
  static int sets_for(const Point& point) {
    constexpr double kColdBytes = 256e6;
    return max_of(4, static_cast<int>(kColdBytes / (2.0 * kColumns * point.batch * point.nodes)));
  }

  SetArray<uint64_t> stats_;
};

// What it reads does not depend on the vocabulary; a small one is soon summed up on the host.
class MergeRowStats : public ShardWorkload {
 public:
  explicit MergeRowStats(const Point& point)
      : ShardWorkload(point, kSets, kColumns),
        stats_(kSets, int64_t{kShards} * rows_ * record_.words()),
        target_predict_(kSets, rows_),
        status_(kSets, rows_) {
    for (int set = 0; set < kSets; ++set) {
      for (int number = 0; number < kShards; ++number) {
        uint64_t* stats = stats_.host(set) + int64_t{number} * rows_ * record_.words();
        row_stats_cpu(shard(Side::kHost, set, number, stats));
      }
    }
    stats_.upload();
  }

  void launch(int set, CUstream_st* stream) override {
    merge_row_stats_cuda(params(Side::kDevice, set), stream);
  }
  void check(int set) override {
    merge_row_stats_cpu(params(Side::kHost, set));
    target_predict_.expect_equal(set, "target_predict");
    status_.expect_equal(set, "status");
  }
  Traffic traffic() override { return {stats_.bytes() + 2 * status_.bytes(), 0, 0}; }

 private:
  static constexpr int kColumns = 2048;
  static constexpr int kSets = 4;

  MergeRowStatsParams params(Side side, int set) {
    MergeRowStatsParams p{};
    p.accept = batch(side, set);
    p.sampling = sampling(side);
    p.record = record_;
    p.num_shards = kShards;
    p.stats = stats_.on(side, set);
    p.threshold_single = 1.0f;
    p.threshold_acc = 1.0f;
    p.target_predict = target_predict_.on(side, set);
    p.status = status_.on(side, set);
    return p;
  }

  SetArray<uint64_t> stats_;
  SetArray<int32_t> target_predict_, status_;
};

constexpr int64_t kShardColumns = LogitPool::kVocab / kShards;

Registrar row_stats(benchmark<RowStats>(
    "row_stats", {{"1 of 8 shards, T = 1, cold", 8, 8, kShardColumns, "bf16"},
                  {"1 of 8 shards, T = 1, cold", 64, 8, kShardColumns, "bf16"},
                  {"1 of 8 shards, top-k 50 + top-p .9, cold", 64, 8, kShardColumns, "bf16"}}));
Registrar merge_row_stats(benchmark<MergeRowStats>(
    "merge_row_stats", {{"8 shards, T = 1", 64, 8, LogitPool::kVocab, ""},
                        {"8 shards, top-k 50 + top-p .9", 64, 8, LogitPool::kVocab, ""}}));

}  // namespace
}  // namespace specfast::bench
