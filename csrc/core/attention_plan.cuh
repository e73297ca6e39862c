#pragma once

#include "core/attention_params.h"

namespace specfast {

// How the work of a batch is shared out: decided on the device by every CTA for itself, from the
// lengths. A unit is a tile of rows of one request with one KV head; its keys are divided into
// parts of one chunk, of one span, or not at all. Items, one part of one unit each, are numbered
// request by request, in a request part by part, so that CTAs that run side by side read
// neighbouring heads of the same keys.
struct AttentionItem {
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
    float sums[2][32];
    int32_t warp_items[32];
  };

  // By all threads of the CTA. `most_items`: places for parts in the workspace.
  __device__ AttentionPlan(const VerifyAttentionParams& p, Shared& shared, int tile_rows,
                           int most_items)
      : p_(p), shared_(shared), tile_rows_(tile_rows) {
    // Exact where it matters: below 2^24.
    float sums[2] = {};
    SPECFAST_NO_UNROLL
    for (int b = threadIdx.x; b < p.batch_size; b += blockDim.x) {
      AttentionRequest r = load_attention_request(p, b);
      float units = static_cast<float>(num_units(r));
      sums[0] += units * static_cast<float>(num_parts(r, PartSize::kChunk));
      sums[1] += units * static_cast<float>(num_parts(r, PartSize::kSpan));
    }
    block_sum(sums);
    part_size_ = choose(sums, most_items);
    count_items();
  }

  __device__ int num_items() const { return shared_.first_item[p_.batch_size]; }
  __device__ PartSize part_size() const { return part_size_; }

  __device__ AttentionItem item(int number) const {
    int low = 0;
    int high = p_.batch_size;  // first_item[low] <= number < first_item[high]
    while (high - low > 1) {
      int middle = (low + high) / 2;
      (shared_.first_item[middle] <= number ? low : high) = middle;
    }
    AttentionItem item;
    item.b = low;
    int in_request = number - shared_.first_item[low];
    AttentionRequest r = load_attention_request(p_, low);
    int tiles = num_tiles(r);
    int units = tiles * p_.num_kv_heads;
    item.part = in_request / units;
    item.parts = num_parts(r, part_size_);
    int unit = in_request - item.part * units;
    item.kv_head = unit / tiles;
    item.tile = unit - item.kv_head * tiles;
    item.unit = shared_.first_item[low] + unit;
    return item;
  }

  __device__ ChunkRange chunks(const AttentionRequest& r, int part) const {
    int first = first_chunk(r);
    int last = r.num_chunks();
    if (part_size_ == PartSize::kWhole) return {first, last};
    if (part_size_ == PartSize::kChunk) return {first + part, first + part + 1};
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

  // Time goes by how many parts a CTA has one after the other; more parts have more to merge.
  __device__ static PartSize choose(const float (&items)[2], int most_items) {
    const float ctas = static_cast<float>(gridDim.x);
    const float rounds_of_chunks = ceilf(items[0] / ctas);
    const float rounds_of_spans = ceilf(items[1] / ctas);
    const float most = static_cast<float>(most_items);
    if (items[0] <= fminf(most, kMostChunksApart) &&
        1.1f * rounds_of_chunks < kSpanChunks * rounds_of_spans) {
      return PartSize::kChunk;
    }
    return items[1] <= most ? PartSize::kSpan : PartSize::kWhole;
  }

  __device__ void block_sum(float (&sums)[2]) {
    SPECFAST_UNROLL
    for (int i = 0; i < 2; ++i) {
      SPECFAST_UNROLL
      for (int step = 16; step > 0; step /= 2) sums[i] += __shfl_xor_sync(~0u, sums[i], step);
      if (threadIdx.x % 32 == 0) shared_.sums[i][threadIdx.x / 32] = sums[i];
    }
    __syncthreads();  // sums of the warps are written
    sums[0] = sums[1] = 0;
    SPECFAST_NO_UNROLL
    for (int warp = 0; warp < blockDim.x / 32; ++warp) {
      sums[0] += shared_.sums[0][warp];
      sums[1] += shared_.sums[1][warp];
    }
  }

  __device__ void count_items() {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    int before = 0;
    SPECFAST_NO_UNROLL
    for (int base = 0; base < p_.batch_size; base += blockDim.x) {
      const int b = base + threadIdx.x;
      int items = 0;
      if (b < p_.batch_size) {
        AttentionRequest r = load_attention_request(p_, b);
        items = num_units(r) * num_parts(r, part_size_);
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
  PartSize part_size_;
};

}  // namespace specfast
