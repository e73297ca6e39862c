#pragma once

#include <cmath>

#include "core/attention_params.h"
#include "core/float8.h"
#include "core/team.h"

struct CUstream_st;

namespace specfast {

// Attention of a few query rows per request over paged KV. Row i of request b sees the prefix and,
// of the window at positions prefix_len ..., what the tree mask, the chain or the block allows it.
// Keys without a page do not exist; a row that sees none is zeros.
//
// This body is the CPU op and what the kernels are tested against; those are written apart, since
// they use tensor cores (csrc/core/attention_*.cuh). Sums are float32, so the two differ by
// rounding.

// Of one thread.
struct AttentionScratch {
  float* scores;  // [kChunkKeys + kMaxAttentionRows]
  int32_t* slots;
  float* chunk;  // [D] weighted values of a chunk
  float* total;  // [D] of the chunks so far
};

template <class Arena>
SPECFAST_HD AttentionScratch verify_attention_scratch(Arena& arena, const VerifyAttentionParams& p,
                                                      int threads, int rank) {
  constexpr int kKeys = kChunkKeys + kMaxAttentionRows;
  return {arena.template scratch<float>(threads * kKeys) + rank * kKeys,
          arena.template scratch<int32_t>(threads * kKeys) + rank * kKeys,
          arena.template scratch<float>(threads * p.head_dim) + rank * p.head_dim,
          arena.template scratch<float>(threads * p.head_dim) + rank * p.head_dim};
}

// Eight sums side by side: one after the other they would wait for each other.
template <class T, class Kv>
SPECFAST_HD float dot(const T* a, const Kv* b, int n) {
  constexpr int kLanes = 8;
  float sums[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) sums[j] += to_float(a[i + j]) * to_float(b[i + j]);
  }
  for (; i < n; ++i) sums[0] += to_float(a[i]) * to_float(b[i]);
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

// One row and head. Scales of a cache are factors of all its elements: of scores, and of out.
template <class T, class Kv>
SPECFAST_HD void attend(const VerifyAttentionParams& p, const AttentionRequest& r, int row,
                        int head, const AttentionScratch& scratch, T* out) {
  const int kv_head = head / (p.num_heads / p.num_kv_heads);
  const T* query = static_cast<const T*>(p.query) + (r.first_row + row) * p.query_row_stride +
                   head * p.query_head_stride;
  const Kv* keys = static_cast<const Kv*>(p.keys.data) + kv_head * p.keys.head_stride;
  const Kv* values = static_cast<const Kv*>(p.values.data) + kv_head * p.values.head_stride;
  const float score_scale = p.scale * scale_of(p.keys, kv_head);
  const float value_scale = scale_of(p.values, kv_head);
  const int32_t first = first_seen(p, r, row_depth(p, r, row));
  float total_max = -INFINITY;
  float total_sum = 0;
  for (int d = 0; d < p.head_dim; ++d) scratch.total[d] = 0;

  for (int chunk = chunk_of(r, first); chunk < r.num_chunks(); ++chunk) {
    int count = 0;
    auto see = [&](int32_t position) {
      int32_t slot = find_slot(p, r, position);
      if (slot >= 0) scratch.slots[count++] = slot;
    };
    const int32_t end = min_of((chunk + 1) * kChunkKeys, r.prefix_len);
    for (int32_t at = max_of(chunk * kChunkKeys, first); at < end; ++at) see(at);
    if (chunk == r.num_chunks() - 1) {
      for (int word = 0; word < ceil_div(r.num_rows, 32); ++word) {
        uint32_t bits = window_word(p, r, row, word);
        for (int c = 0; c < 32; ++c) {
          if ((bits >> c & 1) != 0) see(r.prefix_len + 32 * word + c);
        }
      }
    }
    if (count == 0) continue;

    float chunk_max = -INFINITY;
    for (int i = 0; i < count; ++i) {
      float score =
          dot(query, keys + scratch.slots[i] * p.keys.slot_stride, p.head_dim) * score_scale;
      scratch.scores[i] = score;
      chunk_max = max_of(chunk_max, score);
    }
    // Nothing but -inf or NaN: the weights below are what IEEE makes of those.
    const float base = chunk_max == -INFINITY ? 0 : chunk_max;
    float chunk_sum = 0;
    for (int d = 0; d < p.head_dim; ++d) scratch.chunk[d] = 0;
    for (int i = 0; i < count; ++i) {
      float weight = expf(scratch.scores[i] - base);
      const Kv* value = values + scratch.slots[i] * p.values.slot_stride;
      chunk_sum += weight;
      for (int d = 0; d < p.head_dim; ++d) scratch.chunk[d] += weight * to_float(value[d]);
    }
    const float new_max = max_of(total_max, chunk_max);
    const float of_total = total_sum == 0 ? 0 : expf(total_max - new_max);
    const float of_chunk = chunk_sum == 0 ? 0 : expf(base - (new_max == -INFINITY ? 0 : new_max));
    total_max = new_max;
    total_sum = total_sum * of_total + chunk_sum * of_chunk;
    for (int d = 0; d < p.head_dim; ++d) {
      scratch.total[d] = scratch.total[d] * of_total + scratch.chunk[d] * of_chunk;
    }
  }
  for (int d = 0; d < p.head_dim; ++d) {
    store_float(total_sum == 0 ? 0 : scratch.total[d] / total_sum * value_scale, out + d);
  }
}

// Rows that no request owns, and those of a request that do not count.
template <class T, class Team>
SPECFAST_HD_OUTLINED void clear_rows(Team& team, const VerifyAttentionParams& p, int32_t begin,
                                     int32_t end) {
  const int64_t row_size = int64_t{p.num_heads} * p.head_dim;
  SPECFAST_NO_UNROLL
  for (int64_t i = begin * row_size + team.rank(); i < end * row_size; i += team.size()) {
    int64_t row = i / row_size;
    int64_t in_row = i - row * row_size;
    int64_t head = in_row / p.head_dim;
    T* out = static_cast<T*>(p.out) + row * p.out_row_stride + head * p.out_head_stride;
    store_float(0.0f, out + (in_row - head * p.head_dim));
  }
}

template <class T, class Kv, class Team>
SPECFAST_HD void verify_attention_request(Team& team, const VerifyAttentionParams& p, int b,
                                          const AttentionScratch& scratch) {
  AttentionRequest r = load_attention_request(p, b);
  for (int i = team.rank(); i < r.num_rows * p.num_heads; i += team.size()) {
    int row = i / p.num_heads;
    int head = i - row * p.num_heads;
    attend<T, Kv>(
        p, r, row, head, scratch,
        static_cast<T*>(p.out) + (r.first_row + row) * p.out_row_stride + head * p.out_head_stride);
  }
  clear_rows<T>(team, p, r.first_row + r.num_rows, r.first_row + r.num_owned);
}

template <class T, class Kv, class Team>
SPECFAST_HD void verify_attention_batch(Team& team, const VerifyAttentionParams& p,
                                        const AttentionScratch& scratch) {
  clear_rows<T>(team, p, 0, clamp_to(p.qo_indptr[0], 0, p.num_rows));
  clear_rows<T>(team, p, clamp_to(p.qo_indptr[p.batch_size], 0, p.num_rows), p.num_rows);
  for (int b = 0; b < p.batch_size; ++b) verify_attention_request<T, Kv>(team, p, b, scratch);
}

// Calls f(T{}, Kv{}) with the types of query and out, and of keys and values.
template <class F>
void with_attention_types(const VerifyAttentionParams& p, F f) {
  auto with_cache = [&](auto type) {
    if (p.keys.scales != nullptr) {
      f(type, Float8{});
    } else {
      f(type, type);
    }
  };
  if (p.type == FloatType::kBFloat16) {
    with_cache(BFloat16{});
  } else if (p.type == FloatType::kFloat16) {
    with_cache(Float16{});
  } else {
    with_cache(0.0f);
  }
}

void verify_attention_cpu(const VerifyAttentionParams& p);
void verify_attention_cuda(const VerifyAttentionParams& p, CUstream_st* stream);

}  // namespace specfast
