#pragma once

#include "core/kv_pieces.h"
#include "core/rotated_head.h"
#include "core/status.h"
#include "core/team.h"
#include "core/types.h"

struct CUstream_st;

namespace specfast {

// Stores the keys and values that all layers of a block drafter have of the committed rows: row i
// of request b, for i < commit_lens[b], at position prefix_lens[b] + i. Its keys are divided by
// their root mean square and multiplied by k_norm_weight (if it is there), then rotated: channels d
// and d + half are a pair, for d < half = rotary_dim / 2. All in float32, rounded once, to `type`.
//
// A request of which something is bad stores nothing: a length outside [0, S] or a row outside
// [0, num_source_rows) (BAD_PATH); positions past the tables of angles or of pages, a row outside
// the table, an entry of it that is no page (BAD_PARAM). commit_lens[b] = 0 is a padded slot, of
// which nothing else is read.
struct InjectContextKvParams {
  int32_t batch_size;  // B
  int32_t max_rows;    // S: no request has more
  int32_t num_layers;  // L <= kMaxKvBuffers / 2
  int32_t num_heads;   // H; S * L * H < 2^30
  int32_t head_dim;    // D
  int32_t rotary_dim;  // even, <= D
  FloatType type;      // of keys_values and of all buffers
  // Rows of keys_values lie at multiples of 16 bytes; D and rotary_dim / 2 are multiples of 8.
  bool has_wide_rows;

  // Element (b, row, layer, head, d) of the keys at the sum of its strides, in elements, and of the
  // values value_stride behind it. `row` is accept_index[b, i] if that is there, otherwise i.
  const void* keys_values;
  int64_t request_stride;  // 0 where rows are numbered over the batch
  int64_t row_stride;
  int64_t layer_stride;
  int64_t value_stride;
  int64_t head_stride;
  int64_t num_source_rows;

  const int32_t* accept_index;  // [B, S]; null: the rows of each request in order
  int64_t accept_index_stride;  // elements between rows
  const int32_t* commit_lens;   // [B]
  const int32_t* prefix_lens;   // [B]

  const float* k_norm_weight;  // [L, D]; null: keys are not normalised
  float eps;                   // added to the mean square
  const float* cos;            // [num_positions, rotary_dim / 2]
  const float* sin;            // the same
  int64_t num_positions;

  IdView page_table;  // [num_table_rows, num_pages]
  int64_t page_table_stride;
  int64_t num_table_rows;
  int64_t num_pages;
  int32_t page_size;               // of the page table
  const int32_t* page_table_rows;  // [B] or null: b

  const KvPieces* pieces;    // [2 L], number n is all of buffer n; a head is within a piece
  void* const* buffers;      // [2 L] keys and values of layer 0, of layer 1, ...: a host array, of
                             // which the kernel gets a copy
  int32_t buffer_page_size;  // of the buffers
  int64_t num_slots;         // <= 2^31 - 1

  int32_t* status;  // [B]
  bool accumulate_status;
};

// The rows of one request; the parts of the team divide the heads of all layers and never wait for
// each other. Each checks the whole request, because nothing may be stored before it is known to be
// good.
template <class T>
struct ContextInjection {
  const InjectContextKvParams& p;
  int32_t b;

  template <class Team>
  SPECFAST_HD void run(Team& team) {
    int32_t commit_len = p.commit_lens[b];
    int32_t status = commit_len < 0 || commit_len > p.max_rows ? kBadPath : kStatusOk;
    int32_t count = status == kStatusOk ? commit_len : 0;
    if (count > 0 && !has_positions(count)) status = kBadParam;
    if (status != kStatusOk) count = 0;
    bool bad_row = false;
    bool bad_slot = false;
    SPECFAST_NO_UNROLL
    for (int32_t i = team.rank(); i < count; i += team.size()) {
      int64_t row = source_row(i);
      bad_row |= row < 0 || row >= p.num_source_rows;
      bad_slot |= slot_of(i) < 0;
    }
    if (team.any(bad_row)) status |= kBadPath;
    if (team.any(bad_slot)) status |= kBadParam;
    if (team.part() == 0 && team.rank() == 0) {
      p.status[b] = (p.accumulate_status ? p.status[b] : kStatusOk) | status;
    }
    if (status != kStatusOk) return;

    int32_t first = team.part() * team.subgroups() + team.subgroup();
    if (Team::kOnDevice && has_small_heads()) {
      SPECFAST_NO_UNROLL
      for (int32_t unit = first; unit < count * p.num_layers;
           unit += team.parts() * team.subgroups()) {
        store_small_heads(team, unit / p.num_layers, unit % p.num_layers);
      }
      return;
    }
    int32_t all = count * p.num_layers * p.num_heads;
    SPECFAST_NO_UNROLL
    for (int32_t unit = first; unit < all; unit += team.parts() * team.subgroups()) {
      int32_t layer_of_row = unit / p.num_heads;
      int32_t i = layer_of_row / p.num_layers;
      store_head(team, i, layer_of_row - i * p.num_layers, unit - layer_of_row * p.num_heads);
    }
  }

 private:
  static constexpr int kHeadLanes = 8;

  SPECFAST_HD int64_t table_row() const {
    return p.page_table_rows != nullptr ? p.page_table_rows[b] : b;
  }
  SPECFAST_HD int64_t source_row(int32_t i) const {
    return p.accept_index != nullptr ? p.accept_index[b * p.accept_index_stride + i] : i;
  }

  // Whether rows, pages and angles of these positions can be looked up.
  SPECFAST_HD bool has_positions(int32_t count) const {
    int64_t begin = p.prefix_lens[b];
    int64_t row = table_row();
    return begin >= 0 && begin + count <= min_of(p.num_positions, p.num_pages * p.page_size) &&
           row >= 0 && row < p.num_table_rows;
  }

  // The slot of row i, -1 if there is none.
  SPECFAST_HD int64_t slot_of(int32_t i) const {
    int32_t position = p.prefix_lens[b] + i;
    int32_t number = position / p.page_size;
    int64_t page = p.page_table[table_row() * p.page_table_stride + number];
    if (page < 0 || page >= p.num_slots / p.page_size) return -1;
    return page * p.page_size + (position - number * p.page_size);
  }

  SPECFAST_HD T* target(const KvPieces& pieces, int32_t buffer, KvEntry entry, int32_t head) const {
    int64_t first_byte = int64_t{head} * p.head_dim * static_cast<int64_t>(sizeof(T));
    int64_t piece = pieces.num_pieces == 1 ? 0 : first_byte / pieces.piece_bytes;
    char* base = static_cast<char*>(p.buffers[buffer]) + pieces.offset;
    return reinterpret_cast<T*>(base + entry.page * pieces.page_stride +
                                entry.in_page * pieces.slot_stride + piece * pieces.piece_stride +
                                (first_byte - piece * pieces.piece_bytes));
  }

  // Whether eight lanes hold a head, each two runs of its keys that are rotated with each other,
  // and the two are the first to be added to each other in the sum of all.
  SPECFAST_HD bool has_small_heads() const {
    int32_t dim = p.head_dim;
    bool has_two_runs = dim >= 2 * kLaneRun && dim <= 2 * kLaneRun * kHeadLanes;
    return p.has_wide_rows && p.rotary_dim == dim && has_two_runs && (dim & (dim - 1)) == 0;
  }

  // All heads of a layer by a warp, four at a time: what they share is looked up once.
  template <class Team>
  SPECFAST_HD void store_small_heads(Team& team, int32_t i, int32_t layer) const {
    KvPieces of_keys = p.pieces[2 * layer];
    KvPieces of_values = p.pieces[2 * layer + 1];
    if (of_keys.column_bytes != 16 || of_values.column_bytes != 16) {
      for (int32_t number = 0; number < p.num_heads; ++number) store_head(team, i, layer, number);
      return;
    }
    KvEntry entry = entry_of_slot(slot_of(i), p.buffer_page_size);
    int32_t half = p.head_dim / 2;
    int32_t d = team.lane() % kHeadLanes * kLaneRun;
    bool has_run = d < half;
    const T* rows = static_cast<const T*>(p.keys_values) + b * p.request_stride +
                    source_row(i) * p.row_stride + layer * p.layer_stride + d;
    const float* weight =
        p.k_norm_weight != nullptr ? p.k_norm_weight + layer * p.head_dim : nullptr;
    int64_t angles = (int64_t{p.prefix_lens[b]} + i) * half + d;
    float low_weights[kLaneRun], high_weights[kLaneRun], cosines[kLaneRun], sines[kLaneRun];
    SPECFAST_UNROLL
    for (int n = 0; n < kLaneRun; ++n) {
      low_weights[n] = has_run && weight != nullptr ? weight[d + n] : 1.0f;
      high_weights[n] = has_run && weight != nullptr ? weight[half + d + n] : 1.0f;
      cosines[n] = has_run ? p.cos[angles + n] : 0.0f;
      sines[n] = has_run ? p.sin[angles + n] : 0.0f;
    }
    SPECFAST_NO_UNROLL
    for (int32_t first = 0; first < p.num_heads; first += team.lanes() / kHeadLanes) {
      int32_t number = first + team.lane() / kHeadLanes;
      bool here = has_run && number < p.num_heads;
      const T* keys = rows + number * p.head_stride;
      RowPiece<T, kLaneRun> low{}, high{}, low_values{}, high_values{};
      if (here) {
        low = get_piece<kLaneRun>(keys);
        high = get_piece<kLaneRun>(keys + half);
        low_values = get_piece<kLaneRun>(keys + p.value_stride);
        high_values = get_piece<kLaneRun>(keys + p.value_stride + half);
      }
      float scale = 1.0f;
      if (weight != nullptr) {
        float sums[kLaneSums / kHeadLanes] = {squares_of(low), squares_of(high)};
        float squares = folded_sums<kHeadLanes>(sums);
        scale = 1.0f / sqrtf(squares / static_cast<float>(p.head_dim) + p.eps);
      }
      if (!here) continue;
      SPECFAST_UNROLL
      for (int n = 0; n < kLaneRun; ++n) {
        float x = to_float(low.values[n]) * scale * low_weights[n];
        float y = to_float(high.values[n]) * scale * high_weights[n];
        low.values[n] = rounded_to<T>(x * cosines[n] - y * sines[n]);
        high.values[n] = rounded_to<T>(y * cosines[n] + x * sines[n]);
      }
      T* key_target = target(of_keys, 2 * layer, entry, number) + d;
      T* value_target = target(of_values, 2 * layer + 1, entry, number) + d;
      put_piece(key_target, low);
      put_piece(key_target + half, high);
      put_piece(value_target, low_values);
      put_piece(value_target + half, high_values);
    }
  }

  SPECFAST_HD static float squares_of(const RowPiece<T, kLaneRun>& run) {
    float sum = 0.0f;
    SPECFAST_UNROLL
    for (int n = 0; n < kLaneRun; ++n) {
      float value = to_float(run.values[n]);
      sum += value * value;
    }
    return sum;
  }

  template <class Team>
  SPECFAST_HD void store_head(Team& team, int32_t i, int32_t layer, int32_t number) const {
    KvEntry entry = entry_of_slot(slot_of(i), p.buffer_page_size);
    KvPieces of_keys = p.pieces[2 * layer];
    KvPieces of_values = p.pieces[2 * layer + 1];
    int64_t position = int64_t{p.prefix_lens[b]} + i;
    int32_t half = p.rotary_dim / 2;
    const T* keys = static_cast<const T*>(p.keys_values) + b * p.request_stride +
                    source_row(i) * p.row_stride + layer * p.layer_stride + number * p.head_stride;
    const T* values = keys + p.value_stride;
    T* value_target = target(of_values, 2 * layer + 1, entry, number);
    RotatedHead<T> head;
    head.source = keys;
    head.target = target(of_keys, 2 * layer, entry, number);
    head.weight = p.k_norm_weight != nullptr ? p.k_norm_weight + layer * p.head_dim : nullptr;
    head.eps = p.eps;
    head.cos = p.cos + position * half;
    head.sin = p.sin + position * half;
    head.head_dim = p.head_dim;
    head.rotary_dim = p.rotary_dim;
    if (p.has_wide_rows && of_keys.column_bytes == 16 && of_values.column_bytes == 16) {
      copy_head<8>(team, values, value_target, p.head_dim);
      head.template store<8>(team);
    } else {
      copy_head<1>(team, values, value_target, p.head_dim);
      head.template store<1>(team);
    }
  }
};

void inject_context_kv_cpu(const InjectContextKvParams& p);
void inject_context_kv_cuda(const InjectContextKvParams& p, CUstream_st* stream);

}  // namespace specfast
