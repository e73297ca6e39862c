#pragma once

#include "core/rotated_head.h"
#include "core/team.h"
#include "core/types.h"

struct CUstream_st;

namespace specfast {

// What a layer does between the product that projects its rows and its attention: queries and keys
// are normed by head (where a weight is there) and rotated, and keys and values are stored in the
// cache. RotatedHead says how; values keep their bits.
//
// A row at a position outside the tables of angles has queries of zeros and stores nothing; one
// whose slot is outside the cache stores nothing.
struct RopeAppendKvParams {
  int32_t num_rows;      // R
  int32_t num_heads;     // Hq
  int32_t num_kv_heads;  // H; R * (Hq + H) < 2^30
  int32_t head_dim;      // D
  int32_t rotary_dim;    // even, <= D
  FloatType type;        // of qkv, queries and caches
  // Addresses and strides are multiples of 16 bytes; D and rotary_dim / 2 are multiples of 8.
  bool has_wide_rows;

  const void* qkv;  // [R, (Hq + 2 H) D]: the heads of the queries, of the keys, of the values
  int64_t qkv_stride;
  // Row r = b * n + i has entry (b, i), any strides between entries.
  int32_t rows_per_request;  // n
  IdView positions;          // [B, n]
  int64_t positions_request_stride;
  int64_t positions_stride;
  IdView slots;  // [B, n]
  int64_t slots_request_stride;
  int64_t slots_stride;
  const float* q_norm_weight;  // [D]; null: queries are not normed
  const float* k_norm_weight;  // the same of keys
  float eps;                   // added to the mean square
  const float* cos;            // [num_positions, rotary_dim / 2]
  const float* sin;            // the same
  int64_t num_positions;

  void* queries;  // [R, Hq, D], dense
  void* keys;     // [num_slots, H, D], of dense heads
  void* values;   // the same
  int64_t num_slots;
  int64_t key_slot_stride;
  int64_t key_head_stride;
  int64_t value_slot_stride;
  int64_t value_head_stride;
};

// All rows: parts and subgroups of the team divide their heads and never wait for each other.
template <class T>
struct RotatedRows {
  const RopeAppendKvParams& p;

  template <class Team>
  SPECFAST_HD void run(const Team& team) const {
    int32_t heads = p.num_heads + p.num_kv_heads;
    int32_t first = team.part() * team.subgroups() + team.subgroup();
    SPECFAST_NO_UNROLL
    for (int32_t unit = first; unit < p.num_rows * heads; unit += team.parts() * team.subgroups()) {
      int32_t row = unit / heads;
      if (p.has_wide_rows) {
        store_head<kWidePiece>(team, row, unit - row * heads);
      } else {
        store_head<1>(team, row, unit - row * heads);
      }
    }
  }

 private:
  // Head `number` of a row: of its queries, and behind them of its keys.
  template <int kPiece, class Team>
  SPECFAST_HD void store_head(const Team& team, int32_t row, int32_t number) const {
    int32_t b = row / p.rows_per_request;
    int32_t i = row - b * p.rows_per_request;
    int64_t position = p.positions[b * p.positions_request_stride + i * p.positions_stride];
    bool is_query = number < p.num_heads;
    bool is_known = position >= 0 && position < p.num_positions;
    RotatedHead<T> head{};
    head.source = static_cast<const T*>(p.qkv) + row * p.qkv_stride + int64_t{number} * p.head_dim;
    head.weight = is_query ? p.q_norm_weight : p.k_norm_weight;
    head.eps = p.eps;
    head.head_dim = p.head_dim;
    head.rotary_dim = p.rotary_dim;
    if (is_query) {
      head.target = static_cast<T*>(p.queries) + (int64_t{row} * p.num_heads + number) * p.head_dim;
      if (!is_known) return clear<kPiece>(team, head.target);
    } else {
      int64_t slot = p.slots[b * p.slots_request_stride + i * p.slots_stride];
      if (!is_known || slot < 0 || slot >= p.num_slots) return;
      int32_t kv_head = number - p.num_heads;
      head.target =
          static_cast<T*>(p.keys) + slot * p.key_slot_stride + kv_head * p.key_head_stride;
      copy_head<kPiece>(
          team, head.source + int64_t{p.num_kv_heads} * p.head_dim,
          static_cast<T*>(p.values) + slot * p.value_slot_stride + kv_head * p.value_head_stride,
          p.head_dim);
    }
    head.cos = p.cos + position * (p.rotary_dim / 2);
    head.sin = p.sin + position * (p.rotary_dim / 2);
    head.template store<kPiece>(team);
  }

  template <int kPiece, class Team>
  SPECFAST_HD void clear(const Team& team, T* target) const {
    for (int32_t d = team.lane() * kPiece; d < p.head_dim; d += team.lanes() * kPiece) {
      put_piece(target + d, RowPiece<T, kPiece>{});
    }
  }
};

void rope_append_kv_cpu(const RopeAppendKvParams& p);
void rope_append_kv_cuda(const RopeAppendKvParams& p, CUstream_st* stream);

}  // namespace specfast
