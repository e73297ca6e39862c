#pragma once

#include "core/attention_fold.cuh"
#include "core/attention_params.h"
#include "core/attention_wgmma.cuh"

namespace specfast {

// 64 rows of queries, keys or values in shared memory: blocks of 64 columns, in each of which a row
// has 128 bytes, whose 16-byte groups are permuted so that eight rows' groups of one number lie in
// different banks.
template <int kHeadDim>
struct RowTile {
  static constexpr int kRows = 64;
  static constexpr int kBlockBytes = kRows * 128;
  static constexpr int kBytes = kRows * kHeadDim * 2;
  static constexpr int kGroups = kHeadDim / 8;

  __device__ static uint32_t offset(int row, int group) {
    return (group / 8 * kRows + row) * 128 + ((group ^ row) & 7) * 16;
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

  __device__ void set_block(int i, const float4& v) {
    values[i][0] = v.x;
    values[i][1] = v.y;
    values[i][2] = v.z;
    values[i][3] = v.w;
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

// The same as RowSums, with values in shared memory: [block][thread].
template <int kHeadDim, int kThreads>
struct SharedSums {
  static constexpr int kBlocks = kHeadDim / 8;

  float4* values;  // of this thread
  RowSoftmax rows[2];

  __device__ void clear() {
    SPECFAST_UNROLL
    for (int i = 0; i < kBlocks; ++i) set_block(i, make_float4(0, 0, 0, 0));
    rows[0] = rows[1] = {};
  }
  __device__ float4 block(int i) const { return load_shared(values + i * kThreads); }
  __device__ void set_block(int i, const float4& v) { store_shared(values + i * kThreads, v); }

  template <class Part>
  __device__ void add(const Part& part, float c) {
    const FoldWeights weights[2] = {fold(rows[0], part.rows[0], c), fold(rows[1], part.rows[1], c)};
    SPECFAST_UNROLL
    for (int i = 0; i < kBlocks; ++i) {
      const float4 total = block(i);
      const float4 v = part.block(i);
      set_block(i, make_float4(
                       fold_value(total.x, v.x, weights[0]), fold_value(total.y, v.y, weights[0]),
                       fold_value(total.z, v.z, weights[1]), fold_value(total.w, v.w, weights[1])));
    }
  }
};

// What a warpgroup multiplies with keys: 64 rows, in shared memory or, of each warp 16, in
// registers.
struct SharedQuery {
  uint32_t address;
};
template <int kHeadDim>
struct RegisterQuery {
  uint32_t words[kHeadDim / 16][4];

  // `first`, `second`: of this lane's rows, null where there is none.
  template <class T>
  __device__ void load(const T* first, const T* second) {
    SPECFAST_UNROLL
    for (int k = 0; k < kHeadDim / 16; ++k) {
      SPECFAST_UNROLL
      for (int i = 0; i < 4; ++i) {
        const T* row = i % 2 == 0 ? first : second;
        const int at = k * 16 + i / 2 * 8 + threadIdx.x % 4 * 2;
        words[k][i] = row == nullptr ? 0 : *reinterpret_cast<const uint32_t*>(row + at);
      }
    }
  }
};

// 64 rows that a warpgroup attends from, and what they have seen of a chunk: each warp has 16. A
// row is a query row and a head: heads that share keys lie side by side. Sums of weights are of
// this lane's columns only, until finish_sums().
template <class T, int kHeadDim>
class GroupRows : public RowSums<kHeadDim> {
  using Tile = RowTile<kHeadDim>;
  using Sums = RowSums<kHeadDim>;

 public:
  using Sums::kBlocks;
  using Sums::rows;
  using Sums::values;

  // Of the keys of a tile, as values are; then weights.
  struct Scores {
    float of[8][4];
  };

  __device__ static void begin_scores(Scores& scores, SharedQuery query, uint32_t keys) {
    // What is made of an unknown address is not kept in registers from tile to tile.
    asm volatile("" : "+r"(query.address));
    const MatrixPlace a(query.address, Tile::kBlockBytes);
    multiply(scores, keys, [&](int, int at) { return a.advance(at); });
  }
  __device__ static void begin_scores(Scores& scores, const RegisterQuery<kHeadDim>& query,
                                      uint32_t keys) {
    multiply(scores, keys, [&](int k, int) -> const uint32_t (&)[4] { return query.words[k]; });
  }

  // Which of this lane's keys a row sees: bit 2 i + j is key 8 i + l % 4 * 2 + j.
  __device__ static void hide_unseen(Scores& scores, const uint32_t (&seen)[2]) {
    SPECFAST_UNROLL
    for (int block = 0; block < 8; ++block) {
      SPECFAST_UNROLL
      for (int i = 0; i < 4; ++i) {
        if ((seen[i / 2] >> (block * 2 + i % 2) & 1) == 0) scores.of[block][i] = -INFINITY;
      }
    }
  }

  // What weighted values are to be multiplied by, as larger scores have come.
  struct Shrink {
    float of[2];
    bool any;
  };

  // Scores become weights.
  __device__ Shrink weigh(Scores& scores, float c) {
    float bases[2];
    Shrink shrink;
    bool rises = false;
    SPECFAST_UNROLL
    for (int r = 0; r < 2; ++r) {
      float largest = rows[r].max;
      SPECFAST_UNROLL
      for (int block = 0; block < 8; ++block) {
        largest = fmaxf(largest, fmaxf(scores.of[block][2 * r], scores.of[block][2 * r + 1]));
      }
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
      rises |= largest > rows[r].max;
      // A row that has seen nothing yet has weights of 0, not of -inf - -inf.
      const float base = largest == -INFINITY ? 0 : largest;
      shrink.of[r] = fast_exp2((rows[r].max - base) * c);
      rows[r].max = largest;
      bases[r] = base * c;
      rows[r].sum *= shrink.of[r];
    }
    SPECFAST_UNROLL
    for (int block = 0; block < 8; ++block) {
      SPECFAST_UNROLL
      for (int i = 0; i < 4; ++i) {
        scores.of[block][i] = fast_exp2(__fmaf_rn(scores.of[block][i], c, -bases[i / 2]));
        rows[i / 2].sum += scores.of[block][i];
      }
    }
    shrink.any = __any_sync(~0u, rises);
    return shrink;
  }

  // Brings what came before to the new maxima; without one all would be multiplied by 1.
  __device__ void apply(const Shrink& shrink) {
    if (!shrink.any) return;
    SPECFAST_UNROLL
    for (int block = 0; block < kBlocks; ++block) {
      SPECFAST_UNROLL
      for (int i = 0; i < 4; ++i) values[block][i] *= shrink.of[i / 2];
    }
  }

  // Weights of a tile as the left side of a product, 16 keys after the other.
  struct Weights {
    uint32_t of[4][4];

    __device__ explicit Weights(const Scores& scores) {
      SPECFAST_UNROLL
      for (int k = 0; k < 4; ++k) {
        SPECFAST_UNROLL
        for (int i = 0; i < 4; ++i) {
          const float (&block)[4] = scores.of[2 * k + i / 2];
          of[k][i] = pack_pair<T>(block[i % 2 * 2], block[i % 2 * 2 + 1]);
        }
      }
    }
  };

  // The weighted values of the tile, behind what there is.
  __device__ void begin_values(const Weights& weights, uint32_t tile_values) {
    const MatrixPlace b(tile_values, Tile::kBlockBytes);
    pin_registers(values);
    begin_matrices();
    SPECFAST_UNROLL
    for (int k = 0; k < 4; ++k) {
      const int at = 16 * k * 128;
      multiply_weights<T, kColumns, 0>(values, weights.of[k], b.advance(at));
      if constexpr (kHeadDim == 256) {
        multiply_weights<T, kColumns, 16>(values, weights.of[k],
                                          b.advance(at + 2 * Tile::kBlockBytes));
      }
    }
    commit_matrices();
  }

  // Until all that was begun is there.
  __device__ void finish(Scores& scores) {
    finish_matrices<0>();
    pin_registers(values);
    pin_registers(scores.of);
  }
  // Until scores are there; values that were begun behind them go on.
  __device__ static void finish_scores(Scores& scores) {
    finish_matrices<1>();
    pin_registers(scores.of);
  }
  __device__ void finish_values() {
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
  // query(k, at): columns 16 k and on, `at` bytes behind the first.
  template <class Query>
  __device__ static void multiply(Scores& scores, uint32_t keys, Query query) {
    const MatrixPlace b(keys, Tile::kBlockBytes);
    begin_matrices();
    multiply_queries<T, false>(scores.of, query(0, 0), b);
    SPECFAST_UNROLL
    for (int k = 1; k < kHeadDim / 16; ++k) {
      const int at = k / 4 * Tile::kBlockBytes + k % 4 * 32;
      multiply_queries<T, true>(scores.of, query(k, at), b.advance(at));
    }
    commit_matrices();
  }

  static constexpr int kColumns = kHeadDim == 64 ? 64 : 128;
};

}  // namespace specfast
