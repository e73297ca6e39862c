#pragma once

#include "core/types.h"
#if defined(__CUDACC__)
#include "core/exchange.cuh"
#endif

namespace specfast {

// Rows that come into scratch in pieces of sixteen bytes, in batches: on a device by copies that go
// on meanwhile, elsewhere at once. A thread waits for its own copies; others see them behind a
// barrier.
struct RowStage {
  // Both addresses and the bytes are multiples of sixteen.
  template <class V>
  SPECFAST_HD static void copy(const V* from, V* to, int32_t count) {
    constexpr int32_t kPiece = 16 / static_cast<int32_t>(sizeof(V));
    SPECFAST_UNROLL
    for (int32_t k = 0; k < count; k += kPiece) {
#if defined(__CUDA_ARCH__)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to + k)),
                   "l"(from + k)
                   : "memory");
#else
      for (int32_t i = k; i < k + kPiece; ++i) to[i] = from[i];
#endif
    }
  }
  // What was copied since the last batch is one.
  SPECFAST_HD static void end_batch() {
#if defined(__CUDA_ARCH__)
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
  }
  // For all batches but the last kLeft.
  template <int kLeft>
  SPECFAST_HD static void wait_for_all_but() {
#if defined(__CUDA_ARCH__)
    asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
#endif
  }
};

}  // namespace specfast
