#pragma once

#include <cstdint>

namespace specfast {

// Barriers over all CTAs of a cooperative launch. The counter is 0 when the launch begins, and
// whoever waits for the last barrier sets it back.
class GridBarrier {
 public:
  __device__ explicit GridBarrier(uint32_t* counter) : counter_(counter) {}

  // What the threads of this CTA wrote before can be read behind the barrier.
  __device__ void arrive() {
    __syncthreads();
    expected_ += gridDim.x;
    if (threadIdx.x != 0) return;
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter_) : "memory");
  }
  __device__ void wait() {
    if (threadIdx.x == 0) {
      uint32_t arrived;
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                     : "=r"(arrived)
                     : "l"(counter_)
                     : "memory");
      } while (arrived < expected_);
    }
    __syncthreads();
  }
  __device__ void sync() {
    arrive();
    wait();
  }

 private:
  uint32_t* counter_;
  uint32_t expected_ = 0;
};

// Between stores of threads and copies by BatchedCopy of what they stored, on both sides.
__device__ inline void fence_global_copies() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

}  // namespace specfast
