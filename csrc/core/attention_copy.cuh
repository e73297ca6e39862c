#pragma once

#include "core/attention_convert.cuh"
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
//
// What is kept as float8 is copied into the front half of its place and converted there, by the
// lane that has copied it, some pieces later.
template <class Sizes>
class TileCopier {
  using Tile = typename Sizes::Tile;
  static constexpr int kWarpKeys = 16;
  static constexpr int kKeysAtOnce = 32 / Tile::kGroups;
  static constexpr int kRounds = kWarpKeys / kKeysAtOnce;
  using Kv = typename Sizes::Kv;
  static constexpr int kGroupBytes = 8 * sizeof(Kv);  // of 16 bytes that are multiplied
  // Pieces under way before the first is converted; what computes may hold one and want the next.
  static constexpr int kAhead = min_of(Sizes::kPlaces - 2, 4);
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
    if constexpr (Sizes::kConverts) {
      finish_copies<0>();
      while (num_unconverted_ > 0) convert_piece();
    }
  }

 private:
  __device__ static int warp() { return threadIdx.x % 128 / 32; }
  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ static int32_t* slot(int number) { return &Sizes::shared().slots[warp()][number]; }
  __device__ static int key_of(int number) { return number / 2 * 8 + warp() * 2 + number % 2; }

  __device__ static const uint8_t* columns_of(const KvCache& cache, int kv_head) {
    return static_cast<const uint8_t*>(cache.data) + kv_head * cache.head_stride * sizeof(Kv) +
           lane() % Tile::kGroups * kGroupBytes;
  }

  // Of tile `first` and those behind it.
  __device__ void fetch(const AttentionRequest& r, const KeyTiles& tiles, int first,
                        SlotLoad (&loads)[kLookups]) const {
    SPECFAST_UNROLL
    for (int i = 0; i < kLookups; ++i) {
      const int number = i * 32 + lane();
      const int tile = first + number / kWarpKeys;
      const int key = tile * KeyTiles::kTileKeys + key_of(number % kWarpKeys);
      const int column = key - tiles.in_prefix * KeyTiles::kTileKeys;
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
    // All are read before the first copy.
    int32_t from[kRounds];
    SPECFAST_UNROLL
    for (int i = 0; i < kRounds; ++i) {
      from[i] = load_shared(slot(first + i * kKeysAtOnce + lane() / Tile::kGroups));
    }
    SPECFAST_UNROLL
    for (int i = 0; i < kRounds; ++i) {
      copy_async<kGroupBytes>(group(place_.index, i), columns, from[i],
                              static_cast<uint32_t>(stride * sizeof(Kv)));
    }
    if constexpr (Sizes::kConverts) {
      commit_copies();
      place_.advance();
      if (++num_unconverted_ <= kAhead) return;
      finish_copies<kAhead>();
      convert_piece();
    } else {
      arrive_after_copies(filled(place_.index));
      show_there(place_.index);
      place_.advance();
    }
  }

  // Where this lane's group of round i lies.
  __device__ uint32_t group(int place, int i) const {
    const bool odd = i * kKeysAtOnce % 2 != 0;
    // Without the permutation of a key beside it.
    const uint32_t at = odd ? at_ ^ 16 : at_;
    return shared_offset(Sizes::shared().pieces[place]) + at +
           (i * kKeysAtOnce / 2 * 1024 + (odd ? 128 : 0));
  }

  // The oldest one, whose copies are done.
  __device__ void convert_piece() {
    SPECFAST_UNROLL
    for (int i = 0; i < kRounds; ++i) {
      convert_float8<typename Sizes::T>(group(unconverted_.index, i));
    }
    show_copies_to_matrices();
    arrive(filled(unconverted_.index));
    show_there(unconverted_.index);
    unconverted_.advance();
    --num_unconverted_;
  }

  __device__ static uint64_t* filled(int place) { return Sizes::shared().filled + place; }
  // `there` is written.
  __device__ static void show_there(int place) {
    if (is_chosen_lane()) arrive(filled(place));
  }

  const VerifyAttentionParams& p_;
  const uint32_t at_;  // of this lane's first group in a piece
  PiecePlace<Sizes::kPlaces> place_;
  PiecePlace<Sizes::kPlaces> unconverted_;  // the oldest one; for float8
  int num_unconverted_ = 0;
};

}  // namespace specfast
