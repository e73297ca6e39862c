#pragma once

#include "core/attention_tile.cuh"

namespace specfast {

// Memory between the CTAs of a unit: counters, zero between calls, and one place per item for what
// its part of the keys gave, in the order in which lanes hold it.
template <class Sizes>
class AttentionWorkspace {
 public:
  static constexpr int kBlocks = Sizes::kHeadDim / 8;

  // The number of items that there are places for, which the launcher finds.
  static int find_most_items(const VerifyAttentionParams& p) {
    const int64_t item_bytes = int64_t{num_lanes(p) / 2} * (Sizes::kHeadDim + 2) * 4;
    const int64_t counter_bytes = int64_t{AttentionPlan::kMaxCounters} * 4;
    const int64_t room = max_of<int64_t>(p.workspace_bytes - counter_bytes, 0) / item_bytes;
    return static_cast<int>(min_of<int64_t>(room, AttentionPlan::kMaxCounters));
  }

  __device__ AttentionWorkspace(const VerifyAttentionParams& p, int most_items)
      : counters_(static_cast<int32_t*>(p.workspace)), lanes_(num_lanes(p)) {
    values_ = reinterpret_cast<float4*>(counters_ + AttentionPlan::kMaxCounters);
    rows_ = reinterpret_cast<RowSoftmax*>(values_ + int64_t{most_items} * kBlocks * lanes_);
  }

  __device__ int lanes() const { return lanes_; }  // that may have rows
  __device__ int32_t* counter(int unit) const { return counters_ + unit; }
  // Of a lane of the CTA's computing warps: [block][lane].
  __device__ float4* values(int item) const { return values_ + int64_t{item} * kBlocks * lanes_; }
  __device__ RowSoftmax* rows(int item) const { return rows_ + int64_t{item} * (lanes_ / 2); }

 private:
  SPECFAST_HD static int num_lanes(const VerifyAttentionParams& p) {
    const int rows = p.max_rows * (p.num_heads / p.num_kv_heads);
    return 32 * ceil_div(min_of(rows, Sizes::kTileRows), 16);
  }

  int32_t* counters_;
  float4* values_;
  RowSoftmax* rows_;
  int lanes_;
};

// Adds up the parts of a unit in order, by all threads of the CTA that was last to write one.
template <class Sizes>
class PartMerger {
  using T = typename Sizes::T;
  using Workspace = AttentionWorkspace<Sizes>;

  // Of a part and row: into its span, and the span into the total where it ends.
  struct Weights {
    union {
      float2 row;  // maximum and sum, of which they are made
      FoldWeights part;
    };
    FoldWeights span;
  };

 public:
  __device__ PartMerger(const VerifyAttentionParams& p, typename Sizes::Shared& shared,
                        const Workspace& workspace, const AttentionTile& tile, float c)
      : p_(p), shared_(shared), workspace_(workspace), tile_(tile), c_(c) {}

  // `first_place`: of the first part within its span.
  __device__ void run(const AttentionItem& item, int items_between_parts, int first_place,
                      int parts_per_span) {
    // Where tiles of keys and values were.
    Weights* weights = reinterpret_cast<Weights*>(&shared_);
    constexpr int kMostParts =
        2 * Sizes::kStages * Sizes::Tile::kBytes / (sizeof(Weights) * Sizes::kTileRows) - 4;
    static_assert(kMostParts >= 2 * kSpanChunks);
    auto ends_span = [&](int part) {
      return part == item.parts - 1 || (first_place + part + 1) % parts_per_span == 0;
    };
    RowSoftmax total;
    int begin = 0;
    while (begin < item.parts) {
      int end = min_of(item.parts, begin + kMostParts);
      while (!ends_span(end - 1)) --end;
      // A row's folds wait for each other, its loads do not.
      for (int i = threadIdx.x; i < (end - begin) * Sizes::kTileRows; i += Sizes::kThreads) {
        const int part = begin + i / Sizes::kTileRows;
        const int row = i % Sizes::kTileRows;
        if (row >= tile_.num_rows) continue;
        const RowSoftmax* from = workspace_.rows(item.unit + part * items_between_parts) + row;
        weights[i].row = __ldcg(reinterpret_cast<const float2*>(from));
      }
      __syncthreads();  // rows of the parts are written
      if (threadIdx.x < tile_.num_rows) {
        RowSoftmax span;
        SPECFAST_NO_UNROLL
        for (int part = begin; part < end; ++part) {
          Weights& w = weights[(part - begin) * Sizes::kTileRows + threadIdx.x];
          w.part = fold(span, {w.row.x, w.row.y}, c_);
          if (!ends_span(part)) continue;
          w.span = fold(total, span, c_);
          span = {};
        }
        shared_.normalizers[threadIdx.x] = normalizer(total);
      }
      __syncthreads();  // weights are written
      SPECFAST_NO_UNROLL
      for (int i = threadIdx.x; i < Workspace::kBlocks * workspace_.lanes();
           i += kAtOnce * Sizes::kThreads) {
        add_parts(weights, item, items_between_parts, begin, end, i, ends_span);
      }
      __syncthreads();  // weights are read
      begin = end;
    }
  }

 private:
  static constexpr int kAtOnce = 4;  // groups of four values that a thread adds up side by side

  // Groups i, i + kThreads, ... of parts [begin, end), behind what earlier parts have left.
  template <class EndsSpan>
  __device__ void add_parts(const Weights* weights, const AttentionItem& item,
                            int items_between_parts, int begin, int end, int i,
                            EndsSpan ends_span) {
    float4 sums[kAtOnce];
    float4 span[kAtOnce];
    int rows[kAtOnce];
    bool has_row[kAtOnce];
    auto values = [&](int part, int j) {
      return workspace_.values(item.unit + part * items_between_parts) + i + j * Sizes::kThreads;
    };
    SPECFAST_UNROLL
    for (int j = 0; j < kAtOnce; ++j) {
      const int group = i + j * Sizes::kThreads;
      const int lane = group % workspace_.lanes();
      rows[j] = lane / 32 * 16 + lane % 32 / 4;
      has_row[j] = group < Workspace::kBlocks * workspace_.lanes() && rows[j] < tile_.num_rows;
      sums[j] = span[j] = make_float4(0, 0, 0, 0);
      if (begin > 0 && has_row[j]) sums[j] = __ldcg(values(0, j));
    }
    // All loads of four parts are under way before the first is used.
    SPECFAST_NO_UNROLL
    for (int first = begin; first < end; first += kSpanChunks) {
      float4 loaded[kSpanChunks][kAtOnce];
      SPECFAST_UNROLL
      for (int k = 0; k < kSpanChunks; ++k) {
        SPECFAST_UNROLL
        for (int j = 0; j < kAtOnce; ++j) {
          if (first + k < end && has_row[j]) loaded[k][j] = __ldcg(values(first + k, j));
        }
      }
      SPECFAST_UNROLL
      for (int k = 0; k < kSpanChunks; ++k) {
        if (first + k >= end) break;
        const Weights* w = weights + (first + k - begin) * Sizes::kTileRows;
        const bool ends = ends_span(first + k);
        SPECFAST_UNROLL
        for (int j = 0; j < kAtOnce; ++j) {
          if (!has_row[j]) continue;
          add(span[j], loaded[k][j], w[rows[j]].part, w[rows[j] + 8].part);
          if (!ends) continue;
          add(sums[j], span[j], w[rows[j]].span, w[rows[j] + 8].span);
          span[j] = make_float4(0, 0, 0, 0);
        }
      }
    }
    SPECFAST_UNROLL
    for (int j = 0; j < kAtOnce; ++j) {
      if (!has_row[j]) continue;
      if (end < item.parts) {
        __stcg(values(0, j), sums[j]);
      } else {
        const int group = i + j * Sizes::kThreads;
        store(group / workspace_.lanes(), group % workspace_.lanes(), sums[j]);
      }
    }
  }

  __device__ static void add(float4& total, const float4& part, FoldWeights first,
                             FoldWeights second) {
    total.x = fold_value(total.x, part.x, first);
    total.y = fold_value(total.y, part.y, first);
    total.z = fold_value(total.z, part.z, second);
    total.w = fold_value(total.w, part.w, second);
  }
  __device__ void store(int block, int lane, const float4& sums) {
    const int row = lane / 32 * 16 + lane % 32 / 4;
    const int column = block * 8 + lane % 4 * 2;
    const float first = shared_.normalizers[row];
    const float second = shared_.normalizers[row + 8];
    store_pair<T>(p_, tile_, row, column, sums.x * first, sums.y * first);
    store_pair<T>(p_, tile_, row + 8, column, sums.z * second, sums.w * second);
  }

  const VerifyAttentionParams& p_;
  typename Sizes::Shared& shared_;
  const Workspace& workspace_;
  const AttentionTile& tile_;
  float c_;
};

}  // namespace specfast
