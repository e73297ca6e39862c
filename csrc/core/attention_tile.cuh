#pragma once

#include "core/attention_plan.cuh"
#include "core/attention_rows.cuh"

namespace specfast {

// Sizes of a kernel for T and head_dim whose CTAs take 16 * kWarps rows at a time. Two small CTAs
// share an SM: while one computes or begins, the other reads.
template <class T_, int kHeadDim_, int kWarps_>
struct AttentionSizes {
  using T = T_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kWarps = kWarps_;  // that compute; all copy
  static constexpr int kThreads = kWarps < 4 ? 128 : 32 * kWarps;
  static constexpr int kTileRows = 16 * kWarps;
  static constexpr int kCtasPerSm = kThreads == 128 ? 2 : 1;
  static constexpr bool kHasWarpgroups = kHeadDim <= 128;
  static constexpr int kMostSlices = kHeadDim <= 128 ? 4 : 2;
  static constexpr int kMostKeys = kSpanChunks * kChunkKeys + kMaxAttentionRows;

  // Slices of keys are those of 16 KB; a tile is one such piece, or two.
  static constexpr int kPieceKeys = 8192 / kHeadDim;
  static constexpr int kTileKeys = kPieceKeys * (kWarps == 8 && kHeadDim == 128 ? 2 : 1);
  using Tile = KeyTile<kHeadDim, kTileKeys>;
  static constexpr int kStages = (kCtasPerSm == 2 ? 3 : 6) * kPieceKeys / kTileKeys;
  using Rows = WarpRows<T, kHeadDim, Tile>;
  // Query rows that a tile can touch: heads of one row may be divided between two tiles.
  static constexpr int kQueryRows = kTileRows + 2;

  struct Shared {
    alignas(1024) uint8_t keys[kStages][Tile::kBytes];
    uint8_t values[kStages][Tile::kBytes];
    int32_t slots[kMostKeys];                 // of the span's keys, tile by tile; -1: not there
    uint32_t there[kMostKeys / 32];           // the same as bits
    uint32_t window[kQueryRows][kMaskWords];  // what each row sees of it
    int32_t first_seen[kQueryRows];           // of the prefix
    float normalizers[kTileRows];
    RowSoftmax slices[48];  // rows of all slices but the first
    AttentionPlan::Shared plan;
    bool is_last;
  };
  // 228 KB of an SM, 1 KB of which every CTA loses.
  static_assert(kCtasPerSm * (sizeof(Shared) + 1024) <= 228 * 1024);
};

// The rows of one item and their keys.
struct AttentionTile {
  AttentionRequest request;
  int group;  // query heads per KV head
  int kv_head;
  int first_row;  // tile row i is query row (first_row + i) / group of the request
  int num_rows;   // of the tile
};

// What a warp does for a tile, decided by the rows of the whole request, so that the bits of a row
// do not depend on how rows are tiled: more than 32 rows go through matrix instructions of
// warpgroups, where there are some; few rows are taken by several warps at once, each with a slice
// of the keys.
struct WarpPlace {
  bool as_warpgroups;
  int slices;
  int slice;
  int row_block;  // of 16 rows
  bool computes;

  template <class Sizes>
  __device__ static WarpPlace find(const AttentionTile& tile) {
    const int rows = tile.request.num_rows * tile.group;
    const int warp = threadIdx.x / 32;
    WarpPlace place;
    place.as_warpgroups = Sizes::kHasWarpgroups && rows > 32;
    place.slices = rows <= 16 ? Sizes::kMostSlices : rows <= 32 ? 2 : 1;
    const int row_blocks = place.slices == 1 ? Sizes::kWarps : 4 / place.slices;
    place.slice = warp / row_blocks;
    place.row_block = warp - place.slice * row_blocks;
    const int first_block = place.as_warpgroups ? place.row_block / 4 * 4 : place.row_block;
    place.computes = place.slice < place.slices && first_block * 16 < tile.num_rows;
    return place;
  }

  __device__ bool keeps_rows() const { return computes && slice == 0; }
  // This lane's first or second row of the tile.
  __device__ int row(int r) const { return row_block * 16 + threadIdx.x % 32 / 4 + 8 * r; }
};

// The row of query or out that a row of the tile stands for, at its first column.
template <class Pointer>
__device__ Pointer tile_row(const AttentionTile& tile, int row, Pointer base, int64_t row_stride,
                            int64_t head_stride) {
  const int query_row = (tile.first_row + row) / tile.group;
  const int head = tile.first_row + row - query_row * tile.group + tile.kv_head * tile.group;
  return base + (tile.request.first_row + query_row) * row_stride + head * head_stride;
}

// Two columns of out.
template <class T>
__device__ void store_pair(const VerifyAttentionParams& p, const AttentionTile& tile, int row,
                           int column, float low, float high) {
  if (row >= tile.num_rows) return;
  T* out = tile_row(tile, row, static_cast<T*>(p.out), p.out_row_stride, p.out_head_stride);
  *reinterpret_cast<uint32_t*>(out + column) = pack_pair<T>(low, high);
}

// What a slice of the keys gave, in shared memory: values as [block][lane].
struct SliceSums {
  const float4* values;
  RowSoftmax rows[2];

  __device__ float4 block(int i) const { return values[i * 32]; }
};

// Reads the keys of one span of a request and attends to them.
template <class Sizes>
class SpanReader {
  using T = typename Sizes::T;
  using Rows = typename Sizes::Rows;
  using Tile = typename Sizes::Tile;
  using Shared = typename Sizes::Shared;
  static constexpr int kTileKeys = Sizes::kTileKeys;

 public:
  __device__ SpanReader(const VerifyAttentionParams& p, Shared& shared, const AttentionTile& tile,
                        const WarpPlace& place, ChunkRange chunks)
      : p_(p), shared_(shared), tile_(tile), place_(place) {
    const AttentionRequest& r = tile.request;
    const int32_t low = first_seen(p, r, 0);
    first_ = max_of(chunks.first * kChunkKeys, low / kTileKeys * kTileKeys);
    const int32_t end = min_of(chunks.last * kChunkKeys, r.prefix_len);
    prefix_tiles_ = end > first_ ? ceil_div(end - first_, kTileKeys) : 0;
    const bool has_window = chunks.last == r.num_chunks();
    num_tiles_ = prefix_tiles_ + (has_window ? ceil_div(r.num_rows, kTileKeys) : 0);
    slides_until_ = p.sliding_window == 0 ? 0 : low + kMaxAttentionRows;
    keys_ = columns_of(p.keys);
    values_ = columns_of(p.values);
    key_stride_ = static_cast<int32_t>(p.keys.slot_stride * 2);
    value_stride_ = static_cast<int32_t>(p.values.slot_stride * 2);
    find_slots(max_of(first_, low), end);
    if (has_window) find_window();
  }

  // Calls end_chunk() after each chunk, by the warps that keep its rows.
  template <class EndChunk>
  __device__ void run(Rows& rows, float c, EndChunk end_chunk) {
    __syncthreads();  // slots, and what rows see, are written
    SPECFAST_NO_UNROLL
    for (int tile = 0; tile < Sizes::kStages - 1; ++tile) copy_tile(tile);
    SPECFAST_NO_UNROLL
    for (int tile = 0; tile < num_tiles_; ++tile) {
      wait_for_copies<Sizes::kStages - 2>();
      if (place_.as_warpgroups) show_copies_to_matrices();
      __syncthreads();  // all have copied this tile, and read the one whose place is copied to next
      copy_tile(tile + Sizes::kStages - 1);
      if (place_.computes) attend(rows, tile, c);
      const bool chunk_ends =
          tile + 1 == num_tiles_ ||
          (tile + 1 < prefix_tiles_ && (first_ + (tile + 1) * kTileKeys) % kChunkKeys == 0);
      if (!chunk_ends) continue;
      rows.finish_sums();
      if (place_.slices > 1) merge_slices(rows, tile % Sizes::kStages, c);
      if (place_.keeps_rows()) end_chunk();
      rows.clear();
    }
    wait_for_copies<0>();
    __syncthreads();  // all have read the last tile, and slots
  }

 private:
  __device__ void find_slots(int32_t first, int32_t end) {
    const AttentionRequest& r = tile_.request;
    SPECFAST_NO_UNROLL
    for (int i = threadIdx.x; i < num_tiles_ * kTileKeys; i += Sizes::kThreads) {
      const int column = i - prefix_tiles_ * kTileKeys;
      const int32_t position = column < 0 ? first_ + i : r.prefix_len + column;
      const bool wanted = column < 0 ? position >= first && position < end : column < r.num_rows;
      const int32_t slot = wanted ? find_slot(p_, r, position) : -1;
      shared_.slots[i] = slot;
      const uint32_t there = __ballot_sync(~0u, slot >= 0);
      if (i % 32 == 0) shared_.there[i / 32] = there;
    }
    if (p_.sliding_window == 0) return;
    SPECFAST_NO_UNROLL
    for (int i = threadIdx.x; i < num_query_rows(); i += Sizes::kThreads) {
      shared_.first_seen[i] = first_seen(p_, r, row_depth(p_, r, first_query_row() + i));
    }
  }
  __device__ void find_window() {
    const int words = ceil_div(tile_.request.num_rows, 32);
    SPECFAST_NO_UNROLL
    for (int i = threadIdx.x; i < num_query_rows() * words; i += Sizes::kThreads) {
      const int row = i / words;
      const int word = i - row * words;
      shared_.window[row][word] = window_word(p_, tile_.request, first_query_row() + row, word);
    }
  }
  __device__ int first_query_row() const { return tile_.first_row / tile_.group; }
  __device__ int num_query_rows() const {
    return (tile_.first_row + tile_.num_rows - 1) / tile_.group - first_query_row() + 1;
  }

  __device__ const uint8_t* columns_of(const KvCache& cache) const {
    return static_cast<const uint8_t*>(cache.data) + tile_.kv_head * cache.head_stride * 2 +
           threadIdx.x % Tile::kGroups * 16;
  }

  // Commits a group in any case, so that the groups under way can be counted.
  __device__ void copy_tile(int tile) {
    if (tile < num_tiles_) {
      constexpr int kKeysAtOnce = Sizes::kThreads / Tile::kGroups;
      const int stage = tile % Sizes::kStages;
      const uint32_t keys = shared_offset(shared_.keys[stage]);
      const uint32_t values = shared_offset(shared_.values[stage]);
      constexpr int kRounds = kTileKeys / kKeysAtOnce;
      const int first = threadIdx.x / Tile::kGroups;
      // All are read before the first copy, which would wait for each of them otherwise.
      int32_t slots[kRounds];
      SPECFAST_UNROLL
      for (int i = 0; i < kRounds; ++i) {
        slots[i] = shared_.slots[tile * kTileKeys + first + i * kKeysAtOnce];
      }
      uint32_t at = Tile::offset(first, threadIdx.x % Tile::kGroups);
      SPECFAST_UNROLL
      for (int i = 0; i < kRounds; ++i) {
        const int from = max_of(slots[i], 0);
        if (kKeysAtOnce % 8 != 0) {
          at = Tile::offset(first + i * kKeysAtOnce, threadIdx.x % Tile::kGroups);
        }
        copy_async_16(keys + at, keys_ + int64_t{from} * key_stride_, slots[i] >= 0);
        copy_async_16(values + at, values_ + int64_t{from} * value_stride_, slots[i] >= 0);
        at += kKeysAtOnce * 128;  // eight keys further, groups are permuted alike
      }
    }
    commit_copies();
  }

  __device__ void attend(Rows& rows, int tile, float c) {
    const int stage = tile % Sizes::kStages;
    const uint32_t keys = shared_offset(shared_.keys[stage]);
    const uint32_t values = shared_offset(shared_.values[stage]);
    if constexpr (Sizes::kHasWarpgroups) {
      if (place_.as_warpgroups) {
        attend_as_warpgroup(rows, keys, values, tile, c);
        return;
      }
    }
    constexpr int kFewKeys = Sizes::kPieceKeys / Sizes::kMostSlices;
    SPECFAST_NO_UNROLL
    for (int piece = 0; piece < kTileKeys; piece += Sizes::kPieceKeys) {
      if (place_.slices == Sizes::kMostSlices) {
        attend_slice<kFewKeys>(rows, keys, values, tile, piece, c);
      } else {
        attend_slice<2 * kFewKeys>(rows, keys, values, tile, piece, c);
      }
    }
  }

  __device__ void attend_as_warpgroup(Rows& rows, uint32_t keys, uint32_t values, int tile,
                                      float c) {
    uint32_t seen[2][2];
    bool masked = find_seen(tile, 0, 64, seen);
    if constexpr (kTileKeys == 128) {
      uint32_t seen_next[2][2];
      masked |= find_seen(tile, 64, 64, seen_next);
      rows.attend_two_as_warpgroup(keys, values, 0, c, masked, seen, seen_next);
    } else {
      static_assert(kTileKeys == 64);
      rows.attend_as_warpgroup(keys, values, 0, c, masked, seen);
    }
  }

  template <int kNumKeys>
  __device__ void attend_slice(Rows& rows, uint32_t keys, uint32_t values, int tile, int piece,
                               float c) {
    uint32_t seen[2][2];
    const int key = piece + place_.slice * kNumKeys;
    const bool masked = find_seen(tile, key, kNumKeys, seen);
    rows.template attend<kNumKeys>(keys, values, key, c, masked, seen);
  }

  // Which of a tile's keys this lane's rows see; false: all rows of the tile see all of them.
  __device__ bool find_seen(int tile, int key, int num_keys, uint32_t (&seen)[2][2]) const {
    bool masked = false;
    SPECFAST_UNROLL
    for (int i = 0; i < 2; ++i) {
      if (32 * i < num_keys) masked |= find_seen_32(tile, key + 32 * i, seen[i]);
    }
    return masked;
  }
  // Of 32 keys, or of 16, whose bits are the low ones.
  __device__ bool find_seen_32(int tile, int key, uint32_t (&seen)[2]) const {
    const int at = tile * kTileKeys + key / 32 * 32;  // within the span
    const uint32_t there = shared_.there[at / 32];
    const int32_t position = first_ + at;
    if (tile < prefix_tiles_ && there == ~0u && position >= slides_until_) {
      seen[0] = seen[1] = ~0u;
      return false;
    }
    SPECFAST_UNROLL
    for (int r = 0; r < 2; ++r) {
      seen[r] = there;
      const int row = query_row(r);
      if (row < 0) continue;
      if (tile >= prefix_tiles_) {
        const int word = at / 32 - prefix_tiles_ * (kTileKeys / 32);
        seen[r] &= word < kMaskWords ? shared_.window[row][word] : 0;
      } else if (p_.sliding_window > 0) {
        seen[r] &= ~first_bits(shared_.first_seen[row] - position);
      }
      seen[r] >>= key % 32;
    }
    return true;
  }

  // Into the first slice, in order. A tile's place serves as storage: it has been read.
  __device__ void merge_slices(Rows& rows, int stage, float c) {
    constexpr int kSliceBytes = Rows::kBlocks * 32 * sizeof(float4);
    constexpr int kPlaces = Tile::kBytes / kSliceBytes;
    const int row_blocks = 4 / place_.slices;
    const int lane = threadIdx.x % 32;
    auto values_of = [&](int slice) {
      const int place = (slice - 1) * row_blocks + place_.row_block;
      uint8_t* part = place < kPlaces ? shared_.keys[stage] + place * kSliceBytes
                                      : shared_.values[stage] + (place - kPlaces) * kSliceBytes;
      return reinterpret_cast<float4*>(part) + lane;
    };
    auto rows_of = [&](int slice) {
      return shared_.slices + ((slice - 1) * row_blocks + place_.row_block) * 16 + lane / 4;
    };
    __syncthreads();  // all have read the tile
    if (place_.computes && place_.slice > 0) {
      float4* values = values_of(place_.slice);
      SPECFAST_UNROLL
      for (int block = 0; block < Rows::kBlocks; ++block) values[block * 32] = rows.block(block);
      if (lane % 4 == 0) {
        rows_of(place_.slice)[0] = rows.rows[0];
        rows_of(place_.slice)[8] = rows.rows[1];
      }
    }
    __syncthreads();  // slices are written
    if (!place_.keeps_rows()) return;
    SPECFAST_NO_UNROLL
    for (int slice = 1; slice < place_.slices; ++slice) {
      const RowSoftmax* of = rows_of(slice);
      rows.add(SliceSums{values_of(slice), {of[0], of[8]}}, c);
    }
  }

  // From the tile's first one; -1 if there is none.
  __device__ int query_row(int r) const {
    const int row = place_.row(r);
    return row < tile_.num_rows ? (tile_.first_row + row) / tile_.group - first_query_row() : -1;
  }

  const VerifyAttentionParams& p_;
  Shared& shared_;
  const AttentionTile& tile_;
  const WarpPlace& place_;
  int32_t first_;     // position of the first key
  int prefix_tiles_;  // the window's follow
  int num_tiles_;
  int32_t slides_until_;  // from this position on all rows see the prefix
  const uint8_t* keys_;   // this thread's columns
  const uint8_t* values_;
  int32_t key_stride_;  // bytes, as products of 32-bit numbers are cheap
  int32_t value_stride_;
};

}  // namespace specfast
