#pragma once

#include <type_traits>

#include "core/types.h"

namespace specfast {

// Sixteen bytes of a row. `max_nan` is their largest element, NaN if one is NaN; `larger` has the
// same of two vectors, element by element; `max_number` does not see NaN beside a number;
// `first_equal` is the position of the first element that equals `value`, which is one of them.
template <class T>
struct RowVector;

template <>
struct RowVector<float> {
  static constexpr int kElements = 4;
  static __device__ float max_nan(const uint4& v) {
    return larger(larger(__uint_as_float(v.x), __uint_as_float(v.y)),
                  larger(__uint_as_float(v.z), __uint_as_float(v.w)));
  }
  static __device__ uint4 larger(const uint4& a, const uint4& b) {
    auto of = [](unsigned x, unsigned y) {
      return __float_as_uint(larger(__uint_as_float(x), __uint_as_float(y)));
    };
    return {of(a.x, b.x), of(a.y, b.y), of(a.z, b.z), of(a.w, b.w)};
  }
  static __device__ float max_number(const uint4& v) {
    return fmaxf(fmaxf(__uint_as_float(v.x), __uint_as_float(v.y)),
                 fmaxf(__uint_as_float(v.z), __uint_as_float(v.w)));
  }
  static __device__ int first_equal(const uint4& v, float value) {
    int position = 3;
    if (__uint_as_float(v.z) == value) position = 2;
    if (__uint_as_float(v.y) == value) position = 1;
    if (__uint_as_float(v.x) == value) position = 0;
    return position;
  }

 private:
  static __device__ float larger(float a, float b) {
    float out;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
    return out;
  }
};

// Two 16-bit elements a word.
template <class Pair>
struct PairVector {
  static constexpr int kElements = 8;
  static __device__ float max_nan(const uint4& v) {
    Pair pair = __hmax2_nan(__hmax2_nan(as_pair(v.x), as_pair(v.y)),
                            __hmax2_nan(as_pair(v.z), as_pair(v.w)));
    return to_single(__hmax_nan(pair.x, pair.y));
  }
  static __device__ uint4 larger(const uint4& a, const uint4& b) {
    auto of = [](unsigned x, unsigned y) {
      Pair pair = __hmax2_nan(as_pair(x), as_pair(y));
      return *reinterpret_cast<unsigned*>(&pair);
    };
    return {of(a.x, b.x), of(a.y, b.y), of(a.z, b.z), of(a.w, b.w)};
  }
  static __device__ float max_number(const uint4& v) {
    Pair pair = __hmax2(__hmax2(as_pair(v.x), as_pair(v.y)), __hmax2(as_pair(v.z), as_pair(v.w)));
    return to_single(__hmax(pair.x, pair.y));
  }
  static __device__ int first_equal(const uint4& v, float value) {
    Pair wanted = to_pair(value);
    int position = 7;
    const unsigned words[] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 3; i >= 0; --i) {
      unsigned equal = __heq2_mask(as_pair(words[i]), wanted);
      if ((equal >> 16) != 0) position = 2 * i + 1;
      if ((equal & 0xffffu) != 0) position = 2 * i;
    }
    return position;
  }

 private:
  static __device__ Pair as_pair(unsigned word) { return *reinterpret_cast<Pair*>(&word); }
  static __device__ float to_single(__nv_bfloat16 value) { return __bfloat162float(value); }
  static __device__ float to_single(__half value) { return __half2float(value); }
  static __device__ Pair to_pair(float value) {
    if constexpr (std::is_same_v<Pair, __half2>) {
      return __float2half2_rn(value);
    } else {
      return __float2bfloat162_rn(value);
    }
  }
};

template <>
struct RowVector<BFloat16> : PairVector<__nv_bfloat162> {};
template <>
struct RowVector<Float16> : PairVector<__half2> {};

}  // namespace specfast
