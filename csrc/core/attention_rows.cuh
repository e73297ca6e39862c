#pragma once

#include "core/attention_fold.cuh"
#include "core/attention_params.h"
#include "core/attention_wgmma.cuh"

namespace specfast {

// One tile of keys and values in shared memory: blocks of 64 columns, in each of which a key has
// 128 bytes, whose 16-byte groups are permuted so that eight keys' groups of one number lie in
// different banks.
template <int kHeadDim, int kNumKeys>
struct KeyTile {
  static constexpr int kKeys = kNumKeys;
  static constexpr int kBytes = kKeys * kHeadDim * 2;
  static constexpr int kGroups = kHeadDim / 8;

  __device__ static uint32_t offset(int key, int group) {
    return (group / 8 * kKeys + key) * 128 + ((group ^ key) & 7) * 16;
  }
};

// Softmaxes of 16 rows, of a lane's part of a warp: lane l has rows l / 4 and l / 4 + 8, of 8
// columns the two from l % 4 * 2 on.
template <int kHeadDim>
struct RowSums {
  static constexpr int kBlocks = kHeadDim / 8;  // of 8 columns

  float values[kBlocks][4];  // weighted; 0, 1 of the first row, 2, 3 of the second
  RowSoftmax rows[2];

  __device__ void clear() {
    SPECFAST_UNROLL
    for (int block = 0; block < kBlocks; ++block) {
      SPECFAST_UNROLL
      for (int i = 0; i < 4; ++i) values[block][i] = 0;
    }
    rows[0] = rows[1] = {};
  }

  __device__ float4 block(int i) const {
    return make_float4(values[i][0], values[i][1], values[i][2], values[i][3]);
  }

  // Behind what there is.
  template <class Part>
  __device__ void add(const Part& part, float c) {
    const FoldWeights weights[2] = {fold(rows[0], part.rows[0], c), fold(rows[1], part.rows[1], c)};
    SPECFAST_UNROLL
    for (int i = 0; i < kBlocks; ++i) {
      const float4 v = part.block(i);
      values[i][0] = fold_value(values[i][0], v.x, weights[0]);
      values[i][1] = fold_value(values[i][1], v.y, weights[0]);
      values[i][2] = fold_value(values[i][2], v.z, weights[1]);
      values[i][3] = fold_value(values[i][3], v.w, weights[1]);
    }
  }
};

// 16 rows that a warp attends from, and what they have seen of a chunk. A row is a query row and a
// head: heads that share keys lie side by side. Sums of weights are of this lane's columns only,
// until finish_sums().
template <class T, int kHeadDim, class Tile>
struct WarpRows : RowSums<kHeadDim> {
  using Sums = RowSums<kHeadDim>;
  using Sums::kBlocks;
  using Sums::rows;
  using Sums::values;

  uint32_t query[kHeadDim / 16][4];

  // `first`, `second`: the rows' queries, null where there is none.
  __device__ void load_query(const T* first, const T* second) {
    const int column = threadIdx.x % 4 * 2;
    SPECFAST_UNROLL
    for (int k = 0; k < kHeadDim / 16; ++k) {
      SPECFAST_UNROLL
      for (int i = 0; i < 4; ++i) {
        const T* row = i % 2 == 0 ? first : second;
        int at = k * 16 + i / 2 * 8 + column;
        query[k][i] = row == nullptr ? 0 : *reinterpret_cast<const uint32_t*>(row + at);
      }
    }
  }

  // So many keys of a tile from first_key on. `seen`: which of them each row sees, 32 keys a word;
  // all, unless `masked`.
  template <int kNumKeys>
  __device__ void attend(uint32_t keys, uint32_t tile_values, int first_key, float c, bool masked,
                         const uint32_t (&seen)[2][2]) {
    constexpr int kPairs = kNumKeys / 16;  // of blocks of 8 keys
    const int lane = threadIdx.x % 32;
    float scores[2 * kPairs][4] = {};
    // The matrices of the next products are under way while the last are multiplied.
    uint32_t matrices[2][kPairs][4];
    auto load_keys = [&](int k) {
      SPECFAST_UNROLL
      for (int pair = 0; pair < kPairs; ++pair) {
        const int key = first_key + pair * 16 + lane / 16 * 8 + lane % 8;
        load_matrices(matrices[k % 2][pair], keys + Tile::offset(key, k * 2 + lane / 8 % 2));
      }
    };
    load_keys(0);
    SPECFAST_UNROLL
    for (int k = 0; k < kHeadDim / 16; ++k) {
      if (k + 1 < kHeadDim / 16) load_keys(k + 1);
      SPECFAST_UNROLL
      for (int pair = 0; pair < kPairs; ++pair) {
        const uint32_t (&m)[4] = matrices[k % 2][pair];
        multiply_add<T>(scores[2 * pair], query[k], m[0], m[1]);
        multiply_add<T>(scores[2 * pair + 1], query[k], m[2], m[3]);
      }
    }
    if (masked) hide_unseen(scores, seen);
    rescale(weigh(scores, c));

    constexpr int kColumnPairs = kBlocks / 2;  // of blocks of 8 columns
    constexpr int kAhead = 4;
    uint32_t columns[kAhead][4];
    auto load_values = [&](int i) {
      const int key = first_key + i / kColumnPairs * 16 + lane % 16;
      load_matrices_transposed(columns[i % kAhead],
                               tile_values + Tile::offset(key, i % kColumnPairs * 2 + lane / 16));
    };
    SPECFAST_UNROLL
    for (int i = 0; i < kAhead - 1; ++i) load_values(i);
    uint32_t weights[4];
    SPECFAST_UNROLL
    for (int i = 0; i < kPairs * kColumnPairs; ++i) {
      if (i + kAhead - 1 < kPairs * kColumnPairs) load_values(i + kAhead - 1);
      const int pair = i / kColumnPairs;
      const int column = i % kColumnPairs;
      if (column == 0) pack(scores[2 * pair], scores[2 * pair + 1], weights);
      const uint32_t (&m)[4] = columns[i % kAhead];
      multiply_add<T>(values[2 * column], weights, m[0], m[1]);
      multiply_add<T>(values[2 * column + 1], weights, m[2], m[3]);
    }
  }

  // The same for 64 keys and four warps at once, by matrix instructions of a warpgroup: all four
  // take the same way.
  __device__ void attend_as_warpgroup(uint32_t keys, uint32_t tile_values, int first_key, float c,
                                      bool masked, const uint32_t (&seen)[2][2]) {
    float scores[8][4];
    begin_scores(scores, keys, first_key);
    finish_matrices<0>();
    pin_registers(scores);
    if (masked) hide_unseen(scores, seen);
    rescale(weigh(scores, c));
    begin_values(scores, tile_values, first_key);
    finish_matrices<0>();
    pin_registers(values);
  }

  // Two such steps, equal to them bit for bit: while one half's scores become weights, the other
  // half's products are under way.
  __device__ void attend_two_as_warpgroup(uint32_t keys, uint32_t tile_values, int first_key,
                                          float c, bool masked, const uint32_t (&seen)[2][2],
                                          const uint32_t (&seen_next)[2][2]) {
    float scores[8][4];
    float next_scores[8][4];
    begin_scores(scores, keys, first_key);
    begin_scores(next_scores, keys, first_key + 64);
    finish_matrices<1>();
    pin_registers(scores);
    if (masked) hide_unseen(scores, seen);
    rescale(weigh(scores, c));
    begin_values(scores, tile_values, first_key);
    finish_matrices<1>();
    pin_registers(next_scores);
    if (masked) hide_unseen(next_scores, seen_next);
    const Shrink shrink = weigh(next_scores, c);
    finish_matrices<0>();
    pin_registers(values);
    rescale(shrink);
    begin_values(next_scores, tile_values, first_key + 64);
    finish_matrices<0>();
    pin_registers(values);
  }

  // Sums over the four lanes of a row.
  __device__ void finish_sums() {
    SPECFAST_UNROLL
    for (RowSoftmax& row : rows) {
      row.sum += __shfl_xor_sync(~0u, row.sum, 1);
      row.sum += __shfl_xor_sync(~0u, row.sum, 2);
    }
  }

 private:
  static constexpr int kBlockBytes = Tile::kKeys * 128;

  // What values so far are multiplied by.
  struct Shrink {
    float of_row[2];
    bool any;
  };

  __device__ void begin_scores(float (&scores)[8][4], uint32_t keys, int first_key) {
    pin_registers(scores);
    begin_matrices();
    SPECFAST_UNROLL
    for (int k = 0; k < kHeadDim / 16; ++k) {
      const uint32_t at = keys + k / 4 * kBlockBytes + first_key * 128 + k % 4 * 32;
      multiply_add_64<T, false>(scores, query[k], matrix_descriptor(at, kBlockBytes), k > 0);
    }
    commit_matrices();
  }

  __device__ void begin_values(const float (&scores)[8][4], uint32_t tile_values, int first_key) {
    uint32_t weights[4][4];
    SPECFAST_UNROLL
    for (int k = 0; k < 4; ++k) pack(scores[2 * k], scores[2 * k + 1], weights[k]);
    pin_registers(values);
    begin_matrices();
    SPECFAST_UNROLL
    for (int k = 0; k < 4; ++k) {
      const uint64_t at = matrix_descriptor(tile_values + (first_key + 16 * k) * 128, kBlockBytes);
      if constexpr (kHeadDim == 64) {
        multiply_add_64<T, true>(values, weights[k], at, true);
      } else {
        multiply_add_128<T, true>(values, weights[k], at, true);
      }
    }
    commit_matrices();
  }

  template <int kScoreBlocks>
  __device__ static void hide_unseen(float (&scores)[kScoreBlocks][4],
                                     const uint32_t (&seen)[2][2]) {
    SPECFAST_UNROLL
    for (int block = 0; block < kScoreBlocks; ++block) {
      SPECFAST_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int column = block % 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
        if ((seen[block / 4][i / 2] >> column & 1) == 0) scores[block][i] = -INFINITY;
      }
    }
  }

  // Weights of 16 keys as the left side of a product.
  __device__ static void pack(const float (&low)[4], const float (&high)[4],
                              uint32_t (&weights)[4]) {
    weights[0] = pack_pair<T>(low[0], low[1]);
    weights[1] = pack_pair<T>(low[2], low[3]);
    weights[2] = pack_pair<T>(high[0], high[1]);
    weights[3] = pack_pair<T>(high[2], high[3]);
  }

  // Scores become weights; what came before is to be brought to the new maxima.
  template <int kScoreBlocks>
  __device__ Shrink weigh(float (&scores)[kScoreBlocks][4], float c) {
    float bases[2];
    bool rises = false;
    Shrink shrink;
    SPECFAST_UNROLL
    for (int r = 0; r < 2; ++r) {
      float largest = rows[r].max;
      SPECFAST_UNROLL
      for (int block = 0; block < kScoreBlocks; ++block) {
        largest = fmaxf(largest, fmaxf(scores[block][2 * r], scores[block][2 * r + 1]));
      }
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
      rises |= largest > rows[r].max;
      // A row that has seen nothing yet has weights of 0, not of -inf - -inf.
      const float base = largest == -INFINITY ? 0 : largest;
      shrink.of_row[r] = fast_exp2((rows[r].max - base) * c);
      rows[r].max = largest;
      bases[r] = base * c;
      rows[r].sum *= shrink.of_row[r];
    }
    shrink.any = __any_sync(~0u, rises);
    SPECFAST_UNROLL
    for (int block = 0; block < kScoreBlocks; ++block) {
      SPECFAST_UNROLL
      for (int i = 0; i < 4; ++i) {
        scores[block][i] = fast_exp2(__fmaf_rn(scores[block][i], c, -bases[i / 2]));
        rows[i / 2].sum += scores[block][i];
      }
    }
    return shrink;
  }

  // Without a new maximum all is multiplied by 1.
  __device__ void rescale(const Shrink& shrink) {
    if (!shrink.any) return;
    SPECFAST_UNROLL
    for (int block = 0; block < kBlocks; ++block) {
      SPECFAST_UNROLL
      for (int i = 0; i < 4; ++i) values[block][i] *= shrink.of_row[i / 2];
    }
  }
};

}  // namespace specfast
