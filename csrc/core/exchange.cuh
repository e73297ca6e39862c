#pragma once

#include <cstdint>

#include "core/team.h"

namespace specfast {

// The instructions behind ClusterTeam::post and collect (sm_90): stores to another CTA's shared
// memory that count themselves on an mbarrier there.

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Address, in the cluster's shared memory, of CTA `part`'s copy of a shared variable.
__device__ inline uint32_t remote_address(const void* pointer, int part) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"(shared_address(pointer)), "r"(part));
  return address;
}

__device__ inline void init_counter(uint64_t* counter, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(counter)),
               "r"(arrivals));
}
// After init_counter, before anything counts.
__device__ inline void fence_counters() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// By one thread, before the cluster barrier after which others post.
__device__ inline void init_exchange(uint64_t* counters) {
  for (int turn = 0; turn < kExchangeTurns; ++turn) init_counter(&counters[turn], 1);
  fence_counters();
}

__device__ inline void post_word(uint32_t remote_word, uint64_t value, uint32_t remote_counter) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u64 [%0], %1, [%2];" ::"r"(
          remote_word),
      "l"(value), "r"(remote_counter)
      : "memory");
}

// By one thread: the phase ends when so many bytes have been posted.
__device__ inline void expect_bytes(uint64_t* counter, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.relaxed.cta.shared::cta.b64 _, [%0], %1;" ::"r"(
                   shared_address(counter)),
               "r"(bytes)
               : "memory");
}

// What was posted lies in this CTA's own shared memory, where the counter counted it on arrival. So
// the default scope suffices; a cluster-wide acquire would empty the L1 cache at every attempt.
__device__ inline void wait_for_phase(uint64_t* counter, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra WAIT;\n"
      "}\n" ::"r"(shared_address(counter)),
      "r"(parity)
      : "memory");
}

}  // namespace specfast
