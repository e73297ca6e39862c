#pragma once

#include "core/status.h"
#include "core/team.h"
#include "core/types.h"

struct CUstream_st;

namespace specfast {

constexpr int kMaxStateBuffers = 256;

// What the threads of a part copy before they turn to another place.
constexpr int kStateTileBytes = 16384;

// Words that a thread loads before it stores the first of them.
constexpr int kStateWordsInFlight = 4;

// States of `layers` layers: an item of item_bytes bytes for each of them and
//   each verify row, at states + layer * state_layer_stride + row * state_row_stride,
//   each slot, at pool + layer * pool_layer_stride + slot * pool_slot_stride.
// Strides are in bytes. word_bytes (16, 8, 4, 2 or 1) divides both addresses and all byte counts.
struct StateBuffer {
  const char* states;
  char* pool;
  int64_t state_layer_stride;
  int64_t state_row_stride;
  int64_t pool_layer_stride;
  int64_t pool_slot_stride;
  int64_t item_bytes;
  int64_t first_tile;  // number of the buffer's first tile over all buffers
  int32_t tiles_per_item;
  int32_t word_bytes;
};

// Copies the state after the last committed row of each request into the request's slot, in all
// buffers: pool[:, slots[b]] = states[:, accept_index[b, commit_lens[b] - 1]].
//
// commit_lens[b] = 0 is a padded slot: nothing of it is read or written. A length outside [0, S], a
// row outside [0, num_rows) or a slot outside [0, num_slots) changes no byte of the pool, and the
// request's status says BAD_PATH. States and pool share no bytes; slots of different requests are
// not compared.
struct CommitStateParams {
  int32_t batch_size;   // B
  int32_t path_width;   // S
  int32_t num_buffers;  // <= kMaxStateBuffers
  int64_t num_tiles;    // over all buffers and layers
  int64_t num_rows;     // R
  int64_t num_slots;

  const int32_t* accept_index;  // [B, S]
  int64_t accept_index_stride;  // elements between rows
  const int32_t* commit_lens;   // [B]
  IdView slots;                 // [B]
  const StateBuffer* buffers;   // [num_buffers], a host array; the kernel gets a copy

  int32_t* status;  // [B]
  bool accumulate_status;
};

// Allowed to alias whatever the buffers hold.
template <class T>
struct __attribute__((may_alias)) StateWord {
  T bits;
};
struct alignas(16) StateWordPair {
  uint64_t low;
  uint64_t high;
};

template <class T, class Team>
SPECFAST_HD void copy_state_words(Team& team, const char* from, char* to, int bytes) {
  auto source = reinterpret_cast<const StateWord<T>*>(from);
  auto destination = reinterpret_cast<StateWord<T>*>(to);
  int count = bytes / static_cast<int>(sizeof(T));
  SPECFAST_NO_UNROLL
  for (int first = team.rank(); first < count; first += team.size() * kStateWordsInFlight) {
    StateWord<T> held[kStateWordsInFlight] = {};
    SPECFAST_UNROLL
    for (int i = 0; i < kStateWordsInFlight; ++i) {
      int at = first + i * team.size();
      if (at < count) held[i] = source[at];
    }
    SPECFAST_UNROLL
    for (int i = 0; i < kStateWordsInFlight; ++i) {
      int at = first + i * team.size();
      if (at < count) destination[at] = held[i];
    }
  }
}

// Tile `tile` of a buffer, counted from its own first one.
template <class Team>
SPECFAST_HD void copy_state_tile(Team& team, const StateBuffer& buffer, int64_t tile, int64_t row,
                                 int64_t slot) {
  int64_t layer = tile / buffer.tiles_per_item;
  int64_t begin = (tile - layer * buffer.tiles_per_item) * kStateTileBytes;
  int bytes = static_cast<int>(min_of<int64_t>(kStateTileBytes, buffer.item_bytes - begin));
  const char* from =
      buffer.states + layer * buffer.state_layer_stride + row * buffer.state_row_stride + begin;
  char* to =
      buffer.pool + layer * buffer.pool_layer_stride + slot * buffer.pool_slot_stride + begin;
  switch (buffer.word_bytes) {
    case 16:
      return copy_state_words<StateWordPair>(team, from, to, bytes);
    case 8:
      return copy_state_words<uint64_t>(team, from, to, bytes);
    case 4:
      return copy_state_words<uint32_t>(team, from, to, bytes);
    case 2:
      return copy_state_words<uint16_t>(team, from, to, bytes);
    case 1:
      return copy_state_words<uint8_t>(team, from, to, bytes);
  }
}

// Request b; the parts of the team divide the tiles and never wait for each other.
template <class Team>
SPECFAST_HD void commit_state_request(Team& team, const CommitStateParams& p, int b) {
  int commit_len = p.commit_lens[b];
  bool bad = commit_len < 0 || commit_len > p.path_width;
  int64_t row = 0;
  int64_t slot = 0;
  if (!bad && commit_len > 0) {
    row = p.accept_index[b * p.accept_index_stride + commit_len - 1];
    slot = p.slots[b];
    bad = row < 0 || row >= p.num_rows || slot < 0 || slot >= p.num_slots;
  }
  if (team.part() == 0 && team.rank() == 0) {
    int32_t seen = p.accumulate_status ? p.status[b] : kStatusOk;
    p.status[b] = seen | (bad ? kBadPath : kStatusOk);
  }
  if (bad || commit_len == 0) return;
  int at = 0;
  SPECFAST_NO_UNROLL
  for (int64_t tile = team.part(); tile < p.num_tiles; tile += team.parts()) {
    while (at + 1 < p.num_buffers && p.buffers[at + 1].first_tile <= tile) ++at;
    copy_state_tile(team, p.buffers[at], tile - p.buffers[at].first_tile, row, slot);
  }
}

inline void commit_state_cpu(const CommitStateParams& p) {
  for (int b = 0; b < p.batch_size; ++b) {
    SerialTeam team;
    commit_state_request(team, p, b);
  }
}

void commit_state_cuda(const CommitStateParams& p, CUstream_st* stream);

}  // namespace specfast
