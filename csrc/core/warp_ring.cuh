#pragma once

#include "core/tensor_core.cuh"

namespace specfast {

// A few places in shared memory for each warp, of kWords * 16 bytes, that bulk copies fill in turn.
template <int kWarps, int kStages, int kWords>
class WarpRing {
 public:
  template <class Arena>
  SPECFAST_HD void place(Arena& arena) {
    words_ = arena.template scratch<uint4>(kWarps * kStages * kWords);
  }
  // By the warp, before its first copy.
  __device__ void init() {
    if (threadIdx.x % 32 == 0) {
      for (int stage = 0; stage < kStages; ++stage) init_counter(arrivals(stage), 1);
      fence_counters();
    }
    __syncwarp();
  }
  __device__ uint4* at(int stage) const {
    return words_ + (threadIdx.x / 32 * kStages + stage) * kWords;
  }
  // By one lane, when the warp has done with what was there: to that place or to another.
  __device__ void start(int stage, uint4* target, const void* source, int bytes,
                        uint64_t l2_policy) const {
    expect_bytes(arrivals(stage), bytes);
    copy_to_shared(target, source, bytes, arrivals(stage), l2_policy);
  }
  // By the warp, once for each copy.
  __device__ void wait(int stage) {
    wait_for_phase(arrivals(stage), phases_ >> stage & 1);
    phases_ ^= 1 << stage;
  }

 private:
  __device__ static uint64_t* arrivals(int stage) {
    __shared__ uint64_t counters[kWarps][kStages];
    return &counters[threadIdx.x / 32][stage];
  }

  uint4* words_ = nullptr;  // scratch [kWarps, kStages, kWords]
  int phases_ = 0;          // bit i: of stage i
};

}  // namespace specfast
