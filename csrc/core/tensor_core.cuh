#pragma once

#include <cstdint>

#include "core/exchange.cuh"

namespace specfast {

// d[16, 8] += a[16, 16] * b[16, 8] of bfloat16 by one warp (m16n8k16), with lane = 4 * g + q:
// a holds rows g, g + 8, g, g + 8 at columns 2q, 2q + 1 (the first two) and 2q + 8, 2q + 9; b holds
// column g at the same rows; d holds rows g, g, g + 8, g + 8 at columns 2q, 2q + 1 twice.
__device__ inline void multiply_add_16x8x16(float (&d)[4], const uint4& a, uint32_t b0,
                                            uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// Which lines stay in L2 when others need room.
__device__ inline uint64_t l2_keep() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ inline uint64_t l2_pass() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// A word on its way to shared memory, past the registers.
__device__ inline void copy_word_to_shared(uint32_t* target, const uint32_t* source) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(target)), "l"(source)
               : "memory");
}
// For those that this thread has asked for.
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// A multiple of sixteen bytes on its way to shared memory, between addresses that are; `counter`
// counts them there.
__device__ inline void copy_to_shared(void* target, const void* source, int bytes,
                                      uint64_t* counter, uint64_t l2_policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(target)),
      "l"(source), "r"(bytes), "r"(shared_address(counter)), "l"(l2_policy)
      : "memory");
}

// Asks L2 for a multiple of sixteen bytes.
__device__ inline void prefetch_to_l2(const void* address, int bytes, uint64_t l2_policy) {
  asm volatile("cp.async.bulk.prefetch.L2.global.L2::cache_hint [%0], %1, %2;" ::"l"(address),
               "r"(bytes), "l"(l2_policy)
               : "memory");
}

// Sixteen bytes that no kernel writes meanwhile, and that one warp reads once.
__device__ inline uint4 load_once(const void* address, uint64_t l2_policy) {
  uint4 out;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
               : "l"(address), "l"(l2_policy));
  return out;
}

// Two numbers as bfloat16, the first one low; ties to even. NaN becomes some NaN.
__device__ inline uint32_t rounded_pair(float first, float second) {
  uint32_t out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(second), "f"(first));
  return out;
}

}  // namespace specfast
