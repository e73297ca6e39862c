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
  using Place = PiecePlace<Sizes::kPlaces>;

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
    if (tiles.count == 0) return;
    if constexpr (Sizes::kOverlaps) {
      read_overlapping(tiles, c, end_chunk);
    } else {
      read_in_turn(tiles, c, end_chunk);
    }
  }

 private:
  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ static uint32_t piece(const Place& place) {
    return shared_offset(Sizes::shared().pieces[place.index]);
  }
  __device__ static void wait_for_piece(const Place& place) {
    wait_for_round(Sizes::shared().filled + place.index, place.round);
    show_copies_to_matrices();
  }
  __device__ void leave_piece() {
    leave(place_);
    place_.advance();
  }
  __device__ static void leave(const Place& place) {
    __syncwarp();  // all lanes have read
    if (is_chosen_lane()) arrive(Sizes::shared().emptied + place.index);
  }

  // A tile's scores and which of them count.
  struct Scored {
    typename Rows::Scores scores;
    uint32_t seen[2];
    bool masked;
  };

  // As far as the scores of tile i, whose keys are at place_.
  __device__ void begin_tile(const KeyTiles& tiles, int i, Scored& tile) {
    wait_for_piece(place_);
    tile.masked = find_seen(tiles, i, tile.seen);
    Rows::begin_scores(tile.scores, query_, piece(place_));
  }
  __device__ static typename Rows::Shrink weigh(Rows& rows, Scored& tile, float c) {
    if (tile.masked) Rows::hide_unseen(tile.scores, tile.seen);
    return rows.weigh(tile.scores, c);
  }

  // The next tile's scores follow a tile's values at once; weights are made while nothing else is
  // under way: another CTA has the matrices in the meantime.
  template <class EndChunk>
  __device__ void read_in_turn(const KeyTiles& tiles, float c, EndChunk& end_chunk) {
    Rows rows;
    Scored tile;
    rows.clear();
    begin_tile(tiles, 0, tile);
    rows.finish(tile.scores);
    leave_piece();
    SPECFAST_NO_UNROLL
    for (int i = 0; i < tiles.count; ++i) {
      rows.apply(weigh(rows, tile, c));
      wait_for_piece(place_);
      rows.begin_values(typename Rows::Weights(tile.scores), piece(place_));
      const Place values = place_;
      place_.advance();
      const bool is_last = i + 1 == tiles.count;
      if (!is_last) begin_tile(tiles, i + 1, tile);
      rows.finish(tile.scores);
      leave(values);
      if (!is_last) leave_piece();
      if (i + 1 != tiles.end_of_chunk(i)) continue;
      rows.finish_sums();
      end_chunk(rows);
      rows.clear();
    }
  }

  // Weights of a tile are made while the values of the one before are under way, within a chunk.
  template <class EndChunk>
  __device__ void read_overlapping(const KeyTiles& tiles, float c, EndChunk& end_chunk) {
    Rows rows;
    rows.clear();
    SPECFAST_NO_UNROLL
    for (int i = 0; i < tiles.count; ++i) {
      const int end = tiles.end_of_chunk(i);
      Scored tile;
      begin_tile(tiles, i, tile);
      rows.finish(tile.scores);
      leave_piece();
      weigh(rows, tile, c);
      SPECFAST_NO_UNROLL
      for (; i + 1 < end; ++i) {
        const typename Rows::Weights weights(tile.scores);
        const Place values = place_;
        place_.advance();
        begin_tile(tiles, i + 1, tile);
        wait_for_piece(values);
        rows.begin_values(weights, piece(values));
        Rows::finish_scores(tile.scores);
        leave_piece();
        const typename Rows::Shrink shrink = weigh(rows, tile, c);
        rows.finish_values();
        leave(values);
        rows.apply(shrink);
      }
      wait_for_piece(place_);
      rows.begin_values(typename Rows::Weights(tile.scores), piece(place_));
      rows.finish_values();
      leave_piece();
      rows.finish_sums();
      end_chunk(rows);
      rows.clear();
    }
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
    const int words = ceil_div(tile.request.num_rows, KeyTiles::kTileKeys) * 2;
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
    const int32_t position = tiles.first + i * KeyTiles::kTileKeys;
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
  Place place_;
};

}  // namespace specfast
