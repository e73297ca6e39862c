#pragma once

#include "core/attention_instructions.cuh"
#include "core/float8.h"

namespace specfast {

// Two float8 in the low half, the first in the low byte, as two T. Exact.
template <class T>
__device__ uint32_t convert_pair(uint32_t pair);

template <>
__device__ inline uint32_t convert_pair<Float16>(uint32_t pair) {
  uint32_t halves;
  asm("{ .reg .b16 low;\n"
      "cvt.u16.u32 low, %1;\n"
      "cvt.rn.f16x2.e4m3x2 %0, low; }"
      : "=r"(halves)
      : "r"(pair));
  return halves;
}
template <>
__device__ inline uint32_t convert_pair<BFloat16>(uint32_t pair) {
  const uint32_t halves = convert_pair<Float16>(pair);
  const float low = to_float(Float16{static_cast<uint16_t>(halves)});
  const float high = to_float(Float16{static_cast<uint16_t>(halves >> 16)});
  return pack_pair<BFloat16>(low, high);
}

// Eight float8 at an address in shared memory become eight T from there on.
template <class T>
__device__ void convert_float8(uint32_t address) {
  uint32_t low, high;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
               : "=r"(low), "=r"(high)
               : "r"(address)
               : "memory");
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(convert_pair<T>(low)),
               "r"(convert_pair<T>(low >> 16)), "r"(convert_pair<T>(high)),
               "r"(convert_pair<T>(high >> 16))
               : "memory");
}

}  // namespace specfast
