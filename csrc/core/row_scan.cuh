#pragma once

#include "core/greedy_rows.h"

namespace specfast {

// Sixteen bytes of a row, and their largest element; NaN if one of them is NaN.
template <class T>
struct RowVector;

template <>
struct RowVector<float> {
  static constexpr int kElements = 4;
  static __device__ float max_nan(const uint4& v) {
    return larger(larger(__uint_as_float(v.x), __uint_as_float(v.y)),
                  larger(__uint_as_float(v.z), __uint_as_float(v.w)));
  }

 private:
  static __device__ float larger(float a, float b) {
    float out;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
    return out;
  }
};

template <>
struct RowVector<BFloat16> {
  static constexpr int kElements = 8;
  static __device__ float max_nan(const uint4& v) {
    __nv_bfloat162 pair = __hmax2_nan(__hmax2_nan(as_pair(v.x), as_pair(v.y)),
                                      __hmax2_nan(as_pair(v.z), as_pair(v.w)));
    return __bfloat162float(__hmax_nan(pair.x, pair.y));
  }

 private:
  static __device__ __nv_bfloat162 as_pair(unsigned word) {
    return *reinterpret_cast<__nv_bfloat162*>(&word);
  }
};

template <>
struct RowVector<Float16> {
  static constexpr int kElements = 8;
  static __device__ float max_nan(const uint4& v) {
    __half2 pair = __hmax2_nan(__hmax2_nan(as_pair(v.x), as_pair(v.y)),
                               __hmax2_nan(as_pair(v.z), as_pair(v.w)));
    return __half2float(__hmax_nan(pair.x, pair.y));
  }

 private:
  static __device__ __half2 as_pair(unsigned word) { return *reinterpret_cast<__half2*>(&word); }
};

// scan_elements over the 16-byte vectors of a row, for the thread that owns every `threads`-th of
// them. A vector is kept whole when its maximum is the best so far, so the id within it is looked
// up once, from registers. A NaN hides the rest of its vector; the share is then scanned again.
template <class T>
__device__ KeyFlag scan_vectors(const T* row, int32_t vocab_size, int32_t thread, int32_t threads) {
  constexpr int kElements = RowVector<T>::kElements;
  constexpr int kInFlight = 4;
  int32_t misaligned = reinterpret_cast<uintptr_t>(row) % sizeof(uint4) / sizeof(T);
  int32_t head = min_of(misaligned == 0 ? 0 : kElements - misaligned, vocab_size);
  int32_t vectors = (vocab_size - head) / kElements;
  const uint4* body = reinterpret_cast<const uint4*>(row + head);

  float best = -INFINITY;
  uint4 best_vector = make_uint4(0, 0, 0, 0);
  int32_t best_index = -1;
  bool has_nan = false;
  for (int32_t base = thread; base < vectors; base += kInFlight * threads) {
    uint4 loaded[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      int32_t index = base + k * threads;
      if (index < vectors) loaded[k] = __ldg(body + index);
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      int32_t index = base + k * threads;
      if (index < vectors) {
        float largest = RowVector<T>::max_nan(loaded[k]);
        has_nan |= largest != largest;
        if (largest > best) {
          best = largest;
          best_vector = loaded[k];
          best_index = index;
        }
      }
    }
  }

  KeyFlag out{0, has_nan};
  if (has_nan) {
    for (int32_t index = thread; index < vectors; index += threads) {
      int32_t first = head + index * kElements;
      out.key = max_of(out.key, scan_elements(row, first, first + kElements, 1).key);
    }
  } else if (best_index >= 0) {
    KeyFlag within = scan_elements(reinterpret_cast<const T*>(&best_vector), 0, kElements, 1);
    out.key = argmax_key(best, head + best_index * kElements + argmax_id(within.key));
  }
  KeyFlag first = scan_elements(row, thread, head, threads);
  KeyFlag last = scan_elements(row, head + vectors * kElements + thread, vocab_size, threads);
  return {max_of(out.key, max_of(first.key, last.key)), out.flag || first.flag || last.flag};
}

}  // namespace specfast
