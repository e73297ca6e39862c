#pragma once

#include <cuda_runtime.h>

#include "core/types.h"

namespace specfast {

// Instructions that attention is made of: asynchronous copies, barriers in shared memory, the
// exponential.

__device__ inline uint32_t shared_offset(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Shared memory by instructions of its own: those for any memory wait for copies under way.
__device__ inline int32_t load_shared(const int32_t* address) {
  int32_t value;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(value) : "r"(shared_offset(address)) : "memory");
  return value;
}
__device__ inline void store_shared(int32_t* address, int32_t value) {
  asm volatile("st.shared.s32 [%0], %1;" ::"r"(shared_offset(address)), "r"(value) : "memory");
}
__device__ inline uint32_t load_shared(const uint16_t* address) {
  uint16_t value;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(shared_offset(address)) : "memory");
  return value;
}
__device__ inline void store_shared(uint16_t* address, uint32_t value) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(shared_offset(address)),
               "h"(static_cast<uint16_t>(value))
               : "memory");
}

__device__ inline float4 load_shared(const float4* address) {
  float4 value;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(shared_offset(address))
               : "memory");
  return value;
}
__device__ inline void store_shared(float4* address, const float4& value) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(shared_offset(address)),
               "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
               : "memory");
}

// So many bytes, 8 or 16, to shared memory, from a slot of `slot_bytes`; zeros, and nothing read,
// if it is below 0.
template <int kBytes>
__device__ void copy_async(uint32_t target, const void* slots, int32_t slot, uint32_t slot_bytes) {
#define SPECFAST_COPY_ASYNC(kind)                                                             \
  asm volatile(                                                                               \
      "{ .reg .pred absent; .reg .s32 from; .reg .u64 source;\n"                              \
      "setp.lt.s32 absent, %2, 0;\n"                                                          \
      "max.s32 from, %2, 0;\n"                                                                \
      "mad.wide.u32 source, from, %3, %1;\n"                                                  \
      "cp.async." kind ".shared.global.L2::128B [%0], [source], %4, absent; }" ::"r"(target), \
      "l"(slots), "r"(slot), "r"(slot_bytes), "n"(kBytes))
  if constexpr (kBytes == 16) {
    SPECFAST_COPY_ASYNC("cg");  // past L1, which is for 16 bytes only
  } else {
    SPECFAST_COPY_ASYNC("ca");
  }
#undef SPECFAST_COPY_ASYNC
}
// Closes a group of copies of this thread.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until no more than the last groups are under way.
template <int kGroups>
__device__ void finish_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}
// Until all copies of this thread are done.
__device__ inline void finish_all_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// Barriers in shared memory, of a number of arrivals per round. Rounds count from 0.
__device__ inline void init_barrier(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_offset(barrier)),
               "r"(arrivals)
               : "memory");
}
__device__ inline void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_offset(barrier)) : "memory");
}
// One arrival, as soon as all copies that this thread has begun are done.
__device__ inline void arrive_after_copies(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_offset(barrier))
               : "memory");
}
// Until the round is over; at once for round -1.
__device__ inline void wait_for_round(uint64_t* barrier, int round) {
  uint32_t is_over = 0;
  while (is_over == 0) {
    asm volatile(
        "{ .reg .pred over;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
        "selp.u32 %0, 1, 0, over; }"
        : "=r"(is_over)
        : "r"(shared_offset(barrier)), "r"(round & 1)
        : "memory");
  }
}
// Makes copies that a barrier has counted visible to matrix instructions of this thread.
__device__ inline void show_copies_to_matrices() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// True for one lane of a warp; nothing has to be remembered for that.
__device__ inline bool is_chosen_lane() {
  uint32_t chosen;
  asm volatile(
      "{ .reg .pred chosen; elect.sync _|chosen, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, chosen; }"
      : "=r"(chosen)::"memory");
  return chosen != 0;
}

// Registers of a warpgroup's threads: what some give away others may take.
template <int kRegisters>
__device__ void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Two floats rounded to T, the first in the low half.
template <class T>
__device__ uint32_t pack_pair(float low, float high);

template <>
__device__ inline uint32_t pack_pair<BFloat16>(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
template <>
__device__ inline uint32_t pack_pair<Float16>(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// The same address, of which the compiler knows nothing: what lies there is kept in memory.
template <class Object>
__device__ Object* hide_address(Object* object) {
  asm volatile("" : "+l"(object));
  return object;
}

// 2^x to about 2^-22; 2^0 is 1.
__device__ inline float fast_exp2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

}  // namespace specfast
