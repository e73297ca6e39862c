#pragma once

#include "core/attention_tile.cuh"

namespace specfast {

// Memory between the CTAs of a unit: counters, zero between calls, and places for what
// chunks of units gave, in the order in which lanes hold it: every item has as many places, one
// after the other, as a run has chunks.
template <class Sizes>
class AttentionWorkspace {
 public:
  static constexpr int kBlocks = Sizes::kHeadDim / 8;

  // How many, which the launcher finds.
  static int find_most_places(const VerifyAttentionParams& p) {
    const int64_t place_bytes = int64_t{num_lanes(p) / 2} * (Sizes::kHeadDim + 2) * 4;
    const int64_t counter_bytes = int64_t{AttentionPlan::kMaxCounters} * 4;
    const int64_t room = max_of<int64_t>(p.workspace_bytes - counter_bytes, 0) / place_bytes;
    return static_cast<int>(min_of<int64_t>(room, AttentionPlan::kMaxCounters));
  }

  __device__ AttentionWorkspace(const VerifyAttentionParams& p, int most_places)
      : counters_(static_cast<int32_t*>(p.workspace)), lanes_(num_lanes(p)) {
    values_ = reinterpret_cast<float4*>(counters_ + AttentionPlan::kMaxCounters);
    rows_ = values_ + int64_t{most_places} * kBlocks * lanes_;
  }

  __device__ int lanes() const { return lanes_; }  // that may have rows
  __device__ int32_t* counter(int unit) const { return counters_ + unit; }
  // Of a lane of the CTA's computing warps: [block][lane].
  __device__ float4* values(int place) const { return values_ + int64_t{place} * kBlocks * lanes_; }
  // Maximum and sum of a lane's two rows: [lane / 4].
  __device__ float4* rows(int place) const { return rows_ + int64_t{place} * (lanes_ / 4); }

 private:
  SPECFAST_HD static int num_lanes(const VerifyAttentionParams& p) {
    const int rows = p.max_rows * (p.num_heads / p.num_kv_heads);
    return 32 * ceil_div(min_of(rows, Sizes::kTileRows), 16);
  }

  int32_t* counters_;
  float4* values_;
  float4* rows_;
  int lanes_;
};

// Adds up the chunks of units in order, after all items: whoever took run q of a unit merges the
// blocks of columns that q is the share of. It waits for the other runs, so that all CTAs of the
// launch have to run at the same time.
//
// Every thread copies what it needs of many chunks into places of its own in shared memory, all at
// once, and folds one after the other in a loop that is short: a small batch runs through it only
// once, and fetching the instructions is what that takes longest for.
//
// The counter of a unit has runs that are written in its low 16 bits, and above them how many
// pairs of a block and 32 lanes are merged; the last one leaves it zero.
template <class Sizes>
class ChunkMerger {
  using T = typename Sizes::T;
  using Workspace = AttentionWorkspace<Sizes>;
  static constexpr int kWarps = Sizes::kComputingThreads / 32;
  static constexpr int kChunksAtOnce =
      min_of(32, static_cast<int>(sizeof(Sizes::Tiles::pieces)) / (Sizes::kComputingThreads * 32));

 public:
  // Where chunks of a unit lie.
  struct Layout {
    int units;       // of the request
    int run_chunks;  // 1, 2 or 4
    int chunks;      // of the unit

    __device__ int place(const AttentionItem& item, int chunk) const {
      const int run = chunk >> (run_chunks >> 1);
      return (item.unit + run * (units - 1)) * run_chunks + chunk;
    }
  };

  __device__ ChunkMerger(const VerifyAttentionParams& p, const Workspace& workspace)
      : p_(p),
        workspace_(workspace),
        places_(reinterpret_cast<float4*>(Sizes::shared().pieces) + threadIdx.x) {}

  // The share of one run, by the computing warps, when all are done with the pieces.
  __device__ void run(const AttentionItem& item, const AttentionTile& tile,
                      const Layout& layout) const {
    const int lane_groups = workspace_.lanes() / 32;
    const int blocks =
        item.run < Workspace::kBlocks ? (Workspace::kBlocks - 1 - item.run) / item.runs + 1 : 0;
    const int warp = threadIdx.x / 32;
    const int merges = (blocks * lane_groups - warp + kWarps - 1) / kWarps;
    if (merges <= 0) return;
    wait_for_runs(item);
    SPECFAST_NO_UNROLL
    for (int merge = warp; merge < blocks * lane_groups; merge += kWarps) {
      const int in_share = merge / lane_groups;
      const int lane = (merge - in_share * lane_groups) * 32 + threadIdx.x % 32;
      add_up(item, tile, layout, item.run + in_share * item.runs, lane);
    }
    __syncwarp();  // all lanes have read
    if (threadIdx.x % 32 == 0) leave(item, merges, Workspace::kBlocks * lane_groups);
  }

 private:
  // A block of columns of this lane's rows.
  __device__ void add_up(const AttentionItem& item, const AttentionTile& tile, const Layout& layout,
                         int block, int lane) const {
    const float c = score_factor<Sizes>(p_, tile.kv_head);
    RowSoftmax totals[2];
    float4 sums = make_float4(0, 0, 0, 0);
    SPECFAST_NO_UNROLL
    for (int first = 0; first < layout.chunks; first += kChunksAtOnce) {
      const int count = min_of(layout.chunks - first, kChunksAtOnce);
#pragma unroll 4
      for (int i = 0; i < count; ++i) {
        const int from = layout.place(item, first + i);
        copy(place(2 * i), workspace_.values(from) + block * workspace_.lanes() + lane);
        copy(place(2 * i + 1), workspace_.rows(from) + lane / 4);
      }
      finish_all_copies();
#pragma unroll 4
      for (int i = 0; i < count; ++i) {
        const float4 rows = load_shared(place(2 * i + 1));
        const float4 values = load_shared(place(2 * i));
        const FoldWeights weights[2] = {fold(totals[0], {rows.x, rows.y}, c),
                                        fold(totals[1], {rows.z, rows.w}, c)};
        sums.x = fold_value(sums.x, values.x, weights[0]);
        sums.y = fold_value(sums.y, values.y, weights[0]);
        sums.z = fold_value(sums.z, values.z, weights[1]);
        sums.w = fold_value(sums.w, values.w, weights[1]);
      }
    }
    const int row = lane / 32 * 16 + lane % 32 / 4;
    const int column = block * 8 + lane % 4 * 2;
    const float factors[2] = {value_factor<Sizes>(p_, tile.kv_head, totals[0]),
                              value_factor<Sizes>(p_, tile.kv_head, totals[1])};
    store_pair<T>(p_, tile, row, column, sums.x * factors[0], sums.y * factors[0]);
    store_pair<T>(p_, tile, row + 8, column, sums.z * factors[1], sums.w * factors[1]);
  }

  // This thread's.
  __device__ float4* place(int number) const { return places_ + number * Sizes::kComputingThreads; }
  // From what other CTAs wrote: past L1.
  __device__ static void copy(float4* to, const float4* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_offset(to)), "l"(from)
                 : "memory");
  }

  __device__ void wait_for_runs(const AttentionItem& item) const {
    const int32_t* counter = workspace_.counter(item.unit);
    int32_t count;
    do {
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
    } while ((count & 0xffff) != item.runs);
  }
  __device__ void leave(const AttentionItem& item, int merges, int all_merges) const {
    int32_t* counter = workspace_.counter(item.unit);
    const int before = atomicAdd(counter, merges << 16) >> 16;
    if (before + merges == all_merges) *counter = 0;
  }

  const VerifyAttentionParams& p_;
  const Workspace& workspace_;
  float4* places_;
};

}  // namespace specfast
