#pragma once

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define SPECFAST_HD __host__ __device__ __forceinline__
// For what runs rarely or is long: one copy instead of one per call.
#define SPECFAST_HD_OUTLINED inline __host__ __device__ __noinline__
#else
#define SPECFAST_HD inline
#define SPECFAST_HD_OUTLINED inline
#endif

// Before a loop that is short or runs rarely: unrolling it would only lengthen the way past it.
#if defined(__CUDACC__)
#define SPECFAST_NO_UNROLL _Pragma("unroll 1")
#else
#define SPECFAST_NO_UNROLL
#endif

// Before a loop over registers: it must be unrolled, or the array goes to memory.
#if defined(__CUDA_ARCH__)
#define SPECFAST_UNROLL _Pragma("unroll")
#define SPECFAST_UNROLL_BY_4 _Pragma("unroll 4")
#define SPECFAST_UNROLL_BY_16 _Pragma("unroll 16")
#else
#define SPECFAST_UNROLL
#define SPECFAST_UNROLL_BY_4
#define SPECFAST_UNROLL_BY_16
#endif

namespace specfast {

constexpr int32_t kNoToken = -1;

template <class T>
SPECFAST_HD constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

template <class T>
SPECFAST_HD constexpr T min_of(T a, T b) {
  return b < a ? b : a;
}

template <class T>
SPECFAST_HD constexpr T max_of(T a, T b) {
  return a < b ? b : a;
}

template <class T>
SPECFAST_HD constexpr T clamp_to(T value, T low, T high) {
  return min_of(max_of(value, low), high);
}

SPECFAST_HD int popcount(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __popc(bits);
#else
  return __builtin_popcount(bits);
#endif
}

// Bits of the smallest power of two that is >= n, for n in [1, 2^31]: 0, 1, 2, 2, 3, ...
SPECFAST_HD int log2_ceil(uint32_t n) {
  uint32_t below = n - 1;
#if defined(__CUDA_ARCH__)
  return 32 - __clz(static_cast<int>(below));
#else
  return below == 0 ? 0 : 32 - __builtin_clz(below);
#endif
}

SPECFAST_HD uint32_t float_bits(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
#endif
}

SPECFAST_HD float bits_float(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
#endif
}

// Storage types of 16-bit floats: one spelling for host code, device code and the dispatch.
struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

enum class FloatType : int32_t { kFloat32, kBFloat16, kFloat16 };

SPECFAST_HD float to_float(float value) { return value; }

SPECFAST_HD float to_float(BFloat16 value) {
  uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float out;
  memcpy(&out, &bits, sizeof(out));
  return out;
}

SPECFAST_HD float to_float(Float16 value) {
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(value.bits));
#else
  uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  uint32_t exponent = (value.bits >> 10) & 0x1fu;
  uint32_t mantissa = value.bits & 0x3ffu;
  uint32_t bits;
  if (exponent == 0x1fu) {
    bits = sign | 0x7f800000u | (mantissa << 13);
  } else if (exponent != 0) {
    bits = sign | ((exponent + 112u) << 23) | (mantissa << 13);
  } else {
    // Zero or subnormal: mantissa units of 2^-24 are exact in float.
    float magnitude = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
    memcpy(&bits, &magnitude, sizeof(bits));
    bits |= sign;
  }
  float out;
  memcpy(&out, &bits, sizeof(out));
  return out;
#endif
}

// An element of an IdView on its way from memory. Extending it to 64 bits would wait for it.
struct IdLoad {
  int64_t wide;
  int32_t narrow;
};

// The nearest value of each type, ties to even.
SPECFAST_HD void store_float(float value, float* target) { *target = value; }

SPECFAST_HD void store_float(float value, BFloat16* target) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  bits = is_nan ? bits | 0x00400000u : bits + 0x7fffu + (bits >> 16 & 1u);
  target->bits = static_cast<uint16_t>(bits >> 16);
}

SPECFAST_HD void store_float(float value, Float16* target) {
#if defined(__CUDA_ARCH__)
  target->bits = __half_as_ushort(__float2half_rn(value));
#else
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  uint32_t sign = bits >> 16 & 0x8000u;
  bits &= 0x7fffffffu;
  uint32_t out;
  if (bits > 0x7f800000u) {
    out = 0x7e00u;
  } else if (bits >= 0x47800000u) {  // 2^16 and above
    out = 0x7c00u;
  } else if (bits >= 0x38800000u) {  // 2^-14 and above: normal, or rounded up to infinity
    uint32_t rebiased = bits - (112u << 23);
    out = (rebiased + 0xfffu + (rebiased >> 13 & 1u)) >> 13;
  } else {
    // Added to 2^-1, whose last place is 2^-24, the sum is rounded as a subnormal is.
    float magnitude;
    memcpy(&magnitude, &bits, sizeof(magnitude));
    magnitude += 0.5f;
    memcpy(&bits, &magnitude, sizeof(bits));
    out = bits - 0x3f000000u;
  }
  target->bits = static_cast<uint16_t>(sign | out);
#endif
}

// The same as a value; NaN has one form.
template <class T>
SPECFAST_HD T rounded_to(float value) {
  uint32_t nan = 0x7fc00000u;
  if (value != value) memcpy(&value, &nan, sizeof(value));
  T out;
  store_float(value, &out);
  return out;
}

// A read-only integer array that is int32 or int64, as the caller has it.
struct IdView {
  const void* data;
  bool is_int64;

  SPECFAST_HD explicit operator bool() const { return data != nullptr; }
  SPECFAST_HD int64_t operator[](int64_t i) const {
    return is_int64 ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }

  // operator[] in two steps, for what is asked for early and used late.
  SPECFAST_HD IdLoad fetch(int64_t i) const {
    if (is_int64) return {static_cast<const int64_t*>(data)[i], 0};
    return {0, static_cast<const int32_t*>(data)[i]};
  }
  SPECFAST_HD int64_t value(IdLoad load) const { return is_int64 ? load.wide : load.narrow; }
};

// The writable counterpart of IdView.
struct IdSpan {
  void* data;
  bool is_int64;

  SPECFAST_HD explicit operator bool() const { return data != nullptr; }
  SPECFAST_HD void store(int64_t i, int64_t value) const {
    if (is_int64) {
      static_cast<int64_t*>(data)[i] = value;
    } else {
      static_cast<int32_t*>(data)[i] = static_cast<int32_t>(value);
    }
  }
};

}  // namespace specfast
