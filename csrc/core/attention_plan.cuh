#pragma once

#include "core/attention_params.h"

namespace specfast {

// How the work of a batch is shared out: decided on the device by every CTA for itself, from the
// lengths. A unit is a tile of rows of one request with one KV head; its keys are divided into
// parts of one chunk, of one span, or not at all. Items, one part of one unit each, are numbered
// request by request, in a request part by part, so that CTAs that run side by side read
// neighbouring heads of the same keys.
struct AttentionItem {
  int number;
  int b;
  int tile;
  int kv_head;
  int part;
  int parts;  // of the unit
  int unit;   // item number of the unit's first part
};

enum class PartSize : int32_t { kChunk, kSpan, kWhole };

// Chunks [first, last) of a part.
struct ChunkRange {
  int first;
  int last;
};

class AttentionPlan {
 public:
  static constexpr int kMaxCounters = 32768;
  static constexpr int kMostChunksApart = 2048;  // _MOST_CHUNKS_APART of the Python workspace

  struct Shared {
    int32_t first_item[kMaxAttentionRequests + 1];
    float sums[3][32];
    float longest[32];
    int32_t warp_items[32];
    PartSize part_size;
  };

  __device__ AttentionPlan(const VerifyAttentionParams& p, Shared& shared, int tile_rows)
      : p_(p), shared_(shared), tile_rows_(tile_rows) {}

  // By all threads of the CTA, before anything else. `most_items`: places for parts in the
  // workspace.
  __device__ void make(int most_items) {
    // Exact where it matters: below 2^24.
    Totals totals;
    SPECFAST_NO_UNROLL
    for (int b = threadIdx.x; b < p_.batch_size; b += blockDim.x) {
      AttentionRequest r = load_attention_request(p_, b);
      const float units = static_cast<float>(num_units(r));
      const float chunks = static_cast<float>(num_parts(r, PartSize::kChunk));
      totals.sums[0] += units * chunks;
      totals.sums[1] += units * static_cast<float>(num_parts(r, PartSize::kSpan));
      totals.sums[2] += units;
      if (units > 0) totals.longest = fmaxf(totals.longest, chunks);
    }
    add_up(totals);
    const PartSize part_size = choose(totals, most_items);
    if (threadIdx.x == 0) shared_.part_size = part_size;
    count_items(part_size);
  }

  __device__ int num_items() const { return shared_.first_item[p_.batch_size]; }
  __device__ PartSize part_size() const { return shared_.part_size; }

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
    item.part = in_request / units;
    item.parts = num_parts(r, part_size());
    int unit = in_request - item.part * units;
    item.kv_head = unit / tiles;
    item.tile = unit - item.kv_head * tiles;
    item.unit = shared_.first_item[low] + unit;
    return item;
  }

  __device__ ChunkRange chunks(const AttentionRequest& r, int part) const {
    int first = first_chunk(r);
    int last = r.num_chunks();
    if (part_size() == PartSize::kWhole) return {first, last};
    if (part_size() == PartSize::kChunk) return {first + part, first + part + 1};
    int span = first / kSpanChunks + part;
    return {max_of(first, span * kSpanChunks), min_of(last, (span + 1) * kSpanChunks)};
  }

  // The first that any row of the request sees.
  __device__ int first_chunk(const AttentionRequest& r) const {
    return chunk_of(r, first_seen(p_, r, 0));
  }

 private:
  __device__ int num_tiles(const AttentionRequest& r) const {
    return ceil_div(r.num_rows * (p_.num_heads / p_.num_kv_heads), tile_rows_);
  }
  __device__ int num_units(const AttentionRequest& r) const {
    return num_tiles(r) * p_.num_kv_heads;
  }
  __device__ int num_parts(const AttentionRequest& r, PartSize size) const {
    if (size == PartSize::kWhole) return 1;
    int first = first_chunk(r);
    int last = r.num_chunks() - 1;
    if (size == PartSize::kSpan) return last / kSpanChunks - first / kSpanChunks + 1;
    return last - first + 1;
  }

  struct Totals {
    float sums[3] = {};  // of chunks, spans and units
    float longest = 0;   // chunks of a unit
  };

  // Time goes by how many chunks a CTA has one after the other; parts have to be merged, too.
  __device__ static PartSize choose(const Totals& totals, int most_items) {
    const float ctas = static_cast<float>(gridDim.x);
    const float of_chunks = 1.1f * ceilf(totals.sums[0] / ctas);
    const float of_spans = 1.03f * kSpanChunks * ceilf(totals.sums[1] / ctas);
    const float whole = totals.longest * ceilf(totals.sums[2] / ctas);
    const float most = static_cast<float>(most_items);
    // Several spans are dear within a CTA, as their total is kept in local memory.
    if (totals.longest <= kSpanChunks && whole <= of_chunks) return PartSize::kWhole;
    if (totals.sums[0] <= fminf(most, kMostChunksApart) && of_chunks < of_spans) {
      return PartSize::kChunk;
    }
    return totals.sums[1] <= most ? PartSize::kSpan : PartSize::kWhole;
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
      for (int i = 0; i < 3; ++i) shared_.sums[i][threadIdx.x / 32] = totals.sums[i];
      shared_.longest[threadIdx.x / 32] = totals.longest;
    }
    __syncthreads();  // totals of the warps are written
    totals = {};
    SPECFAST_NO_UNROLL
    for (int warp = 0; warp < blockDim.x / 32; ++warp) {
      SPECFAST_UNROLL
      for (int i = 0; i < 3; ++i) totals.sums[i] += shared_.sums[i][warp];
      totals.longest = fmaxf(totals.longest, shared_.longest[warp]);
    }
  }

  __device__ void count_items(PartSize part_size) {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    int before = 0;
    SPECFAST_NO_UNROLL
    for (int base = 0; base < p_.batch_size; base += blockDim.x) {
      const int b = base + threadIdx.x;
      int items = 0;
      if (b < p_.batch_size) {
        AttentionRequest r = load_attention_request(p_, b);
        items = num_units(r) * num_parts(r, part_size);
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
