#pragma once

#include "core/attention_tile.cuh"

namespace specfast {

// Copies keys and values, tile by tile, into shared memory, by a warpgroup that does nothing else
// and runs ahead as far as there are places.
//
// Warp w has the keys 8 i + 2 w and 8 i + 2 w + 1 of a tile, in this order: bit f of `there` says
// whether number f is in the cache. Those are the keys whose scores lanes l with l % 4 == w get.
//
// Loads return in the order in which they were asked for, behind all copies under way: slots are
// looked up for some tiles at once, so many tiles before they are needed.
template <class Sizes>
class TileCopier {
  using Tile = typename Sizes::Tile;
  static constexpr int kWarpKeys = 16;
  static constexpr int kKeysAtOnce = 32 / Tile::kGroups;
  static constexpr int kRounds = kWarpKeys / kKeysAtOnce;
  static constexpr int kLookups = Sizes::kTilesPerLookup * kWarpKeys / 32;  // of a lane

 public:
  // Of `filled`, per round.
  static constexpr int kArrivals = Sizes::kCopyingThreads + 4;

  __device__ explicit TileCopier(const VerifyAttentionParams& p)
      : p_(p), at_(Tile::offset(key_of(lane() / Tile::kGroups), lane() % Tile::kGroups)) {}

  __device__ void copy(const AttentionRequest& r, int kv_head, const KeyTiles& tiles) {
    const uint8_t* keys = columns_of(p_.keys, kv_head);
    const uint8_t* values = columns_of(p_.values, kv_head);
    SlotLoad next[kLookups];
    fetch(r, tiles, 0, next);
    SPECFAST_NO_UNROLL
    for (int tile = 0; tile < tiles.count; ++tile) {
      const int first = tile % Sizes::kTilesPerLookup * kWarpKeys;
      if (first == 0) {
        __syncwarp();  // slots of the tiles before are read
        SPECFAST_UNROLL
        for (int i = 0; i < kLookups; ++i) {
          store_shared(slot(i * 32 + lane()), slot_of(p_, next[i]));
        }
        __syncwarp();  // slots are written
        fetch(r, tiles, tile + Sizes::kTilesPerLookup, next);
      }
      const uint32_t there = __ballot_sync(~0u, load_shared(slot(first + lane() % kWarpKeys)) >= 0);
      wait_for_place();
      if (is_chosen_lane()) store_shared(&Sizes::shared().there[place_.index][warp()], there);
      copy_piece(keys, p_.keys.slot_stride, first);
      wait_for_place();
      copy_piece(values, p_.values.slot_stride, first);
    }
  }

 private:
  __device__ static int warp() { return threadIdx.x % 128 / 32; }
  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ static int32_t* slot(int number) { return &Sizes::shared().slots[warp()][number]; }
  __device__ static int key_of(int number) { return number / 2 * 8 + warp() * 2 + number % 2; }

  __device__ static const uint8_t* columns_of(const KvCache& cache, int kv_head) {
    return static_cast<const uint8_t*>(cache.data) + kv_head * cache.head_stride * 2 +
           lane() % Tile::kGroups * 16;
  }

  // Of tile `first` and those behind it.
  __device__ void fetch(const AttentionRequest& r, const KeyTiles& tiles, int first,
                        SlotLoad (&loads)[kLookups]) const {
    SPECFAST_UNROLL
    for (int i = 0; i < kLookups; ++i) {
      const int number = i * 32 + lane();
      const int tile = first + number / kWarpKeys;
      const int key = tile * Sizes::kTileKeys + key_of(number % kWarpKeys);
      const int column = key - tiles.in_prefix * Sizes::kTileKeys;
      const int32_t position = column < 0 ? tiles.first + key : r.prefix_len + column;
      const bool wanted = column < 0 ? position >= tiles.wanted && position < tiles.end
                                     : tile < tiles.count && column < r.num_rows;
      loads[i] = {{0, 0}, -1};
      if (wanted) loads[i] = fetch_slot(p_, r, position);
    }
  }

  __device__ void wait_for_place() const {
    wait_for_round(Sizes::shared().emptied + place_.index, place_.round - 1);
  }

  // Of the slots from number `first` on.
  __device__ void copy_piece(const uint8_t* columns, int64_t stride, int first) {
    const uint32_t piece = shared_offset(Sizes::shared().pieces[place_.index]) + at_;
    // Without the permutation of a key beside it.
    const uint32_t odd_piece = shared_offset(Sizes::shared().pieces[place_.index]) + (at_ ^ 16);
    // All are read before the first copy.
    int32_t from[kRounds];
    SPECFAST_UNROLL
    for (int i = 0; i < kRounds; ++i) {
      from[i] = load_shared(slot(first + i * kKeysAtOnce + lane() / Tile::kGroups));
    }
    SPECFAST_UNROLL
    for (int i = 0; i < kRounds; ++i) {
      const bool odd = i * kKeysAtOnce % 2 != 0;
      const int further = i * kKeysAtOnce / 2 * 1024 + (odd ? 128 : 0);
      copy_async_16((odd ? odd_piece : piece) + further, columns, from[i],
                    static_cast<uint32_t>(stride * 2));
    }
    fill_place();
  }

  __device__ void fill_place() {
    uint64_t* filled = Sizes::shared().filled + place_.index;
    arrive_after_copies(filled);
    if (is_chosen_lane()) arrive(filled);  // `there` is written
    place_.advance();
  }

  const VerifyAttentionParams& p_;
  const uint32_t at_;  // of this lane's first group in a piece
  PiecePlace<Sizes::kPlaces> place_;
};

}  // namespace specfast
