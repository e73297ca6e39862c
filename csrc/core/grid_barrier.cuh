#pragma once

#include <cstdint>

namespace specfast {

// Barriers over all CTAs of a cooperative launch. The counter is 0 when the launch begins, and
// who arrives last of all sets it back.
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
  // Arrives for the last time; whether all others had, the same on all threads.
  __device__ bool arrive_last() {
    __syncthreads();
    expected_ += gridDim.x;
    bool is_last = false;
    if (threadIdx.x == 0) {
      uint32_t before;
      asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                   : "=r"(before)
                   : "l"(counter_)
                   : "memory");
      is_last = before + 1 == expected_;
      if (is_last) *counter_ = 0;
    }
    return __syncthreads_or(is_last) != 0;
  }

 private:
  uint32_t* counter_;
  uint32_t expected_ = 0;
};

// Two words at a multiple of sixteen bytes, written and read at once; they order nothing else.
__device__ inline void store_pair(uint64_t* target, uint64_t first, uint64_t second) {
  asm volatile(
      "{\n"
      ".reg .b128 pair;\n"
      "mov.b128 pair, {%1, %2};\n"
      "st.relaxed.gpu.global.b128 [%0], pair;\n"
      "}\n" ::"l"(target),
      "l"(first), "l"(second)
      : "memory");
}
__device__ inline void load_pair(const uint64_t* source, uint64_t& first, uint64_t& second) {
  asm volatile(
      "{\n"
      ".reg .b128 pair;\n"
      "ld.relaxed.gpu.global.b128 pair, [%2];\n"
      "mov.b128 {%0, %1}, pair;\n"
      "}\n"
      : "=l"(first), "=l"(second)
      : "l"(source)
      : "memory");
}

// Between stores of threads and copies by BatchedCopy of what they stored, on both sides.
__device__ inline void fence_global_copies() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

}  // namespace specfast
