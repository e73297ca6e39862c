#pragma once

#include "core/posted_words.cuh"

namespace specfast {

// The maxima of the rows, for one step after the other: words of step t are cleared a step before
// it, when all have read those of step t - 3. A barrier lies between `tell` and `largest`.
class SharedKeys {
 public:
  static constexpr int kMostRows = 64;
  static constexpr int kWords = 3 * 2 * kMostRows;

  __device__ explicit SharedKeys(uint64_t* keys) : keys_(keys) {}

  __device__ void prepare(int step) {
    if (blockIdx.x == 0) clear(step + 1);
  }
  __device__ void tell(int step, int row, uint64_t key, bool has_nan) {
    if (key != 0) atomicMax(reinterpret_cast<unsigned long long*>(at(step) + row), key);
    if (has_nan) at(step)[kMostRows + row] = 1;
  }
  __device__ KeyFlag largest(int step, int row) {
    return {__ldcg(at(step) + row), __ldcg(at(step) + kMostRows + row) != 0};
  }
  __device__ void clear_all(int) {
    for (int turn = 0; turn < kTurns; ++turn) clear(turn);
  }

 private:
  static constexpr int kTurns = 3;
  __device__ void clear(int step) {
    for (int i = threadIdx.x; i < 2 * kMostRows; i += blockDim.x) at(step)[i] = 0;
  }
  __device__ unsigned long long* at(int step) {
    return reinterpret_cast<unsigned long long*>(keys_) + step % kTurns * 2 * kMostRows;
  }
  uint64_t* keys_;
};

// What CTAs tell each other about few rows.
struct PostedKeys {
  PostedWords maxima;  // bit 0: a NaN
  PostedWords masses;
  uint64_t* drawn;  // [kMostRows] pairs: a column, and the number of its step

  static constexpr int kMostRows = PostedWords::kMostRows;
  static constexpr int kWords = 2 * PostedWords::kWords + 2 * kMostRows;

  __device__ explicit PostedKeys(uint64_t* words)
      : maxima(words),
        masses(words + PostedWords::kWords),
        drawn(words + 2 * PostedWords::kWords) {}

  __device__ void tell(int step, int row, uint64_t key, bool has_nan) {
    maxima.post(step, row, key | (has_nan ? 1u : 0u));
  }
  // By a warp.
  __device__ KeyFlag largest(int step, int row) {
    uint64_t words[PostedWords::kOfLane];
    maxima.collect(step, row, words);
    uint64_t key = 0;
    bool flag = false;
#pragma unroll
    for (uint64_t word : words) {
      flag |= (word & 1) != 0;
      key = max_of(key, word & ~uint64_t{1});
    }
    uint32_t high = __reduce_max_sync(~0u, static_cast<uint32_t>(key >> 32));
    uint32_t low = static_cast<uint32_t>(key >> 32) == high ? static_cast<uint32_t>(key) : 0;
    low = __reduce_max_sync(~0u, low);
    return {static_cast<uint64_t>(high) << 32 | low, __any_sync(~0u, flag) != 0};
  }
  // By one thread of the CTA that has drawn, and by one of each.
  __device__ void tell_drawn(int step, int row, int32_t column) {
    store_pair(drawn + 2 * row, column, step + 1);
  }
  __device__ int32_t drawn_column(int step, int row) {
    uint64_t column, number;
    do {
      load_pair(drawn + 2 * row, column, number);
    } while (number != static_cast<uint64_t>(step + 1));
    return static_cast<int32_t>(column);
  }
  __device__ void clear_all(int rows) {
    maxima.clear(rows);
    masses.clear(rows);
    if (static_cast<int>(threadIdx.x) < rows) store_pair(drawn + 2 * threadIdx.x, 0, 0);
  }
};

}  // namespace specfast
