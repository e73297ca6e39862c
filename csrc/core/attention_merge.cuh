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

// Adds up the parts of units in order, after all items: whoever took part q of a unit merges the
// blocks of columns that q is the share of. It waits for the other parts, so that all CTAs of the
// launch have to run at the same time.
//
// The counter of a unit has parts that are written in its low 16 bits, and above them how many
// pairs of a block and 32 lanes are merged; the last one leaves it zero.
template <class Sizes>
class PartMerger {
  using T = typename Sizes::T;
  using Workspace = AttentionWorkspace<Sizes>;
  static constexpr int kWarps = Sizes::kComputingThreads / 32;
  static constexpr int kPartsAtOnce = 8;

 public:
  __device__ PartMerger(const VerifyAttentionParams& p, const Workspace& workspace)
      : p_(p), workspace_(workspace) {}

  // The share of one part, by the computing warps. `first_place`: of the unit's first part within
  // its span.
  __device__ void run(const AttentionItem& item, const AttentionTile& tile, int items_between_parts,
                      int first_place, int parts_per_span) const {
    const int lane_groups = workspace_.lanes() / 32;
    const int blocks =
        item.part < Workspace::kBlocks ? (Workspace::kBlocks - 1 - item.part) / item.parts + 1 : 0;
    const int warp = threadIdx.x / 32;
    const int merges = (blocks * lane_groups - warp + kWarps - 1) / kWarps;
    if (merges <= 0) return;
    const float c = score_factor<Sizes>(p_, tile.kv_head);
    wait_for_parts(item);

    // Parts of all merges one after the other; all loads of some are under way before the first is
    // used.
    RowSoftmax totals[2];
    RowSoftmax spans[2];
    float4 sums = make_float4(0, 0, 0, 0);
    float4 span = sums;
    SPECFAST_NO_UNROLL
    for (int first = 0; first < merges * item.parts; first += kPartsAtOnce) {
      float4 values[kPartsAtOnce];
      float2 rows[kPartsAtOnce][2];
      int merge = first / item.parts;
      int part = first - merge * item.parts;
      Place place = find_place(item, warp + merge * kWarps, lane_groups);
      SPECFAST_UNROLL
      for (int k = 0; k < kPartsAtOnce; ++k) {
        values[k] = make_float4(0, 0, 0, 0);
        rows[k][0] = rows[k][1] = make_float2(0, 0);
        if (merge < merges && place.row < tile.num_rows) {
          const int number = item.unit + part * items_between_parts;
          values[k] =
              __ldcg(workspace_.values(number) + place.block * workspace_.lanes() + place.lane);
          const auto* of_rows =
              reinterpret_cast<const float2*>(workspace_.rows(number) + place.row);
          rows[k][0] = __ldcg(of_rows);
          rows[k][1] = __ldcg(of_rows + 8);
        }
        if (++part < item.parts) continue;
        part = 0;
        place = find_place(item, warp + ++merge * kWarps, lane_groups);
      }
      merge = first / item.parts;
      part = first - merge * item.parts;
      SPECFAST_UNROLL
      for (int k = 0; k < kPartsAtOnce; ++k) {
        if (merge >= merges) break;
        add(span, values[k], fold(spans[0], {rows[k][0].x, rows[k][0].y}, c),
            fold(spans[1], {rows[k][1].x, rows[k][1].y}, c));
        ++part;
        if (part < item.parts && (first_place + part) % parts_per_span != 0) continue;
        add(sums, span, fold(totals[0], spans[0], c), fold(totals[1], spans[1], c));
        span = make_float4(0, 0, 0, 0);
        spans[0] = spans[1] = {};
        if (part < item.parts) continue;
        store(tile, find_place(item, warp + merge * kWarps, lane_groups), sums, totals);
        sums = span;
        totals[0] = totals[1] = {};
        part = 0;
        ++merge;
      }
    }
    __syncwarp();  // all lanes have read
    if (threadIdx.x % 32 == 0) leave(item, merges, Workspace::kBlocks * lane_groups);
  }

 private:
  struct Place {
    int block;
    int lane;  // of the unit
    int row;   // first of the lane
  };

  // Of this lane in a merge of the part's share.
  __device__ static Place find_place(const AttentionItem& item, int merge, int lane_groups) {
    const int in_share = merge / lane_groups;
    const int lane = (merge - in_share * lane_groups) * 32 + threadIdx.x % 32;
    return {item.part + in_share * item.parts, lane, lane / 32 * 16 + lane % 32 / 4};
  }

  __device__ void wait_for_parts(const AttentionItem& item) const {
    const int32_t* counter = workspace_.counter(item.unit);
    int32_t count;
    do {
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
    } while ((count & 0xffff) != item.parts);
  }
  __device__ void leave(const AttentionItem& item, int merges, int all_merges) const {
    int32_t* counter = workspace_.counter(item.unit);
    const int before = atomicAdd(counter, merges << 16) >> 16;
    if (before + merges == all_merges) *counter = 0;
  }

  __device__ static void add(float4& total, const float4& part, FoldWeights first,
                             FoldWeights second) {
    total.x = fold_value(total.x, part.x, first);
    total.y = fold_value(total.y, part.y, first);
    total.z = fold_value(total.z, part.z, second);
    total.w = fold_value(total.w, part.w, second);
  }

  __device__ void store(const AttentionTile& tile, const Place& place, const float4& sums,
                        const RowSoftmax (&totals)[2]) const {
    const int column = place.block * 8 + place.lane % 4 * 2;
    const float first = value_factor<Sizes>(p_, tile.kv_head, totals[0]);
    const float second = value_factor<Sizes>(p_, tile.kv_head, totals[1]);
    store_pair<T>(p_, tile, place.row, column, sums.x * first, sums.y * first);
    store_pair<T>(p_, tile, place.row + 8, column, sums.z * second, sums.w * second);
  }

  const VerifyAttentionParams& p_;
  const Workspace& workspace_;
};

}  // namespace specfast
