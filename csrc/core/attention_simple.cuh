#pragma once

#include "core/attention_params.h"
#include "core/float8.h"
#include "core/launch.cuh"

namespace specfast {

// A CTA per row and head, float32 throughout, any head_dim up to 1024: for what tensor cores do not
// take. A warp forms the score of a key, lanes across head_dim; then a thread sums up a column of
// the values. Every row reads all its keys from L2 or beyond: right, and slow.
class SimpleAttention {
 public:
  static constexpr int kThreads = 128;
  static constexpr int kMaxHeadDim = 1024;

 private:
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kKeys = kChunkKeys + kMaxAttentionRows;
  static constexpr int kColumns = kMaxHeadDim / kThreads;  // of a thread at most

 public:
  struct Shared {
    float query[kMaxHeadDim];
    float weights[kKeys];  // scores first
    int32_t slots[kKeys];  // -1: not seen
    float warp_values[kWarps];
    int owner;
  };

  // T: of query and out, Kv: of keys and values.
  template <class T, class Kv>
  __device__ static void run(const VerifyAttentionParams& p, Shared& shared, int row, int head) {
    T* out = static_cast<T*>(p.out) + row * p.out_row_stride + head * p.out_head_stride;
    int b = find_owner(p, shared, row);
    if (b == INT32_MAX) {
      for (int d = threadIdx.x; d < p.head_dim; d += kThreads) store_float(0.0f, out + d);
      return;
    }
    const AttentionRequest r = load_attention_request(p, b);
    const int row_in_request = row - r.first_row;
    const int kv_head = head / (p.num_heads / p.num_kv_heads);
    const T* query =
        static_cast<const T*>(p.query) + row * p.query_row_stride + head * p.query_head_stride;
    const Kv* keys = static_cast<const Kv*>(p.keys.data) + kv_head * p.keys.head_stride;
    const Kv* values = static_cast<const Kv*>(p.values.data) + kv_head * p.values.head_stride;
    const float score_scale = p.scale * scale_of(p.keys, kv_head);
    const float value_scale = scale_of(p.values, kv_head);
    for (int d = threadIdx.x; d < p.head_dim; d += kThreads) shared.query[d] = to_float(query[d]);

    const int32_t first = first_seen(p, r, row_depth(p, r, row_in_request));
    float total_max = -INFINITY;
    float total_sum = 0;
    float total[kColumns] = {};
    SPECFAST_NO_UNROLL
    for (int chunk = chunk_of(r, first); chunk < r.num_chunks(); ++chunk) {
      __syncthreads();  // the query is written; weights and slots of the chunk before are read
      int count = find_keys(p, r, shared, row_in_request, chunk, first);
      __syncthreads();  // slots are written
      float chunk_max = score_keys(p, shared, keys, count, score_scale);
      if (chunk_max == -INFINITY) chunk_max = 0;
      float sum = 0;
      for (int i = threadIdx.x; i < count; i += kThreads) {
        float weight = shared.slots[i] < 0 ? 0 : expf(shared.weights[i] - chunk_max);
        shared.weights[i] = weight;
        sum += weight;
      }
      float chunk_sum = block_reduce(shared, sum, [](float a, float b) { return a + b; });
      if (chunk_sum == 0) continue;
      const float new_max = max_of(total_max, chunk_max);
      const float of_total = total_sum == 0 ? 0 : expf(total_max - new_max);
      const float of_chunk = expf(chunk_max - new_max);
      total_max = new_max;
      total_sum = total_sum * of_total + chunk_sum * of_chunk;
      SPECFAST_UNROLL
      for (int column = 0; column < kColumns; ++column) {
        int d = threadIdx.x + column * kThreads;
        if (d >= p.head_dim) continue;
        float mixed = 0;
        for (int i = 0; i < count; ++i) {
          int32_t slot = shared.slots[i];
          if (slot < 0) continue;
          mixed = fmaf(shared.weights[i], to_float(values[slot * p.values.slot_stride + d]), mixed);
        }
        total[column] = total[column] * of_total + mixed * of_chunk;
      }
    }
    SPECFAST_UNROLL
    for (int column = 0; column < kColumns; ++column) {
      int d = threadIdx.x + column * kThreads;
      if (d < p.head_dim) {
        store_float(total_sum == 0 ? 0 : total[column] / total_sum * value_scale, out + d);
      }
    }
  }

 private:
  // The first request that the row counts for, or INT32_MAX.
  __device__ static int find_owner(const VerifyAttentionParams& p, Shared& shared, int row) {
    if (threadIdx.x == 0) shared.owner = INT32_MAX;
    __syncthreads();  // owner is written before anybody lowers it
    for (int b = threadIdx.x; b < p.batch_size; b += kThreads) {
      AttentionRequest r = load_attention_request(p, b);
      if (row >= r.first_row && row < r.first_row + r.num_rows) atomicMin(&shared.owner, b);
    }
    __syncthreads();  // all have lowered it
    return shared.owner;
  }

  // Slots of a chunk, and of the window behind the last one; how many places they take.
  __device__ static int find_keys(const VerifyAttentionParams& p, const AttentionRequest& r,
                                  Shared& shared, int row, int chunk, int32_t first) {
    const int32_t begin = max_of(chunk * kChunkKeys, first);
    const int32_t end = max_of(begin, min_of((chunk + 1) * kChunkKeys, r.prefix_len));
    const bool is_last = chunk == r.num_chunks() - 1;
    const int in_prefix = end - begin;
    const int count = in_prefix + (is_last ? r.num_rows : 0);
    for (int i = threadIdx.x; i < count; i += kThreads) {
      int column = i - in_prefix;
      int32_t position = column < 0 ? begin + i : r.prefix_len + column;
      bool seen = column < 0 || (window_word(p, r, row, column / 32) >> column % 32 & 1) != 0;
      shared.slots[i] = seen ? find_slot(p, r, position) : -1;
    }
    return count;
  }

  // The largest score.
  template <class Kv>
  __device__ static float score_keys(const VerifyAttentionParams& p, Shared& shared, const Kv* keys,
                                     int count, float score_scale) {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    float largest = -INFINITY;
    for (int i = warp; i < count; i += kWarps) {
      const int32_t slot = shared.slots[i];
      if (slot < 0) continue;
      const Kv* key = keys + slot * p.keys.slot_stride;
      float score = 0;
      for (int d = lane; d < p.head_dim; d += 32) {
        score = fmaf(shared.query[d], to_float(key[d]), score);
      }
      SPECFAST_UNROLL
      for (int step = 16; step > 0; step /= 2) score += __shfl_xor_sync(~0u, score, step);
      score *= score_scale;
      largest = max_of(largest, score);
      if (lane == 0) shared.weights[i] = score;
    }
    return block_reduce(shared, largest, [](float a, float b) { return max_of(a, b); });
  }

  // Also a barrier.
  template <class F>
  __device__ static float block_reduce(Shared& shared, float value, F combine) {
    SPECFAST_UNROLL
    for (int step = 16; step > 0; step /= 2) {
      value = combine(value, __shfl_xor_sync(~0u, value, step));
    }
    __syncthreads();  // values of the reduction before are read
    if (threadIdx.x % 32 == 0) shared.warp_values[threadIdx.x / 32] = value;
    __syncthreads();  // values, and what was written to shared memory before, can be read
    value = shared.warp_values[0];
    SPECFAST_UNROLL
    for (int warp = 1; warp < kWarps; ++warp) value = combine(value, shared.warp_values[warp]);
    return value;
  }
};

template <class T, class Kv>
__global__ void __launch_bounds__(SimpleAttention::kThreads)
    simple_attention_kernel(const __grid_constant__ VerifyAttentionParams p) {
  __shared__ SimpleAttention::Shared shared;
  begin_after_previous_kernel();
  int row = blockIdx.x / p.num_heads;
  SimpleAttention::run<T, Kv>(p, shared, row, blockIdx.x - row * p.num_heads);
}

}  // namespace specfast
