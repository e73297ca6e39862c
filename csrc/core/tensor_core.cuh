#pragma once

#include <cstdint>

namespace specfast {

// d[16, 8] += a[16, 16] * b[16, 8] of bfloat16 by one warp (m16n8k16), with lane = 4 * g + q:
// a holds rows g, g + 8, g, g + 8 at columns 2q, 2q + 1 (the first two) and 2q + 8, 2q + 9; b holds
// column g at the same rows; d holds rows g, g, g + 8, g + 8 at columns 2q, 2q + 1 twice.
__device__ inline void multiply_add_16x8x16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                            uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
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

// Sixteen bytes that no kernel writes meanwhile, and that one warp reads once.
__device__ inline uint4 load_once(const void* address, uint64_t l2_policy) {
  uint4 out;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
               : "l"(address), "l"(l2_policy));
  return out;
}

}  // namespace specfast
