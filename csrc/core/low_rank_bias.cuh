#pragma once

#include "core/argmax_key.h"
#include "core/low_rank.h"

namespace specfast {

// One step of a block for the whole grid: to row b of logits is added, at column i, the sum over k
// of w2[i, k] * embedded[b, k], and the sum is rounded to the logits' type.
template <class T, class W>
struct BiasStep {
  int32_t vocab_size;
  int32_t rank;
  int32_t num_rows;
  const W* w2;
  T* logits;
  int64_t row_stride;
  uint64_t rows;     // bit b: row b is not padded
  uint64_t biased;   // bit b: row b has a token before it
  bool whole_words;  // rows can be read as vectors of 16 bytes
  bool is_first;
  bool is_last;
};

// The columns of a CTA: units of so many, as many for each but the last ones.
struct ColumnRange {
  int32_t begin;
  int32_t end;

  __host__ __device__ static int32_t most(int32_t vocab_size, int unit, int ctas) {
    return ceil_div(ceil_div(vocab_size, unit), ctas) * unit;
  }
  __device__ static ColumnRange of(int32_t vocab_size, int unit) {
    int32_t share = most(vocab_size, unit, gridDim.x);
    int32_t begin = min_of(static_cast<int32_t>(blockIdx.x) * share, vocab_size);
    return {begin, min_of(begin + share, vocab_size)};
  }
};

// The largest sum of each row among this CTA's, as keys.
template <int kWarps, int kRows>
struct RowMaxima {
  uint64_t keys[kWarps][kRows];
  unsigned long long nan_rows;  // bit b: row b has a NaN
};

// Best of one row for one thread, which meets a row's columns in ascending order.
struct ThreadBest {
  float value = -INFINITY;
  int32_t id = 0;

  __device__ void take(float other, int32_t other_id) {
    bool better = other > value;
    value = better ? other : value;
    id = better ? other_id : id;
  }
  __device__ uint64_t key() const { return argmax_key(value, id); }
};

// By fused multiply-adds, in the order of weighted_sum: any rank and type, bit-equal to the CPU.
template <class T, class W>
class ScalarBias {
 public:
  using Weight = W;
  static constexpr int kRows = 16;
  static constexpr int kWarps = 8;
  static constexpr int kUnitColumns = 8;
  using Maxima = RowMaxima<kWarps, kRows>;

  __host__ __device__ static int unit_bytes(int32_t) { return 0; }

  template <class Arena>
  SPECFAST_HD void place(Arena& arena, int32_t rank) {
    rank_ = rank;
    embedded_ = arena.template scratch<float>(kRows * rank);
  }
  template <class Arena>
  SPECFAST_HD void place_cache(Arena&, int) {}
  __device__ void divide(const BiasStep<T, W>&) {}
  __device__ void look_ahead(const BiasStep<T, W>&) {}
  __device__ void begin(const BiasStep<T, W>&) {}

  __device__ void clear_embeddings() {}
  // By a warp; a row without a token before it has no embedding.
  __device__ void embed(int row, const W* embedding) {
    for (int k = threadIdx.x % 32; k < rank_; k += 32) {
      embedded_[row * rank_ + k] = embedding != nullptr ? to_float(embedding[k]) : 0.0f;
    }
  }

  __device__ void finish_embed() {}

  // Where a row's embedding can be written one number after the other.
  struct Embeddings {
    float* rows;
    int stride;
    __device__ void put(int row, int k, W value) const { rows[row * stride + k] = to_float(value); }
  };
  __device__ Embeddings embeddings() const { return {embedded_, rank_}; }

  __device__ void add(const BiasStep<T, W>& in, Maxima& maxima) {
    ColumnRange columns = ColumnRange::of(in.vocab_size, kUnitColumns);
    for (int row = 0; row < in.num_rows; ++row) {
      ThreadBest best;
      bool has_nan = false;
      bool biased = (in.biased >> row & 1) != 0;
      int32_t end = (in.rows >> row & 1) != 0 ? columns.end : 0;
      T* logits = in.logits + row * in.row_stride;
      for (int32_t id = columns.begin + threadIdx.x; id < end; id += blockDim.x) {
        T value = logits[id];
        if (biased) {
          const W* weights = in.w2 + static_cast<int64_t>(id) * rank_;
          float bias = weighted_sum(weights, embedded_ + row * rank_, rank_);
          value = rounded_to<T>(to_float(value) + bias);
          logits[id] = value;
        }
        float sum = to_float(value);
        has_nan |= sum != sum;
        best.take(sum, id);
      }
      uint64_t key = best.key();
      for (int step = 16; step > 0; step /= 2) {
        key = max_of<uint64_t>(key, __shfl_xor_sync(~0u, key, step));
      }
      if (threadIdx.x % 32 == 0) maxima.keys[threadIdx.x / 32][row] = key;
      if (has_nan) atomicOr(&maxima.nan_rows, 1ull << row);
    }
  }

 private:
  int32_t rank_ = 0;
  float* embedded_ = nullptr;  // scratch [kRows, rank]
};

}  // namespace specfast
