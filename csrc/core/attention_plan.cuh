#pragma once

#include "core/attention_chunks.h"

namespace specfast {

// How the work of a batch is shared out: decided on the device by every CTA for itself, from the
// lengths. A unit is a tile of rows of one request with one KV head. Either its chunks are taken as
// a whole and added up on the way, or in runs of so many, of which each chunk is left in the
// workspace, to be merged. Items, one run of one unit each, are numbered request by request, in a
// request run by run, so that CTAs that work side by side read neighbouring heads of the same keys.
struct AttentionItem {
  int number;
  int b;
  int tile;
  int kv_head;
  int run;
  int runs;  // of the unit
  int unit;  // item number of the unit's first run
};

class AttentionPlan {
 public:
  static constexpr int kMaxCounters = 32768;
  static constexpr int kRunSizes = 3;  // 1, 2 and 4 chunks
  static constexpr int kSums = 2 + kRunSizes;

  struct Shared {
    int32_t first_item[kMaxAttentionRequests + 1];
    float sums[kSums][32];
    float longest[32];
    int32_t warp_items[32];
    int32_t run_chunks;
  };

  __device__ AttentionPlan(const VerifyAttentionParams& p, Shared& shared, int tile_rows)
      : p_(p), shared_(shared), tile_rows_(tile_rows) {}

  // By all threads of the CTA, before anything else. `most_places`: for chunks in the workspace.
  __device__ void make(int most_places) {
    // Exact where it matters: below 2^24.
    Totals totals;
    SPECFAST_NO_UNROLL
    for (int b = threadIdx.x; b < p_.batch_size; b += blockDim.x) {
      AttentionRequest r = load_attention_request(p_, b);
      const ChunkRange chunks = find_chunks(p_, r);
      const float units = static_cast<float>(num_units(r));
      const float keys = static_cast<float>(chunks.end - chunks.begin + r.num_rows);
      totals.sums[0] += units;
      totals.sums[1] += units * keys;
      SPECFAST_UNROLL
      for (int i = 0; i < kRunSizes; ++i) {
        totals.sums[2 + i] += units * static_cast<float>(num_runs(r, 1 << i));
      }
      if (units > 0) totals.longest = fmaxf(totals.longest, keys);
    }
    add_up(totals);
    const int run_chunks = choose(totals, most_places);
    if (threadIdx.x == 0) shared_.run_chunks = run_chunks;
    count_items(run_chunks);
  }

  __device__ int num_items() const { return shared_.first_item[p_.batch_size]; }
  // 0: units are taken as a whole.
  __device__ int run_chunks() const { return shared_.run_chunks; }

  __device__ AttentionItem item(int number) const {
    int low = 0;
    int high = p_.batch_size;  // first_item[low] <= number < first_item[high]
    while (high - low > 1) {
      int middle = (low + high) / 2;
      (shared_.first_item[middle] <= number ? low : high) = middle;
    }
    AttentionItem item;
    item.number = number;
    item.b = low;
    int in_request = number - shared_.first_item[low];
    AttentionRequest r = load_attention_request(p_, low);
    int tiles = num_tiles(r);
    int units = tiles * p_.num_kv_heads;
    item.run = in_request / units;
    item.runs = num_runs(r, run_chunks());
    int unit = in_request - item.run * units;
    item.kv_head = unit / tiles;
    item.tile = unit - item.kv_head * tiles;
    item.unit = shared_.first_item[low] + unit;
    return item;
  }

  __device__ ChunkRange chunks(const AttentionRequest& r, int run) const {
    const ChunkRange all = find_chunks(p_, r);
    return run_chunks() == 0 ? all : some_chunks(all, run * run_chunks(), run_chunks());
  }

 private:
  __device__ int num_tiles(const AttentionRequest& r) const {
    return ceil_div(r.num_rows * (p_.num_heads / p_.num_kv_heads), tile_rows_);
  }
  __device__ int num_units(const AttentionRequest& r) const {
    return num_tiles(r) * p_.num_kv_heads;
  }
  __device__ int num_runs(const AttentionRequest& r, int run_chunks) const {
    if (run_chunks == 0) return 1;
    const ChunkRange chunks = find_chunks(p_, r);
    return ceil_div(chunks.last - chunks.first, run_chunks);
  }

  struct Totals {
    float sums[kSums] = {};  // units, their keys, runs of each size
    float longest = 0;       // keys of a unit
  };

  // Time goes by how many keys a CTA has one after the other; chunks have to be merged, too.
  __device__ static int choose(const Totals& totals, int most_places) {
    const float ctas = static_cast<float>(gridDim.x);
    float least = totals.longest * ceilf(totals.sums[0] / ctas);
    int best = 0;
    SPECFAST_UNROLL
    for (int i = kRunSizes - 1; i >= 0; --i) {
      const float runs = totals.sums[2 + i];
      const float run_keys = static_cast<float>(1 << i) * totals.sums[1] / totals.sums[2];
      const float time = (1.1f - 0.02f * static_cast<float>(i)) * run_keys * ceilf(runs / ctas);
      const bool fits = runs * static_cast<float>(1 << i) <= static_cast<float>(most_places);
      if (!fits || time >= least) continue;
      least = time;
      best = 1 << i;
    }
    return best;
  }

  __device__ void add_up(Totals& totals) {
    SPECFAST_UNROLL
    for (int step = 16; step > 0; step /= 2) {
      SPECFAST_UNROLL
      for (float& sum : totals.sums) sum += __shfl_xor_sync(~0u, sum, step);
      totals.longest = fmaxf(totals.longest, __shfl_xor_sync(~0u, totals.longest, step));
    }
    if (threadIdx.x % 32 == 0) {
      SPECFAST_UNROLL
      for (int i = 0; i < kSums; ++i) shared_.sums[i][threadIdx.x / 32] = totals.sums[i];
      shared_.longest[threadIdx.x / 32] = totals.longest;
    }
    __syncthreads();  // totals of the warps are written
    totals = {};
    SPECFAST_NO_UNROLL
    for (int warp = 0; warp < blockDim.x / 32; ++warp) {
      SPECFAST_UNROLL
      for (int i = 0; i < kSums; ++i) totals.sums[i] += shared_.sums[i][warp];
      totals.longest = fmaxf(totals.longest, shared_.longest[warp]);
    }
  }

  __device__ void count_items(int run_chunks) {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    int before = 0;
    SPECFAST_NO_UNROLL
    for (int base = 0; base < p_.batch_size; base += blockDim.x) {
      const int b = base + threadIdx.x;
      int items = 0;
      if (b < p_.batch_size) {
        AttentionRequest r = load_attention_request(p_, b);
        items = num_units(r) * num_runs(r, run_chunks);
      }
      int up_to = items;
      SPECFAST_UNROLL
      for (int step = 1; step < 32; step *= 2) {
        int other = __shfl_up_sync(~0u, up_to, step);
        if (lane >= step) up_to += other;
      }
      __syncthreads();  // items of the warps before are read
      if (lane == 31) shared_.warp_items[warp] = up_to;
      __syncthreads();  // items of the warps are written
      int of_block = 0;
      SPECFAST_NO_UNROLL
      for (int w = 0; w < blockDim.x / 32; ++w) {
        if (w < warp) up_to += shared_.warp_items[w];
        of_block += shared_.warp_items[w];
      }
      if (b < p_.batch_size) shared_.first_item[b] = before + up_to - items;
      before += of_block;
    }
    if (threadIdx.x == 0) shared_.first_item[p_.batch_size] = before;
    __syncthreads();  // first items are written
  }

  const VerifyAttentionParams& p_;
  Shared& shared_;
  int tile_rows_;
};

}  // namespace specfast
