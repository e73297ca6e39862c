#pragma once

#include <type_traits>

#include "core/attention_tile.cuh"

namespace specfast {

// What the warps that compute do with the tiles that TileCopier copies, in its order.
template <class Sizes>
class TileReader {
  using T = typename Sizes::T;
  using Rows = typename Sizes::Rows;
  using Tile = typename Sizes::Tile;

 public:
  // Of `emptied`, per round.
  static constexpr int kArrivals = Sizes::kComputingThreads / 32;

  __device__ explicit TileReader(const VerifyAttentionParams& p) : p_(p) {
    if constexpr (!Sizes::kQueryInRegisters) {
      query_.address = shared_offset(Sizes::shared().kept);
    }
  }

  // This lane's first or second row of the tile.
  __device__ static int row(int r) { return threadIdx.x / 32 * 16 + lane() / 4 + 8 * r; }

  // Makes ready what all tiles of keys are held against.
  __device__ void begin(const AttentionTile& tile, bool has_window) {
    sync_computing<Sizes>();  // all are done with the tile before
    load_query(tile);
    if (threadIdx.x < Sizes::kTileRows) {
      const int row = threadIdx.x;
      Sizes::shared().query_row[row] =
          row < tile.num_rows ? tile.query_row(row) - tile.first_query_row() : -1;
    }
    if (has_window) find_window(tile);
    if (p_.sliding_window > 0) find_first_seen(tile);
    show_copies_to_matrices();
    sync_computing<Sizes>();  // queries, and what rows see, are written
  }

  // Calls end_chunk(what was seen of it) after each chunk.
  template <class EndChunk>
  __device__ void read(const KeyTiles& tiles, float c, EndChunk end_chunk) {
    Rows rows;
    typename Rows::Scores scores;
    uint32_t seen[2];
    bool masked = false;
    rows.clear();
    if (tiles.count > 0) {
      masked = begin_tile(tiles, 0, scores, seen);
      rows.finish(scores);
      leave_piece();
    }
    SPECFAST_NO_UNROLL
    for (int i = 0; i < tiles.count; ++i) {
      if (masked) Rows::hide_unseen(scores, seen);
      rows.weigh(scores, c);
      wait_for_piece();
      rows.begin_values(scores, piece());
      const PiecePlace<Sizes::kPlaces> values = place_;
      place_.advance();
      // The next tile's scores follow at once.
      const bool is_last = i + 1 == tiles.count;
      if (!is_last) masked = begin_tile(tiles, i + 1, scores, seen);
      rows.finish(scores);
      leave(values);
      if (!is_last) leave_piece();
      const bool chunk_ends =
          is_last ||
          (i + 1 < tiles.in_prefix && (tiles.first + (i + 1) * Sizes::kTileKeys) % kChunkKeys == 0);
      if (!chunk_ends) continue;
      rows.finish_sums();
      end_chunk(rows);
      rows.clear();
    }
  }

 private:
  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ uint32_t piece() const { return shared_offset(Sizes::shared().pieces[place_.index]); }
  __device__ void wait_for_piece() {
    wait_for_round(Sizes::shared().filled + place_.index, place_.round);
    show_copies_to_matrices();
  }
  __device__ void leave_piece() {
    leave(place_);
    place_.advance();
  }
  __device__ static void leave(const PiecePlace<Sizes::kPlaces>& place) {
    __syncwarp();  // all lanes have read
    if (is_chosen_lane()) arrive(Sizes::shared().emptied + place.index);
  }

  // As far as the scores of tile i; whether some are to be hidden.
  __device__ bool begin_tile(const KeyTiles& tiles, int i, typename Rows::Scores& scores,
                             uint32_t (&seen)[2]) {
    wait_for_piece();
    const bool masked = find_seen(tiles, i, seen);
    Rows::begin_scores(scores, query_, piece());
    return masked;
  }

  __device__ const T* query_of(const AttentionTile& tile, int row) const {
    if (row >= tile.num_rows) return nullptr;
    return tile_row(tile, row, static_cast<const T*>(p_.query), p_.query_row_stride,
                    p_.query_head_stride);
  }

  __device__ void load_query(const AttentionTile& tile) {
    if constexpr (Sizes::kQueryInRegisters) {
      query_.load(query_of(tile, row(0)), query_of(tile, row(1)));
    } else {
      constexpr int kWords = Sizes::kHeadDim / 2;
      constexpr int kWarps = Sizes::kComputingThreads / 32;
      constexpr int kRowsAtOnce = 8;
      SPECFAST_NO_UNROLL
      for (int first = threadIdx.x / 32; first < Sizes::kTileRows; first += kWarps * kRowsAtOnce) {
        uint32_t words[kRowsAtOnce][kWords / 32];
        SPECFAST_UNROLL
        for (int i = 0; i < kRowsAtOnce; ++i) {
          const T* from = query_of(tile, first + i * kWarps);
          SPECFAST_UNROLL
          for (int j = 0; j < kWords / 32; ++j) {
            const int column = (j * 32 + lane()) * 2;
            words[i][j] = from == nullptr ? 0 : *reinterpret_cast<const uint32_t*>(from + column);
          }
        }
        SPECFAST_UNROLL
        for (int i = 0; i < kRowsAtOnce; ++i) {
          const int row = first + i * kWarps;
          SPECFAST_UNROLL
          for (int j = 0; j < kWords / 32; ++j) {
            const uint32_t at = Tile::offset(row, j * 8 + lane() / 4) + lane() % 4 * 4;
            *reinterpret_cast<uint32_t*>(Sizes::shared().kept + at) = words[i][j];
          }
        }
      }
    }
  }

  __device__ void find_first_seen(const AttentionTile& tile) {
    const AttentionRequest& r = tile.request;
    if (threadIdx.x == 0) {
      Sizes::shared().slides_until = first_seen(p_, r, 0) + kMaxAttentionRows;
    }
    SPECFAST_NO_UNROLL
    for (int i = threadIdx.x; i < tile.num_query_rows(); i += Sizes::kComputingThreads) {
      const int depth = row_depth(p_, r, tile.first_query_row() + i);
      Sizes::shared().first_seen[i] = first_seen(p_, r, depth);
    }
  }
  __device__ void find_window(const AttentionTile& tile) {
    const int words = ceil_div(tile.request.num_rows, Sizes::kTileKeys) * 2;
    SPECFAST_NO_UNROLL
    for (int i = threadIdx.x; i < tile.num_query_rows() * words; i += Sizes::kComputingThreads) {
      const int row = i / words;
      const int word = i - row * words;
      Sizes::shared().window[row][word] =
          window_word(p_, tile.request, tile.first_query_row() + row, word);
    }
  }

  // Which keys of tile i this lane's rows see, as GroupRows has it; false: all of them.
  __device__ bool find_seen(const KeyTiles& tiles, int i, uint32_t (&seen)[2]) const {
    const uint16_t* there = Sizes::shared().there[place_.index];
    const auto* pairs = reinterpret_cast<const int32_t*>(there);
    const bool all_there = (load_shared(pairs) & load_shared(pairs + 1)) == -1;
    const int32_t position = tiles.first + i * Sizes::kTileKeys;
    const bool slides =
        p_.sliding_window > 0 && position < load_shared(&Sizes::shared().slides_until);
    if (i < tiles.in_prefix && all_there && !slides) return false;
    SPECFAST_UNROLL
    for (int r = 0; r < 2; ++r) {
      seen[r] = load_shared(there + lane() % 4);
      const int query_row = load_shared(Sizes::shared().query_row + row(r));
      if (query_row < 0) continue;
      if (i >= tiles.in_prefix) {
        const int32_t* words = Sizes::shared().window[query_row] + (i - tiles.in_prefix) * 2;
        seen[r] &= lane_bits(load_shared(words)) | lane_bits(load_shared(words + 1)) << 8;
      } else if (p_.sliding_window > 0) {
        // The keys of this lane that lie before the first one seen.
        const int32_t first = load_shared(Sizes::shared().first_seen + query_row);
        const int before = max_of(first - position - lane() % 4 * 2, 0);
        seen[r] &= ~first_bits(before / 8 * 2 + min_of(before % 8, 2));
      }
    }
    return true;
  }
  // Bits 8 i + l % 4 * 2 and the next, i < 4, side by side.
  __device__ uint32_t lane_bits(uint32_t word) const {
    word = word >> lane() % 4 * 2 & 0x03030303;
    word = (word | word >> 6) & 0x000f000f;
    return (word | word >> 12) & 0xff;
  }

  const VerifyAttentionParams& p_;
  std::conditional_t<Sizes::kQueryInRegisters, RegisterQuery<Sizes::kHeadDim>, SharedQuery> query_;
  PiecePlace<Sizes::kPlaces> place_;
};

}  // namespace specfast
