#pragma once

#include "core/types.h"
#if defined(__CUDACC__)
#include "core/shared_copy.cuh"
#endif

namespace specfast {

// Rows that come into scratch in pieces of sixteen bytes, in batches: on a device by copies that go
// on meanwhile, elsewhere at once.
struct RowStage {
  // By one thread per batch: so many bytes will come in all.
  SPECFAST_HD static void begin([[maybe_unused]] int32_t batch, [[maybe_unused]] int32_t bytes) {
#if defined(__CUDA_ARCH__)
    BlockCopy::begin(batch, bytes);
#endif
  }
  // By all threads, when all batches have begun.
  SPECFAST_HD static void all_begun() {
#if defined(__CUDA_ARCH__)
    __syncthreads();
#endif
  }
  template <class V>
  SPECFAST_HD static void stage([[maybe_unused]] int32_t batch, const V* from, V* to,
                                int32_t count) {
#if defined(__CUDA_ARCH__)
    BlockCopy::start(batch, to, from, count * static_cast<int32_t>(sizeof(V)));
#else
    for (int32_t k = 0; k < count; ++k) to[k] = from[k];
#endif
  }
  SPECFAST_HD static void wait([[maybe_unused]] int32_t batch) {
#if defined(__CUDA_ARCH__)
    BlockCopy::wait(batch);
#endif
  }
};

}  // namespace specfast
