#pragma once

#include <cmath>

#include "core/types.h"

namespace specfast {

// Rows of one request at most.
constexpr int kMaxAttentionRows = 128;
constexpr int kMaxAttentionRequests = 1024;
constexpr int kMaskWords = kMaxAttentionRows / 32;

// Keys are added up in chunks of so many absolute positions; the last chunk of a request goes on
// into its window. Where they begin depends on nothing but the position, so the sums of a row do
// not depend on how chunks are shared out. Tensor cores take longer ones far behind
// (core/attention_chunks.h).
constexpr int kChunkKeys = 512;

// Keys or values of all slots.
struct KvCache {
  const void* data;     // [pages, page_size, num_kv_heads, head_dim]
  int64_t slot_stride;  // elements between slots of a page
  int64_t head_stride;  // elements between heads
  // [num_kv_heads] of float8_e4m3fn, whose values are to be multiplied by it, or null: elements
  // have the type of query. Keys and values both have scales, or neither.
  const float* scales;
  int64_t scale_stride;  // 0: one of all heads, 1
};

// Scales are above 0 and finite; any other counts as NaN.
SPECFAST_HD float scale_of(const KvCache& cache, int kv_head) {
  if (cache.scales == nullptr) return 1.0f;
  const float scale = cache.scales[kv_head * cache.scale_stride];
  return scale > 0 && scale < INFINITY ? scale : NAN;
}

struct VerifyAttentionParams {
  int32_t batch_size;  // B <= kMaxAttentionRequests
  int32_t num_rows;    // R
  int32_t num_heads;   // H, a multiple of num_kv_heads
  int32_t num_kv_heads;
  int32_t head_dim;  // D
  int32_t max_rows;  // rows of a request, <= kMaxAttentionRows; what a request has more is cut
  FloatType type;    // of query and out, and of keys and values without scales

  const void* query;  // [R, H, D] dense in D
  int64_t query_row_stride;
  int64_t query_head_stride;
  KvCache keys;
  KvCache values;
  int64_t page_pitch;  // slots between pages: page_size, more where pages lie apart
  int32_t num_pages;   // of the caches; other numbers in the table are no pages
  int32_t page_size;   // slots

  IdView page_table;  // [T, pages_per_row]
  int64_t page_table_stride;
  int32_t num_table_rows;  // T
  int32_t pages_per_row;
  const int32_t* page_table_rows;  // [B] row of each request, or null: b
  const int32_t* prefix_lens;      // [B] committed KV; the window's lies behind it
  const int32_t* qo_indptr;        // [B + 1] first query row of each request
  const int32_t* verify_lens;      // [B] rows of each request that count, or null: all

  const uint32_t* mask_bits;  // [B, N, ceil(N / 32)], or null
  const uint8_t* mask_bytes;  // [B, N, N], or null
  int32_t mask_nodes;         // N; without a mask the window is a chain
  bool block_bidirectional;   // without a mask: rows see the whole window
  int32_t sliding_window;     // a row sees keys less than so many positions before its own; 0: all
  float scale;                // > 0

  void* out;  // [R, H, D] dense in D; rows of no request are zeros
  int64_t out_row_stride;
  int64_t out_head_stride;

  void* workspace;  // see AttentionWorkspace; null on the CPU
  int64_t workspace_bytes;
};

// The rows of one request and where its keys lie.
struct AttentionRequest {
  int32_t b;
  int32_t first_row;   // within [0, R]
  int32_t num_rows;    // that count
  int32_t num_owned;   // that belong to the request; those that do not count are zeros
  int32_t prefix_len;  // within the pages of a table row
  int64_t table_row;   // -1: none, so that no key is there

  SPECFAST_HD int num_chunks() const { return max_of(1, ceil_div(prefix_len, kChunkKeys)); }
};

SPECFAST_HD AttentionRequest load_attention_request(const VerifyAttentionParams& p, int b) {
  AttentionRequest r;
  r.b = b;
  r.first_row = clamp_to(p.qo_indptr[b], 0, p.num_rows);
  r.num_owned = clamp_to(p.qo_indptr[b + 1], r.first_row, p.num_rows) - r.first_row;
  int32_t verified = p.verify_lens != nullptr ? p.verify_lens[b] : p.max_rows;
  r.num_rows = clamp_to(verified, 0, min_of(r.num_owned, p.max_rows));
  // No position is so far that one of the window does not fit 31 bits.
  int64_t capacity =
      min_of<int64_t>(int64_t{p.pages_per_row} * p.page_size, INT32_MAX - 2 * kChunkKeys);
  r.prefix_len = clamp_to(p.prefix_lens[b], 0, static_cast<int32_t>(capacity));
  r.table_row = p.page_table_rows != nullptr ? p.page_table_rows[b] : b;
  if (r.table_row < 0 || r.table_row >= p.num_table_rows) r.table_row = -1;
  return r;
}

// find_slot() in two steps, for what is asked for early and used late.
struct SlotLoad {
  IdLoad page;
  int32_t in_page;  // -1: past the table
};

SPECFAST_HD SlotLoad fetch_slot(const VerifyAttentionParams& p, const AttentionRequest& r,
                                int32_t position) {
  int32_t index = position / p.page_size;
  if (r.table_row < 0 || index >= p.pages_per_row) return {{0, 0}, -1};
  return {p.page_table.fetch(r.table_row * p.page_table_stride + index),
          position - index * p.page_size};
}

SPECFAST_HD int32_t slot_of(const VerifyAttentionParams& p, const SlotLoad& load) {
  int64_t page = p.page_table.value(load.page);
  if (load.in_page < 0 || page < 0 || page >= p.num_pages) return -1;
  return static_cast<int32_t>(page * p.page_pitch + load.in_page);
}

// Whether a request has this row: where qo_indptr descends, one before its first number or behind
// its last one may have an owner as well.
SPECFAST_HD_OUTLINED bool is_owned(const VerifyAttentionParams& p, int32_t row) {
  SPECFAST_NO_UNROLL
  for (int32_t b = 0; b < p.batch_size; ++b) {
    if (row >= p.qo_indptr[b] && row < p.qo_indptr[b + 1]) return true;
  }
  return false;
}

// In units of slot_stride, from the first slot of the cache; -1 where there is no page.
SPECFAST_HD int32_t find_slot(const VerifyAttentionParams& p, const AttentionRequest& r,
                              int32_t position) {
  return slot_of(p, fetch_slot(p, r, position));
}

SPECFAST_HD uint32_t first_bits(int n) { return n <= 0 ? 0u : n >= 32 ? ~0u : (1u << n) - 1; }

// Columns 32 * word ... of a row of the tree mask.
SPECFAST_HD_OUTLINED uint32_t mask_word(const VerifyAttentionParams& p, const AttentionRequest& r,
                                        int row, int word) {
  int64_t mask_row = int64_t{r.b} * p.mask_nodes + row;
  uint32_t columns = first_bits(r.num_rows - 32 * word);
  if (columns == 0) return 0;
  if (p.mask_bits != nullptr) {
    return p.mask_bits[mask_row * ceil_div(p.mask_nodes, 32) + word] & columns;
  }
  uint32_t bits = 0;
  SPECFAST_NO_UNROLL
  for (int c = 0; c < min_of(32, r.num_rows - 32 * word); ++c) {
    bits |= (p.mask_bytes[mask_row * p.mask_nodes + 32 * word + c] != 0 ? 1u : 0u) << c;
  }
  return bits;
}

SPECFAST_HD bool has_mask(const VerifyAttentionParams& p) {
  return p.mask_bits != nullptr || p.mask_bytes != nullptr;
}

// Positions between the anchor and a row: in a tree as many as the row has ancestors.
SPECFAST_HD_OUTLINED int row_depth(const VerifyAttentionParams& p, const AttentionRequest& r,
                                   int row) {
  if (!has_mask(p)) return row;
  int seen = 0;
  SPECFAST_NO_UNROLL
  for (int word = 0; word < ceil_div(r.num_rows, 32); ++word) {
    seen += popcount(mask_word(p, r, row, word));
  }
  return max_of(seen - 1, 0);
}

// Window columns 32 * word ... that a row sees.
SPECFAST_HD_OUTLINED uint32_t window_word(const VerifyAttentionParams& p, const AttentionRequest& r,
                                          int row, int word) {
  uint32_t bits;
  if (has_mask(p)) {
    bits = mask_word(p, r, row, word);
  } else {
    int last = p.block_bidirectional ? r.num_rows : row + 1;
    bits = first_bits(last - 32 * word);
  }
  // The window is shorter than the sliding window, as a rule.
  if (p.sliding_window == 0 || p.sliding_window >= r.num_rows) return bits;
  int depth = row_depth(p, r, row);
  SPECFAST_NO_UNROLL
  for (int c = 0; c < min_of(32, r.num_rows - 32 * word); ++c) {
    if (depth - row_depth(p, r, 32 * word + c) >= p.sliding_window) bits &= ~(1u << c);
  }
  return bits;
}

// First position of the prefix that a row at this depth sees; prefix_len if it sees none.
SPECFAST_HD int32_t first_seen(const VerifyAttentionParams& p, const AttentionRequest& r,
                               int depth) {
  if (p.sliding_window == 0) return 0;
  return clamp_to(r.prefix_len + depth - p.sliding_window + 1, 0, r.prefix_len);
}

// The chunk that this position is in, or the last one, behind which the window is.
SPECFAST_HD int chunk_of(const AttentionRequest& r, int32_t position) {
  return min_of(position / kChunkKeys, r.num_chunks() - 1);
}

}  // namespace specfast
