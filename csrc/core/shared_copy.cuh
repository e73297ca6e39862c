#pragma once

#include <cstdint>

namespace specfast {

// Copies from global to shared memory that pass through no register (sm_80). Both addresses are
// multiples of 16 bytes.
template <int kBytes>
__device__ void copy_to_shared(void* target, const void* source) {
  uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(target));
#pragma unroll
  for (int at = 0; at < kBytes; at += 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address + at),
                 "l"(static_cast<const char*>(source) + at)
                 : "memory");
  }
}

// Waits for this thread's own copies.
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace specfast
