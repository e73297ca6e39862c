#pragma once

#include "core/attention_plan.cuh"
#include "core/attention_rows.cuh"
#include "core/device_team.cuh"

namespace specfast {

// An item and what belongs to it.
struct AttentionTask {
  AttentionItem item;
  AttentionRequest request;
  ChunkRange chunks;
};

// The rows of one item and their keys.
struct AttentionTile {
  AttentionRequest request;
  int group;  // query heads per KV head
  int kv_head;
  int first_row;  // tile row i is query row (first_row + i) / group of the request
  int num_rows;   // of the tile

  __device__ int query_row(int row) const { return (first_row + row) / group; }
  __device__ int first_query_row() const { return query_row(0); }
  __device__ int num_query_rows() const { return query_row(num_rows - 1) - first_query_row() + 1; }
};

// Tiles of the keys of some chunks: those of the prefix, then those of the window.
struct KeyTiles {
  static constexpr int kTileKeys = 64;

  int32_t first;   // position of the first key
  int32_t wanted;  // before this position no row sees anything
  int32_t end;     // of the prefix
  int in_prefix;
  int count;

  // The tile behind the last one of the chunk that tile i is in.
  __device__ int end_of_chunk(int i) const {
    const int end = i + keys_left_of_chunk(first + i * kTileKeys) / kTileKeys;
    return end < in_prefix ? end : count;
  }

  __device__ static KeyTiles find(const AttentionRequest& r, const ChunkRange& chunks) {
    KeyTiles tiles;
    tiles.wanted = chunks.begin;
    tiles.first = chunks.begin / kTileKeys * kTileKeys;
    tiles.end = chunks.end;
    tiles.in_prefix = tiles.end > tiles.first ? ceil_div(tiles.end - tiles.first, kTileKeys) : 0;
    tiles.count = tiles.in_prefix + (chunks.has_window ? ceil_div(r.num_rows, kTileKeys) : 0);
    return tiles;
  }
};

// Sizes of a kernel for T, keys and values of type Kv and head_dim whose CTAs take 64 * kGroups
// rows at a time, a warpgroup each; one more copies. Two small CTAs share an SM: while one begins
// or merges, the other reads.
template <class T_, class Kv_, int kHeadDim_, int kGroups_>
struct AttentionSizes {
  using T = T_;
  using Kv = Kv_;  // T, or Float8 with scales
  static constexpr bool kConverts = sizeof(Kv) < sizeof(T);
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kGroups = kGroups_;
  static constexpr int kComputingThreads = 128 * kGroups;
  static constexpr int kCopyingThreads = 128;
  static constexpr int kThreads = kComputingThreads + kCopyingThreads;
  static constexpr int kTileRows = 64 * kGroups;
  static constexpr int kCtasPerSm = kGroups == 1 && kHeadDim <= 128 ? 2 : 1;
  // Those that compute need more registers than all could have alike, those that copy fewer.
  static constexpr bool kMovesRegisters = kGroups > 1 || kCtasPerSm > 1;
  static constexpr int kCopyingRegisters = 48;
  static constexpr int kComputingRegisters = kGroups == 1 ? 208 : 224;

  using Tile = RowTile<kHeadDim>;
  using Rows = GroupRows<T, kHeadDim>;
  static constexpr int kTileKeys = Tile::kRows;
  static_assert(kTileKeys == KeyTiles::kTileKeys);
  static constexpr int kTilesPerLookup = 2;
  // Query rows that a tile can touch: heads of one row may be divided between two tiles.
  static constexpr int kQueryRows = kTileRows + 2;

  struct Small {
    uint64_t filled[32];
    uint64_t emptied[32];
    int32_t slots[4][kTilesPerLookup * kTileKeys / 4];  // of each copying warp; -1: not there
    alignas(8) uint16_t there[32][4];                   // see TileCopier
    int32_t query_row[kTileRows];                       // of a row, from the first one; -1: none
    int32_t window[kQueryRows][kMaskWords];             // what each row sees of it
    int32_t first_seen[kQueryRows];                     // of the prefix
    int32_t slides_until;  // from this position on all rows see the prefix
    AttentionPlan::Shared plan;
    // What the copying warps begin with, one after the other, for those that compute.
    AttentionTask tasks[2];
    uint64_t task_found[2];
    uint64_t task_done[2];
  };
  // The registers of two warpgroups do not hold a total and a query, too; the matrix instructions
  // of two are faster if queries are in registers.
  static constexpr bool kQueryInRegisters = kGroups == 2;
  // Where a total is not in registers, there is room for weights beside the next scores.
  static constexpr bool kOverlaps = kQueryInRegisters;
  static constexpr int kQueryBytes = kQueryInRegisters ? 0 : Tile::kBytes;
  static constexpr int kTotalBytes = kQueryInRegisters ? kTileRows * kHeadDim * 4 : 0;

  // 228 KB of an SM, 1 KB of which every CTA loses.
  static constexpr int kSharedBytes = 228 * 1024 / kCtasPerSm - 1024;
  static constexpr int kPlaces =
      static_cast<int>((kSharedBytes - kQueryBytes - kTotalBytes - sizeof(Small)) / Tile::kBytes);
  static_assert(kPlaces <= 32);

  struct Tiles {
    alignas(1024) uint8_t pieces[kPlaces][Tile::kBytes];  // keys or values of a tile
    uint8_t kept[kQueryBytes + kTotalBytes];              // one of the two
  };
  struct Shared : Tiles, Small {};
  static_assert(sizeof(Shared) <= kSharedBytes);
  // By name each time: of a pointer in an object the compiler may not know what it points to.
  __device__ static Shared& shared() { return *reinterpret_cast<Shared*>(dynamic_shared_memory); }
};

// The row of query or out that a row of the tile stands for, at its first column.
template <class Pointer>
__device__ Pointer tile_row(const AttentionTile& tile, int row, Pointer base, int64_t row_stride,
                            int64_t head_stride) {
  const int query_row = tile.query_row(row);
  const int head = tile.first_row + row - query_row * tile.group + tile.kv_head * tile.group;
  return base + (tile.request.first_row + query_row) * row_stride + head * head_stride;
}

// What scores are multiplied by, in units of log2(e).
template <class Sizes>
__device__ float score_factor(const VerifyAttentionParams& p, int kv_head) {
  const float of_keys = Sizes::kConverts ? scale_of(p.keys, kv_head) : 1.0f;
  return p.scale * of_keys * 1.44269504f;
}
// What weighted values are multiplied by in the end.
template <class Sizes>
__device__ float value_factor(const VerifyAttentionParams& p, int kv_head, const RowSoftmax& row) {
  const float factor = normalizer(row);
  return Sizes::kConverts && row.sum != 0 ? factor * scale_of(p.values, kv_head) : factor;
}

// Two columns of out.
template <class T>
__device__ void store_pair(const VerifyAttentionParams& p, const AttentionTile& tile, int row,
                           int column, float low, float high) {
  if (row >= tile.num_rows) return;
  T* out = tile_row(tile, row, static_cast<T*>(p.out), p.out_row_stride, p.out_head_stride);
  *reinterpret_cast<uint32_t*>(out + column) = pack_pair<T>(low, high);
}

// Where pieces go one after the other, in turn: all who count along know of the same.
template <int kPlaces>
struct PiecePlace {
  int index = 0;
  int round = 0;

  __device__ void advance() {
    if (++index < kPlaces) return;
    index = 0;
    ++round;
  }
};

// A barrier of the threads that compute.
template <class Sizes>
__device__ void sync_computing() {
  asm volatile("bar.sync 1, %0;" ::"n"(Sizes::kComputingThreads) : "memory");
}

}  // namespace specfast
