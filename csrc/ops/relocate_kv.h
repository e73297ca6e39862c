#pragma once

#include "core/status.h"
#include "core/team.h"
#include "core/types.h"

struct CUstream_st;

namespace specfast {

constexpr int kMaxPathRows = 1024;
constexpr int kMaxKvBuffers = 1024;
constexpr int kMaxChunks = 1 << 24;

// Columns that 32 consecutive threads move together: at most 512 bytes of one row.
constexpr int kChunkColumns = 32;

// Rows that a thread loads before it stores the first of them.
constexpr int kRowsInFlight = 4;

// Where the bytes of an entry of a buffer lie: num_pieces pieces of piece_bytes, piece n at
//   buffers[buffer] + offset + page * page_stride + in_page * slot_stride + n * piece_stride
// An entry is KV slot page * page_size + in_page; where by_row is set it is verify row `page`.
// column_bytes (16, 8, 4, 2 or 1) divides the address of the buffer and all other byte counts.
// One row of the int64 tensor that KvLayout builds.
struct KvPieces {
  int64_t buffer;
  int64_t by_row;
  int64_t column_bytes;
  int64_t offset;
  int64_t page_stride;
  int64_t slot_stride;
  int64_t num_pieces;
  int64_t piece_bytes;
  int64_t piece_stride;
};

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

struct KvEntry {
  int32_t page;
  int32_t in_page;

  SPECFAST_HD bool operator==(const KvEntry& other) const {
    return page == other.page && in_page == other.in_page;
  }
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

// A slot fits into 32 bits, where a division is cheap.
SPECFAST_HD KvEntry entry_of(const RelocateKvParams& p, int64_t slot) {
  int32_t page = static_cast<int32_t>(slot) / p.page_size;
  return {page, static_cast<int32_t>(slot) - page * p.page_size};
}

// Whether row and slots of move i contradict those of an earlier move: the path goes back, or two
// rows have one slot. A source among the destinations is a row of its own only from window position
// commit_len on.
SPECFAST_HD bool contradicts_earlier(const RelocateKvScratch& scratch, int i, int commit_len) {
  int from_row = scratch.rows[i].from.page;
  KvMove mine = scratch.slots[i];
  bool source_is_other_row = from_row >= scratch.rows[0].to.page + commit_len;
  bool contradicts = i > 0 && from_row <= scratch.rows[i - 1].from.page;
  for (int j = 0; j < commit_len; ++j) {
    KvMove other = scratch.slots[j];
    contradicts |= j < i && other.to == mine.to;
    contradicts |=
        source_is_other_row && (other.to == mine.from || (j < i && other.from == mine.from));
  }
  return contradicts;
}

// Whole, so that nothing has to wait for its length.
template <class Team>
SPECFAST_HD void fetch_path(Team& team, const RelocateKvParams& p, const RelocateKvScratch& scratch,
                            int b) {
  const int32_t* path = p.accept_index + b * p.accept_index_stride;
  for (int i = team.rank(); i < p.path_width; i += team.size()) scratch.rows[i].from = {path[i], 0};
}

// Completes the scratch and returns the first path position whose row moves (commit_len if all are
// in place), or -1 if the path is bad. Same on all threads.
template <class Team>
SPECFAST_HD int plan_moves(Team& team, const RelocateKvParams& p, const RelocateKvScratch& scratch,
                           int b, int commit_len) {
  int64_t begin = p.qo_indptr ? p.qo_indptr[b] : int64_t{b} * p.rows_per_request;
  int64_t end = p.qo_indptr ? p.qo_indptr[b + 1] : begin + p.rows_per_request;
  bool window_fits = begin >= 0 && end <= p.num_rows;
  bool bad = commit_len < 0 || commit_len > p.path_width || (commit_len > 0 && !window_fits);
  int len = bad ? 0 : commit_len;
  int first_moving = len;
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
      if (legal) scratch.slots[i] = {entry_of(p, source), entry_of(p, destination)};
    }
    bad |= !legal;
  }
  team.sync_part();  // every move is written before other threads compare it with theirs
  for (int i = team.rank(); i < len; i += team.size()) bad |= contradicts_earlier(scratch, i, len);
  return team.min(bad ? -1 : first_moving);
}

// One column of a buffer's entries, at base + page * page_stride + in_page * slot_stride.
struct KvColumn {
  char* base;
  int64_t page_stride;
  int64_t slot_stride;
  int32_t bytes;  // 0: no column, the chunk ends before it

  SPECFAST_HD char* of(KvEntry entry) const {
    return base + entry.page * page_stride + entry.in_page * slot_stride;
  }
};

SPECFAST_HD KvColumn column_of(const RelocateKvParams& p, const KvPieces& pieces, KvChunk chunk,
                               int lane) {
  int columns_per_piece = static_cast<int>(pieces.piece_bytes / pieces.column_bytes);
  int column = chunk.first_column + lane;
  int piece = column / columns_per_piece;
  if (piece >= pieces.num_pieces) return {};
  char* base = static_cast<char*>(p.buffers[pieces.buffer]) + pieces.offset +
               piece * pieces.piece_stride +
               (column - piece * columns_per_piece) * pieces.column_bytes;
  return {base, pieces.page_stride, pieces.slot_stride, static_cast<int32_t>(pieces.column_bytes)};
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
// the whole path, because no byte may move before the path is known to be good.
template <class Team>
SPECFAST_HD void relocate_kv_request(Team& team, const RelocateKvParams& p, int b) {
  RelocateKvScratch scratch = relocate_kv_scratch(team, p);
  int num_columns = p.num_chunks * kChunkColumns;
  int column = team.part() * team.size() + team.rank();
  // The order of these lines keeps several loads on their way: chunk, then pieces, travel beside
  // path, then slots.
  KvChunk chunk = p.chunks[min_of(column, num_columns - 1) / kChunkColumns];
  int commit_len = p.commit_lens[b];
  fetch_path(team, p, scratch, b);
  KvPieces pieces = p.pieces[chunk.pieces];
  int first_moving = plan_moves(team, p, scratch, b, commit_len);
  if (team.part() == 0 && team.rank() == 0) {
    int32_t seen = p.accumulate_status ? p.status[b] : kStatusOk;
    p.status[b] = seen | (first_moving < 0 ? kBadPath : kStatusOk);
  }
  if (first_moving < 0 || first_moving == commit_len) return;
  while (column < num_columns) {
    const KvMove* moves = pieces.by_row ? scratch.rows : scratch.slots;
    move_column(column_of(p, pieces, chunk, column % kChunkColumns), moves + first_moving,
                commit_len - first_moving);
    column += team.parts() * team.size();
    chunk = p.chunks[min_of(column, num_columns - 1) / kChunkColumns];
    pieces = p.pieces[chunk.pieces];
  }
}

inline void relocate_kv_cpu(const RelocateKvParams& p) {
  for (int b = 0; b < p.batch_size; ++b) {
    SerialTeam team;
    relocate_kv_request(team, p, b);
  }
}

void relocate_kv_cuda(const RelocateKvParams& p, CUstream_st* stream);

}  // namespace specfast
