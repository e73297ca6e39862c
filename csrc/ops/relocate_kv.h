#pragma once

#include "core/kv_pieces.h"
#include "core/status.h"
#include "core/team.h"
#include "core/types.h"

struct CUstream_st;

namespace specfast {

constexpr int kMaxPathRows = 1024;
constexpr int kMaxChunks = 1 << 24;

// Columns that 32 consecutive threads move together: at most 512 bytes of one row.
constexpr int kChunkColumns = 32;

// Rows that a thread loads before it stores the first of them.
constexpr int kRowsInFlight = 8;

// kChunkColumns columns of an entry, or what is left of them.
struct KvChunk {
  int32_t pieces;
  int32_t first_column;
};

// Moves the committed rows of each request to the front of its window, in all buffers at once:
// entry accept_index[b, i] becomes entry begin_b + i for i < commit_lens[b].
//
// The path must begin at the first row of the window, increase strictly and stay inside, and the
// slots of its rows and of its destinations must be distinct and within [0, num_slots).
// Otherwise no byte of that request moves and its status says BAD_PATH. commit_lens[b] = 0 is a
// padded slot: nothing is read or moved.
//
// `pieces` and `chunks` are read while kernels before this one in the stream may still run, so none
// of those may write them. KvLayout writes them once, with a copy that it waits for.
//
// Gather semantics without staging: as the path increases, a source lies at or behind its
// destination, so a later row never reads what an earlier one wrote, and rows may be moved front to
// back in batches. Rows that are in place are not touched; they are a prefix of the path.
struct RelocateKvParams {
  int32_t batch_size;        // B
  int32_t path_width;        // S <= kMaxPathRows
  int32_t num_rows;          // R
  int32_t rows_per_request;  // window of request b is [b * n, b * n + n); unless qo_indptr is given
  int32_t num_chunks;
  int32_t num_buffers;  // <= kMaxKvBuffers
  int32_t page_size;    // slots per page, in all buffers
  int64_t num_slots;    // <= 2^31 - 1

  const int32_t* accept_index;  // [B, S] verify rows, -1 past commit_lens[b]
  int64_t accept_index_stride;  // elements between rows
  const int32_t* commit_lens;   // [B]
  const int32_t* qo_indptr;     // [B + 1], window of request b; null: rows_per_request
  IdView out_cache_loc;         // [R] slot of each row; null if every buffer is by row
  const KvPieces* pieces;
  const KvChunk* chunks;  // [num_chunks]
  void* const* buffers;   // [num_buffers], a host array; the kernel gets a copy

  int32_t* status;  // [B]
  bool accumulate_status;
};

struct KvMove {
  KvEntry from;
  KvEntry to;
};

struct RelocateKvScratch {
  KvMove* rows;   // [S]
  KvMove* slots;  // [S]
};

template <class Arena>
SPECFAST_HD RelocateKvScratch relocate_kv_scratch(Arena& arena, const RelocateKvParams& p) {
  KvMove* rows = arena.template scratch<KvMove>(p.path_width);
  return {rows, arena.template scratch<KvMove>(p.path_width)};
}

// Whether move i contradicts move j: the path goes back from j to i, or two rows have one slot. A
// source among the destinations is a row of its own only from window position commit_len on.
SPECFAST_HD bool contradicts(const RelocateKvScratch& scratch, int i, int j, int commit_len) {
  int from_row = scratch.rows[i].from.page;
  KvMove mine = scratch.slots[i];
  KvMove other = scratch.slots[j];
  bool goes_back = j + 1 == i && from_row <= scratch.rows[j].from.page;
  bool one_destination = j < i && other.to == mine.to;
  bool source_is_other_row = from_row >= scratch.rows[0].to.page + commit_len;
  bool one_source = other.to == mine.from || (j < i && other.from == mine.from);
  return goes_back || one_destination || (source_is_other_row && one_source);
}

// This thread's share of all pairs (i, j). Eight threads per i take neighbouring j: a short path
// then has a pair or two for each thread, and no division tells which.
template <class Team>
SPECFAST_HD bool any_contradicts(Team& team, const RelocateKvScratch& scratch, int commit_len) {
  constexpr int kThreadsPerMove = 8;
  bool found = false;
  SPECFAST_NO_UNROLL
  for (int at = team.rank(); at < commit_len * kThreadsPerMove; at += team.size()) {
    SPECFAST_NO_UNROLL
    for (int j = at % kThreadsPerMove; j < commit_len; j += kThreadsPerMove) {
      found |= contradicts(scratch, at / kThreadsPerMove, j, commit_len);
    }
  }
  return found;
}

// Whole, so that nothing has to wait for its length.
template <class Team>
SPECFAST_HD void fetch_path(Team& team, const RelocateKvParams& p, const RelocateKvScratch& scratch,
                            int b) {
  const int32_t* path = p.accept_index + b * p.accept_index_stride;
  SPECFAST_NO_UNROLL
  for (int i = team.rank(); i < p.path_width; i += team.size()) scratch.rows[i].from = {path[i], 0};
}

// Completes the scratch and returns the first path position whose row moves (commit_len if all are
// in place), or -1 if the path is bad. Same on all threads.
template <class Team>
SPECFAST_HD int plan_moves(Team& team, const RelocateKvParams& p, const RelocateKvScratch& scratch,
                           int b, int commit_len) {
  int64_t begin = p.qo_indptr ? p.qo_indptr[b] : int64_t{b} * p.rows_per_request;
  int64_t end = p.qo_indptr ? p.qo_indptr[b + 1] : begin + p.rows_per_request;
  bool window_fits = begin >= 0 && begin <= end && end <= p.num_rows;
  bool bad = commit_len < 0 || commit_len > p.path_width || (commit_len > 0 && !window_fits);
  int len = bad ? 0 : commit_len;
  int first_moving = len;
  SPECFAST_NO_UNROLL
  for (int i = team.rank(); i < len; i += team.size()) {
    int from = scratch.rows[i].from.page;
    int to = static_cast<int>(begin) + i;
    bool legal = from >= to && from < end && (i > 0 || from == to);
    if (from != to) first_moving = min_of(first_moving, i);
    scratch.rows[i].to = {to, 0};
    // Without slots, every row is as good as in a slot of its own number.
    scratch.slots[i] = scratch.rows[i];
    if (legal && p.out_cache_loc) {
      int64_t source = p.out_cache_loc[from];
      int64_t destination = p.out_cache_loc[to];
      legal = min_of(source, destination) >= 0 && max_of(source, destination) < p.num_slots;
      if (legal)
        scratch.slots[i] = {entry_of_slot(source, p.page_size),
                            entry_of_slot(destination, p.page_size)};
    }
    bad |= !legal;
  }
  team.sync_part();  // every move is written before other threads compare it with theirs
  bad |= any_contradicts(team, scratch, len);
  return team.min(bad ? -1 : first_moving);
}

// One column of a buffer's entries, at base + page * page_stride + in_page * slot_stride.
struct KvColumn {
  char* base;
  int64_t page_stride;
  int64_t slot_stride;
  int32_t bytes;  // 0: no column, the chunk ends before it
  bool by_row;

  SPECFAST_HD char* of(KvEntry entry) const {
    return base + entry.page * page_stride + entry.in_page * slot_stride;
  }
};

// `column` counts over all chunks.
SPECFAST_HD KvColumn column_of(const RelocateKvParams& p, int column) {
  if (column >= p.num_chunks * kChunkColumns) return {};
  KvChunk chunk = p.chunks[column / kChunkColumns];
  KvPieces pieces = p.pieces[chunk.pieces];
  // Nearly every entry is one piece of 16-byte columns: no division on that way.
  int32_t bytes = static_cast<int32_t>(pieces.column_bytes);
  int shift = log2_ceil(bytes);
  int columns_per_piece = static_cast<int>(pieces.piece_bytes >> shift);
  int in_entry = chunk.first_column + column % kChunkColumns;
  int piece = pieces.num_pieces == 1 ? in_entry >= columns_per_piece : in_entry / columns_per_piece;
  if (piece >= pieces.num_pieces) return {};
  int64_t in_piece = in_entry - piece * columns_per_piece;
  char* base = static_cast<char*>(p.buffers[pieces.buffer]) + pieces.offset +
               piece * pieces.piece_stride + (in_piece << shift);
  return {base, pieces.page_stride, pieces.slot_stride, bytes, pieces.by_row != 0};
}

// The column with which this thread begins.
template <class Team>
SPECFAST_HD int first_column(Team& team) {
  return team.part() * team.size() + team.rank();
}

// What a thread loads and stores at once; allowed to alias whatever the buffers hold.
template <class T>
struct __attribute__((may_alias)) KvWord {
  T bits;
};
struct alignas(16) TwoWords {
  uint64_t low;
  uint64_t high;
};

// Moves one column of `count` entries, front to back.
template <class T>
SPECFAST_HD void move_words(const KvColumn& column, const KvMove* moves, int count) {
  auto word_of = [&](KvEntry entry) { return reinterpret_cast<KvWord<T>*>(column.of(entry)); };
  SPECFAST_NO_UNROLL
  for (int first = 0; first < count; first += kRowsInFlight) {
    KvWord<T> held[kRowsInFlight] = {};
    for (int i = 0; i < kRowsInFlight; ++i) {
      if (first + i < count) held[i] = *word_of(moves[first + i].from);
    }
    for (int i = 0; i < kRowsInFlight; ++i) {
      if (first + i < count) *word_of(moves[first + i].to) = held[i];
    }
  }
}

SPECFAST_HD void move_column(const KvColumn& column, const KvMove* moves, int count) {
  switch (column.bytes) {
    case 16:
      return move_words<TwoWords>(column, moves, count);
    case 8:
      return move_words<uint64_t>(column, moves, count);
    case 4:
      return move_words<uint32_t>(column, moves, count);
    case 2:
      return move_words<uint16_t>(column, moves, count);
    case 1:
      return move_words<uint8_t>(column, moves, count);
  }
}

// Request b; the parts of the team divide the columns and never wait for each other. Each checks
// the whole path, because no byte may move before the path is known to be good. `column` is
// column_of(p, first_column(team)): the layout's part of the work, which a kernel does before it
// waits for the kernel that wrote the path.
template <class Team>
SPECFAST_HD void relocate_kv_request(Team& team, const RelocateKvParams& p, int b,
                                     KvColumn column) {
  RelocateKvScratch scratch = relocate_kv_scratch(team, p);
  int commit_len = p.commit_lens[b];
  fetch_path(team, p, scratch, b);
  int first_moving = plan_moves(team, p, scratch, b, commit_len);
  if (team.part() == 0 && team.rank() == 0) {
    int32_t seen = p.accumulate_status ? p.status[b] : kStatusOk;
    p.status[b] = seen | (first_moving < 0 ? kBadPath : kStatusOk);
  }
  if (first_moving < 0 || first_moving == commit_len) return;
  int at = first_column(team);
  while (at < p.num_chunks * kChunkColumns) {
    const KvMove* moves = column.by_row ? scratch.rows : scratch.slots;
    move_column(column, moves + first_moving, commit_len - first_moving);
    at += team.parts() * team.size();
    column = column_of(p, at);
  }
}

inline void relocate_kv_cpu(const RelocateKvParams& p) {
  for (int b = 0; b < p.batch_size; ++b) {
    SerialTeam team;
    relocate_kv_request(team, p, b, column_of(p, first_column(team)));
  }
}

void relocate_kv_cuda(const RelocateKvParams& p, CUstream_st* stream);

}  // namespace specfast
