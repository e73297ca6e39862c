// Rows on their way into a drafter's cache: 32 heads of queries and 8 of keys and values, of 128
// channels, and where the rows lie. Every set has rows and slots of its own.

#include "ops/place_draft_rows.h"
#include "ops/rope_append_kv.h"
#include "random.h"
#include "set_array.cuh"
#include "workload.h"

namespace specfast::bench {
namespace {

using Bits = uint16_t;

constexpr int kHeads = 32;
constexpr int kKvHeads = 8;
constexpr int kHeadDim = 128;
constexpr int kColumns = (kHeads + 2 * kKvHeads) * kHeadDim;
constexpr int kPositions = 8192;
constexpr double kColdBytes = 256e6;

class RopeAppendKv : public Workload {
 public:
  explicit RopeAppendKv(const Point& point)
      : batch_(point.batch),
        rows_(point.nodes),
        sets_(clamp_to(static_cast<int>(kColdBytes / traffic().bytes), 2, 1024)),
        qkv_(sets_, int64_t{batch_} * rows_ * kColumns),
        positions_(sets_, batch_ * rows_),
        slots_(sets_, batch_ * rows_),
        weights_(1, 2 * kHeadDim),
        cos_(1, kPositions * kHeadDim / 2),
        sin_(1, kPositions * kHeadDim / 2),
        queries_(sets_, int64_t{batch_} * rows_ * kHeads * kHeadDim),
        keys_(sets_, int64_t{batch_} * rows_ * kKvHeads * kHeadDim),
        values_(sets_, keys_.count()) {
    Random random(14);
    auto value = [&] { return 2 * random.uniform() - 1; };
    for (int set = 0; set < sets_; ++set) {
      for (int64_t i = 0; i < qkv_.count(); ++i) {
        qkv_.host(set)[i] = rounded_to<BFloat16>(value()).bits;
      }
      for (int i = 0; i < batch_ * rows_; ++i) {
        positions_.host(set)[i] = random.below(kPositions);
        slots_.host(set)[i] = batch_ * rows_ - 1 - i;
      }
    }
    for (int i = 0; i < weights_.count(); ++i) weights_.host(0)[i] = value();
    for (int i = 0; i < cos_.count(); ++i) {
      cos_.host(0)[i] = value();
      sin_.host(0)[i] = value();
    }
    qkv_.upload();
    positions_.upload();
    slots_.upload();
    weights_.upload();
    cos_.upload();
    sin_.upload();
  }

  int sets() const override { return sets_; }
  void launch(int set, CUstream_st* stream) override {
    rope_append_kv_cuda(params(Side::kDevice, set), stream);
  }
  void check(int set) override {
    rope_append_kv_cpu(params(Side::kHost, set));
    queries_.expect_equal(set, "queries");
    keys_.expect_equal(set, "keys");
    values_.expect_equal(set, "values");
  }
  Traffic traffic() override { return {2.0 * batch_ * rows_ * kColumns * sizeof(Bits), 0, 0}; }

 private:
  RopeAppendKvParams params(Side side, int set) {
    RopeAppendKvParams p{};
    p.num_rows = batch_ * rows_;
    p.num_heads = kHeads;
    p.num_kv_heads = kKvHeads;
    p.head_dim = p.rotary_dim = kHeadDim;
    p.type = FloatType::kBFloat16;
    p.has_wide_rows = true;
    p.qkv = qkv_.on(side, set);
    p.qkv_stride = kColumns;
    p.rows_per_request = rows_;
    p.positions = {positions_.on(side, set), false};
    p.slots = {slots_.on(side, set), false};
    p.positions_request_stride = p.slots_request_stride = rows_;
    p.positions_stride = p.slots_stride = 1;
    p.q_norm_weight = weights_.on(side, 0);
    p.k_norm_weight = weights_.on(side, 0) + kHeadDim;
    p.eps = 1e-6f;
    p.cos = cos_.on(side, 0);
    p.sin = sin_.on(side, 0);
    p.num_positions = kPositions;
    p.queries = queries_.on(side, set);
    p.keys = keys_.on(side, set);
    p.values = values_.on(side, set);
    p.num_slots = batch_ * rows_;
    p.key_slot_stride = p.value_slot_stride = kKvHeads * kHeadDim;
    p.key_head_stride = p.value_head_stride = kHeadDim;
    return p;
  }

  int batch_;
  int rows_;
  int sets_;
  SetArray<Bits> qkv_;
  SetArray<int32_t> positions_, slots_;
  SetArray<float> weights_, cos_, sin_;
  SetArray<Bits> queries_, keys_, values_;
};

class PlaceDraftRows : public Workload {
 public:
  explicit PlaceDraftRows(const Point& point)
      : batch_(point.batch),
        rows_(point.nodes),
        page_table_(kSets, int64_t{batch_} * kPages),
        table_rows_(kSets, batch_),
        prefix_lens_(kSets, batch_),
        counts_(kSets, batch_),
        pages_(kSets, int64_t{batch_} * (kPages + 1)),
        positions_(kSets, int64_t{rows_} * batch_),
        slots_(kSets, positions_.count()),
        row_counts_(kSets, positions_.count()) {
    Random random(15);
    for (int set = 0; set < kSets; ++set) {
      for (int i = 0; i < batch_ * kPages; ++i) {
        page_table_.host(set)[i] = random.below(batch_ * kPages);
      }
      for (int b = 0; b < batch_; ++b) {
        table_rows_.host(set)[b] = batch_ - 1 - b;
        prefix_lens_.host(set)[b] = random.below((kPages - 1) * kPageSize);
        counts_.host(set)[b] = rows_;
      }
    }
    for (auto* array : {&page_table_, &table_rows_, &prefix_lens_, &counts_}) array->upload();
  }

  int sets() const override { return kSets; }
  void launch(int set, CUstream_st* stream) override {
    place_draft_rows_cuda(params(Side::kDevice, set), stream);
  }
  void check(int set) override {
    place_draft_rows_cpu(params(Side::kHost, set));
    pages_.expect_equal(set, "pages");
    positions_.expect_equal(set, "positions");
    slots_.expect_equal(set, "slots");
    row_counts_.expect_equal(set, "row_counts");
  }
  Traffic traffic() override { return {2.0 * batch_ * kPages * sizeof(int32_t), 0, 0}; }

 private:
  static constexpr int kSets = 64;
  static constexpr int kPageSize = 16;
  static constexpr int kPages = kPositions / kPageSize;

  PlaceDraftRowsParams params(Side side, int set) {
    PlaceDraftRowsParams p{};
    p.batch_size = batch_;
    p.num_rows = rows_;
    p.page_table = {page_table_.on(side, set), false};
    p.page_table_stride = p.num_columns = kPages;
    p.num_table_rows = batch_;
    p.page_size = kPageSize;
    p.num_pages = batch_ * (kPages + 1);
    p.first_scratch_page = batch_ * kPages;
    p.scratch_pages = 1;
    p.page_table_rows = table_rows_.on(side, set);
    p.prefix_lens = prefix_lens_.on(side, set);
    p.counts = counts_.on(side, set);
    p.pages = pages_.on(side, set);
    p.positions = positions_.on(side, set);
    p.slots = slots_.on(side, set);
    p.row_counts = row_counts_.on(side, set);
    return p;
  }

  int batch_;
  int rows_;
  SetArray<int32_t> page_table_, table_rows_, prefix_lens_, counts_;
  SetArray<int32_t> pages_, positions_, slots_, row_counts_;
};

Registrar rope_append_kv(benchmark<RopeAppendKv>(
    "rope_append_kv", {{"32/8 heads x 128, normed, cold", 1, 1, 0, "bf16"},
                       {"32/8 heads x 128, normed, cold", 1, 8, 0, "bf16"},
                       {"32/8 heads x 128, normed, cold", 8, 8, 0, "bf16"},
                       {"32/8 heads x 128, normed, cold", 64, 8, 0, "bf16"}}));
Registrar place_draft_rows(benchmark<PlaceDraftRows>(
    "place_draft_rows",
    {{"512 pages", 1, 8, 0, ""}, {"512 pages", 8, 8, 0, ""}, {"512 pages", 64, 8, 0, ""}}));

}  // namespace
}  // namespace specfast::bench
