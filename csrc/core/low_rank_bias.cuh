#pragma once

#include "core/argmax_key.h"
#include "core/low_rank.h"
#include "core/tensor_core.cuh"

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
};

// The largest sum of each row among this CTA's, as keys.
struct RowMaxima {
  static constexpr int kWarps = 8;
  static constexpr int kMaxRows = 64;
  uint64_t keys[kWarps][kMaxRows];
  unsigned long long nan_rows;  // bit b: row b has a NaN
};

// Best of one row for one thread, which meets a row's columns from the last unit to the first or
// the other way round.
struct ThreadBest {
  float value = -INFINITY;
  int32_t id = 0;

  __device__ void take(float other, int32_t other_id) {
    bool better = other > value || (other == value && other_id < id);
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
  int hot_units = 0;  // of no use here

  __host__ __device__ static int unit_bytes(int32_t) { return 0; }

  template <class Arena>
  SPECFAST_HD void place(Arena& arena, int32_t rank, int) {
    rank_ = rank;
    embedded_ = arena.template scratch<float>(kRows * rank);
  }

  // By a warp; a row without a token before it has no embedding.
  __device__ void embed(int row, const W* embedding) {
    for (int k = threadIdx.x % 32; k < rank_; k += 32) {
      embedded_[row * rank_ + k] = embedding != nullptr ? to_float(embedding[k]) : 0.0f;
    }
  }

  // Where a row's embedding can be written one number after the other.
  struct Embeddings {
    float* rows;
    int stride;
    __device__ void put(int row, int k, W value) const { rows[row * stride + k] = to_float(value); }
  };
  __device__ Embeddings embeddings() const { return {embedded_, rank_}; }

  __device__ void add(const BiasStep<T, W>& in, RowMaxima& maxima) {
    int32_t threads = gridDim.x * blockDim.x;
    for (int row = 0; row < in.num_rows; ++row) {
      ThreadBest best;
      bool has_nan = false;
      bool biased = (in.biased >> row & 1) != 0;
      int32_t end = (in.rows >> row & 1) != 0 ? in.vocab_size : 0;
      T* logits = in.logits + row * in.row_stride;
      for (int32_t id = blockIdx.x * blockDim.x + threadIdx.x; id < end; id += threads) {
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

// By tensor cores, for ranks that are a multiple of 32: as a matrix product of embeddings
// [kRows, r] and w2 [V, r] transposed, in units of 8 * kTiles columns per warp. What is added to an
// element does not depend on the other rows. A part of w2 stays in shared memory from the first
// step on.
template <class T, int kRowTiles, int kTiles, int kChunks>
class TensorCoreBias {
 public:
  using Weight = BFloat16;
  static constexpr int kRows = 16 * kRowTiles;
  static constexpr int kUnitColumns = 8 * kTiles;
  int hot_units = 0;  // of each warp's, that L2 is asked to keep

  __host__ __device__ static int unit_bytes(int32_t rank) { return kUnitColumns * rank * 2; }

  template <class Arena>
  SPECFAST_HD void place(Arena& arena, int32_t rank, int cached_units) {
    // Rows an odd number of half bank rows apart: eight lanes then read all banks once.
    embedded_stride_ = rank / 8 + (rank % 64 == 0 ? 4 : 0);
    embedded_ = arena.template scratch<uint4>(kRows * embedded_stride_);
    cached_units_ = cached_units;
    cache_ = arena.template scratch<uint4>(cached_units * (unit_bytes(rank) / 16));
    chunks_ = rank / 32;
  }

  __device__ void embed(int row, const BFloat16* embedding) {
    const uint4* words = reinterpret_cast<const uint4*>(embedding);
    for (int i = lane(); i < 4 * chunks_; i += 32) {
      embedded_[row * embedded_stride_ + i] =
          embedding != nullptr ? __ldg(words + i) : uint4{0, 0, 0, 0};
    }
  }

  struct Embeddings {
    BFloat16* rows;
    int stride;
    __device__ void put(int row, int k, BFloat16 value) const { rows[row * stride + k] = value; }
  };
  __device__ Embeddings embeddings() const {
    return {reinterpret_cast<BFloat16*>(embedded_), 8 * embedded_stride_};
  }

  __device__ __forceinline__ void add(const BiasStep<T, BFloat16>& in, RowMaxima& maxima) {
    int32_t units = ceil_div(in.vocab_size, kUnitColumns);
    int32_t warps = gridDim.x * RowMaxima::kWarps;
    first_unit_ = warp() * gridDim.x + blockIdx.x;
    my_units_ = first_unit_ < units ? (units - first_unit_ - 1) / warps + 1 : 0;
    int32_t items = my_units_ * items_per_unit();
    Weights even, odd;
    if (items > 0) load(in, 0, even);
    SPECFAST_NO_UNROLL
    for (int32_t item = 0; item < items; item += 2) {
      if (item + 1 < items) load(in, item + 1, odd);
      multiply(in, item, even, maxima);
      if (item + 2 < items) load(in, item + 2, even);
      if (item + 1 < items) multiply(in, item + 1, odd, maxima);
    }
    report(maxima);
  }

 private:
  struct Weights {
    uint4 words[kChunks][kTiles];
  };
  static constexpr int kIds = 2 * kTiles;  // neighbouring columns of one lane
  static constexpr int kWords = kIds * sizeof(T) / 4;

  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ static int warp() { return threadIdx.x / 32; }
  __device__ int items_per_unit() const { return ceil_div(chunks_, kChunks); }
  __device__ int32_t first_column(int32_t unit) const {
    return (first_unit_ + unit * static_cast<int32_t>(gridDim.x) * RowMaxima::kWarps) *
           kUnitColumns;
  }

  // The last units of the warps have the places.
  __device__ uint4* cached(int32_t unit, int chunk) const {
    int place = (my_units_ - 1 - unit) * RowMaxima::kWarps + warp();
    if (place >= cached_units_) return nullptr;
    return cache_ + (place * chunks_ + chunk) * kTiles * 32 + lane();
  }

  __device__ __forceinline__ void load(const BiasStep<T, BFloat16>& in, int32_t item,
                                       Weights& out) const {
    int32_t unit = item / items_per_unit();
    int chunk = item % items_per_unit() * kChunks;
    const uint4* kept = in.is_first ? nullptr : cached(unit, chunk);
    if (kept != nullptr) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          if (chunk + c < chunks_) out.words[c][t] = kept[(c * kTiles + t) * 32];
        }
      }
      return;
    }
    // Column g of tile t is neighbour 2t + g % 2 of lane 4 (...) + g / 2.
    int g = lane() / 4;
    int32_t column = first_column(unit) + g / 2 * kIds + g % 2;
    uint64_t policy = unit < hot_units ? l2_keep() : l2_pass();
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      int64_t id = min_of(column + 2 * t, in.vocab_size - 1);
      const BFloat16* row = in.w2 + id * in.rank + 32 * chunk + 8 * (lane() % 4);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        if (chunk + c < chunks_) out.words[c][t] = load_once(row + 32 * c, policy);
      }
    }
  }

  __device__ __forceinline__ void multiply(const BiasStep<T, BFloat16>& in, int32_t item,
                                           const Weights& weights, RowMaxima& maxima) {
    int32_t unit = item / items_per_unit();
    int chunk = item % items_per_unit() * kChunks;
    int32_t ids = first_column(unit) + lane() % 4 * kIds;  // first column of this lane's
    if (chunk == 0) {
      clear_sums();
      load_logits(in, ids);
    }
    uint4* kept = in.is_first ? cached(unit, chunk) : nullptr;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (chunk + c >= chunks_) break;
      if (kept != nullptr) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) kept[(c * kTiles + t) * 32] = weights.words[c][t];
      }
      const uint4* factors =
          embedded_ + lane() / 4 * embedded_stride_ + 4 * (chunk + c) + lane() % 4;
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        uint4 low = factors[16 * m * embedded_stride_];
        uint4 high = factors[(16 * m + 8) * embedded_stride_];
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          const uint4& w = weights.words[c][t];
          multiply_add_16x8x16(sums_[m][t], low.x, high.x, low.y, high.y, w.x, w.y);
          multiply_add_16x8x16(sums_[m][t], low.z, high.z, low.w, high.w, w.z, w.w);
        }
      }
    }
    if (chunk + kChunks >= chunks_) store_logits(in, ids, maxima);
  }

  __device__ __forceinline__ void clear_sums() {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums_[m][t][i] = 0.0f;
      }
    }
  }

  __device__ static bool has(uint64_t rows, int row) { return (rows >> row & 1) != 0; }

  __device__ __forceinline__ void load_logits(const BiasStep<T, BFloat16>& in, int32_t ids) {
#pragma unroll
    for (int r = 0; r < 2 * kRowTiles; ++r) {
      int row = 8 * r + lane() / 4;
      if (!has(in.rows, row)) continue;
      const T* logits = in.logits + row * in.row_stride + ids;
      if (in.whole_words && ids + kIds <= in.vocab_size) {
        // Past the L1 cache, where nothing of what this launch writes may linger.
        load_words(logits, before_[r]);
      } else {
        load_one_by_one(logits, in.vocab_size - ids, before_[r]);
      }
    }
  }
  __device__ __forceinline__ static void load_words(const T* logits, uint32_t (&out)[kWords]) {
    if constexpr (kWords % 4 == 0) {
#pragma unroll
      for (int i = 0; i < kWords; i += 4) {
        uint4 words = __ldcg(reinterpret_cast<const uint4*>(logits) + i / 4);
        out[i] = words.x;
        out[i + 1] = words.y;
        out[i + 2] = words.z;
        out[i + 3] = words.w;
      }
    } else {
      uint2 words = __ldcg(reinterpret_cast<const uint2*>(logits));
      out[0] = words.x;
      out[1] = words.y;
    }
  }
  __device__ __forceinline__ static void load_one_by_one(const T* logits, int32_t count,
                                                         uint32_t (&out)[kWords]) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) out[i] = 0;
#pragma unroll
    for (int i = 0; i < kIds; ++i) {
      if (i < count) set(out, i, logits[i]);
    }
  }
  __device__ static T get(const uint32_t (&words)[kWords], int i) {
    if constexpr (sizeof(T) == 4) {
      return __uint_as_float(words[i]);
    } else {
      return {static_cast<uint16_t>(words[i / 2] >> (16 * (i % 2)))};
    }
  }
  __device__ static void set(uint32_t (&words)[kWords], int i, T value) {
    if constexpr (sizeof(T) == 4) {
      words[i] = __float_as_uint(value);
    } else {
      uint32_t keep = words[i / 2] & (i % 2 == 0 ? 0xffff0000u : 0xffffu);
      words[i / 2] = keep | static_cast<uint32_t>(value.bits) << (16 * (i % 2));
    }
  }

  __device__ __forceinline__ void store_logits(const BiasStep<T, BFloat16>& in, int32_t ids,
                                               RowMaxima& maxima) {
#pragma unroll
    for (int r = 0; r < 2 * kRowTiles; ++r) {
      int row = 8 * r + lane() / 4;
      if (!has(in.rows, row)) continue;
      if (has(in.biased, row)) {
#pragma unroll
        for (int i = 0; i < kIds; ++i) {
          float bias = sums_[r / 2][i / 2][2 * (r % 2) + i % 2];
          set(before_[r], i, rounded_to<T>(to_float(get(before_[r], i)) + bias));
        }
        store(in, row, ids, before_[r]);
      }
      bool has_nan = false;
#pragma unroll
      for (int i = 0; i < kIds; ++i) {
        if (ids + i >= in.vocab_size) break;
        float value = to_float(get(before_[r], i));
        has_nan |= value != value;
        best_[r].take(value, ids + i);
      }
      if (has_nan) atomicOr(&maxima.nan_rows, 1ull << row);
    }
  }
  __device__ __forceinline__ static void store(const BiasStep<T, BFloat16>& in, int row,
                                               int32_t ids, const uint32_t (&words)[kWords]) {
    T* logits = in.logits + row * in.row_stride + ids;
    if (in.whole_words && ids + kIds <= in.vocab_size) {
      if constexpr (kWords % 4 == 0) {
#pragma unroll
        for (int i = 0; i < kWords; i += 4) {
          reinterpret_cast<uint4*>(logits)[i / 4] = {words[i], words[i + 1], words[i + 2],
                                                     words[i + 3]};
        }
      } else {
        *reinterpret_cast<uint2*>(logits) = {words[0], words[1]};
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kIds; ++i) {
      if (ids + i < in.vocab_size) logits[i] = get(words, i);
    }
  }

  __device__ __forceinline__ void report(RowMaxima& maxima) {
#pragma unroll
    for (int r = 0; r < 2 * kRowTiles; ++r) {
      uint64_t key = best_[r].key();
      key = max_of<uint64_t>(key, __shfl_xor_sync(~0u, key, 1));
      key = max_of<uint64_t>(key, __shfl_xor_sync(~0u, key, 2));
      if (lane() % 4 == 0) maxima.keys[warp()][8 * r + lane() / 4] = key;
      best_[r] = {};
    }
  }

  uint4* embedded_ = nullptr;  // scratch [kRows, embedded_stride]
  uint4* cache_ = nullptr;     // scratch [cached_units, chunks, kTiles, 32]
  int embedded_stride_ = 0;    // in 16 bytes
  int cached_units_ = 0;
  int chunks_ = 0;  // of 32 factors
  int32_t first_unit_ = 0;
  int32_t my_units_ = 0;
  float sums_[kRowTiles][kTiles][4];
  uint32_t before_[2 * kRowTiles][kWords];
  ThreadBest best_[2 * kRowTiles];
};

}  // namespace specfast
