#pragma once

#include "core/tensor_core.cuh"
#include "core/types.h"

namespace specfast {

// Embeddings of 16 * kRowTiles rows in shared memory as tensor cores take them: sixteen bytes of a
// lane for each 16 rows and each half of a chunk of 32 factors.
template <int kRowTiles>
class FactorTiles {
 public:
  template <class Arena>
  SPECFAST_HD void place(Arena& arena, int chunks) {
    words_ = arena.template scratch<uint4>(chunks * kRowTiles * 64);
  }
  // By all threads: zeros.
  __device__ void clear(int chunks) {
    for (int i = threadIdx.x; i < chunks * kRowTiles * 64; i += blockDim.x) words_[i] = {};
  }
  // By a warp: a row, or zeros; it is there when this thread's copies are.
  __device__ void fill(int row, const BFloat16* embedding, int chunks) {
#pragma unroll 4
    for (int i = threadIdx.x % 32; i < 16 * chunks; i += 32) {
      uint32_t* target = word(row, i);
      if (embedding != nullptr) {
        copy_word_to_shared(target, reinterpret_cast<const uint32_t*>(embedding) + i);
      } else {
        *target = 0;
      }
    }
  }
  __device__ void put(int row, int k, BFloat16 value) const {
    reinterpret_cast<BFloat16*>(word(row, k / 2))[k % 2] = value;
  }
  __device__ __forceinline__ uint4 of_lane(int chunk, int half, int m) const {
    return words_[((chunk * 2 + half) * kRowTiles + m) * 32 + threadIdx.x % 32];
  }

 private:
  // Number i of the words of a row.
  __device__ uint32_t* word(int row, int i) const {
    int chunk = i / 16, q = i / 4 % 4, half = i / 2 % 2;
    uint4* of_lane = words_ + ((chunk * 2 + half) * kRowTiles + row / 16) * 32 + row % 8 * 4 + q;
    return reinterpret_cast<uint32_t*>(of_lane) + i % 2 * 2 + row / 8 % 2;
  }

  uint4* words_ = nullptr;  // scratch [chunks, 2, kRowTiles, 32]
};

}  // namespace specfast
