#pragma once

#include <cstdint>

#include "core/grid_barrier.cuh"
#include "core/team.h"

namespace specfast {

// Words of a few rows, from every CTA of a cooperative launch to every other, each with the number
// of its step: who has found the words of this step in all places has met all CTAs, without fence
// or barrier. There are two turns of places: who posts in step t has met all in step t - 1, who had
// then done with step t - 2.
class PostedWords {
 public:
  static constexpr int kMostRows = 16;
  static constexpr int kMostCtas = 144;
  static constexpr int kWords = 2 * kMostRows * kMostCtas * 2;
  static constexpr int kOfLane = (kMostCtas + 31) / 32;

  __device__ explicit PostedWords(uint64_t* words) : words_(words) {}

  // By one thread.
  __device__ void post(int step, int row, uint64_t word) {
    store_pair(place(step, row, blockIdx.x), word, step + 1);
  }
  // By a warp: waits for the words of all CTAs. A lane gets those of neighbours, in the order of
  // lanes, and zeros past the last.
  __device__ void collect(int step, int row, uint64_t (&words)[kOfLane]) {
    int first = threadIdx.x % 32 * kOfLane;
    bool all_here;
    do {
      all_here = true;
#pragma unroll
      for (int i = 0; i < kOfLane; ++i) {
        words[i] = 0;
        if (first + i >= static_cast<int>(gridDim.x)) continue;
        uint64_t number;
        load_pair(place(step, row, first + i), words[i], number);
        all_here &= number == static_cast<uint64_t>(step + 1);
      }
    } while (!__all_sync(~0u, all_here));
  }
  // When all have collected for the last time.
  __device__ void clear(int rows) {
    for (int i = threadIdx.x; i < 2 * rows * kMostCtas; i += blockDim.x) {
      int row = i / (2 * kMostCtas);
      store_pair(place(i & 1, row, i / 2 - row * kMostCtas), 0, 0);
    }
  }

 private:
  __device__ uint64_t* place(int step, int row, int cta) {
    return words_ + 2 * ((step % 2 * kMostRows + row) * kMostCtas + cta);
  }
  uint64_t* words_;
};

}  // namespace specfast
