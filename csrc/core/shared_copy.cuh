#pragma once

#include "core/exchange.cuh"

namespace specfast {

// By one thread: begins a copy of so many bytes, a multiple of 16, between addresses that are.
__device__ inline void start_copy(void* target, const void* source, int bytes, uint64_t* counter) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(target)),
      "l"(source), "r"(bytes), "r"(shared_address(counter))
      : "memory");
}

// Copies from global to shared memory in few large pieces, without registers (sm_90). Each warp
// starts its own and waits for its own; a batch is what one wait waits for.
class BatchedCopy {
 public:
  static constexpr int kBatches = 4;

  // By the warp, before its first batch.
  __device__ static void init() {
    if (lane() == 0) {
      for (int batch = 0; batch < kBatches; ++batch) init_counter(counter(batch), 1);
      fence_counters();
    }
    __syncwarp();
  }

  // By one lane, each batch by its own: begins a batch of so many bytes, a multiple of 16, between
  // addresses that are. What the warp read there before, it has done; what threads wrote, they have
  // handed over.
  __device__ static void start(int batch, void* target, const void* source, int bytes) {
    expect_bytes(counter(batch), bytes);
    if (bytes == 0) return;
    start_copy(target, source, bytes, counter(batch));
  }
  // By a thread that has written where a later copy may come, before a barrier. Not by the copy
  // itself: this waits for all that its thread has under way, other copies among it.
  __device__ static void hand_over() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  // `turn` alternates between 0 and 1 from one use of a batch to the next.
  __device__ static void wait(int batch, int turn) { wait_for_phase(counter(batch), turn); }

 private:
  static constexpr int kMaxWarps = 32;

  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ static uint64_t* counter(int batch) {
    __shared__ uint64_t counters[kMaxWarps][kBatches];
    return &counters[threadIdx.x / 32][batch];
  }
};

}  // namespace specfast
