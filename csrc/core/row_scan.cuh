#pragma once

#include "core/greedy_rows.h"
#include "core/row_vector.cuh"

namespace specfast {

// What scan_vectors leaves: elements before the first and after the last whole vector, and the
// vectors of a share that holds a NaN, which hides the rest of its vector. Rare, so out of line.
template <class T>
__device__ __noinline__ KeyFlag scan_leftovers(const T* row, int32_t vocab_size, int32_t head,
                                               int32_t vectors, int32_t thread, int32_t threads,
                                               bool has_nan) {
  constexpr int kElements = RowVector<T>::kElements;
  uint64_t key = 0;
  for (int32_t index = thread; has_nan && index < vectors; index += threads) {
    int32_t first = head + index * kElements;
    key = max_of(key, scan_elements(row, first, first + kElements, 1).key);
  }
  KeyFlag before = scan_elements(row, thread, head, threads);
  KeyFlag after = scan_elements(row, head + vectors * kElements + thread, vocab_size, threads);
  return {max_of(key, max_of(before.key, after.key)), has_nan || before.flag || after.flag};
}

// scan_elements over the 16-byte vectors of a row, for the thread that owns every `threads`-th of
// them. The best vector so far stays in registers, so that the id within it is looked up once.
template <class T>
__device__ KeyFlag scan_vectors(const T* row, int32_t vocab_size, int32_t thread, int32_t threads) {
  constexpr int kElements = RowVector<T>::kElements;
  constexpr int kInFlight = 8;
  int32_t misaligned = reinterpret_cast<uintptr_t>(row) % sizeof(uint4) / sizeof(T);
  int32_t head = min_of(misaligned == 0 ? 0 : kElements - misaligned, vocab_size);
  int32_t vectors = (vocab_size - head) / kElements;
  const uint4* body = reinterpret_cast<const uint4*>(row + head);

  // A ring of loads: the place of a vector is asked for again as soon as it has been looked at.
  uint4 ring[kInFlight];
#pragma unroll
  for (int k = 0; k < kInFlight; ++k) {
    int32_t index = thread + k * threads;
    if (index < vectors) ring[k] = __ldg(body + index);
  }
  float best = -INFINITY;
  uint4 best_vector = make_uint4(0, 0, 0, 0);
  int32_t best_index = 0;
  bool has_nan = false;
#pragma unroll 1
  for (int32_t base = thread; base < vectors; base += kInFlight * threads) {
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      int32_t index = base + k * threads;
      if (index >= vectors) break;
      float largest = RowVector<T>::max_nan(ring[k]);
      has_nan |= largest != largest;
      if (largest > best) {
        best = largest;
        best_vector = ring[k];
        best_index = index;
      }
      int32_t next = index + kInFlight * threads;
      if (next < vectors) ring[k] = __ldg(body + next);
    }
  }
  int32_t id = head + best_index * kElements + RowVector<T>::first_equal(best_vector, best);
  KeyFlag out{argmax_key(best, id), has_nan};
  if (has_nan || head + vectors * kElements != vocab_size || head != 0) {
    KeyFlag rest = scan_leftovers(row, vocab_size, head, vectors, thread, threads, has_nan);
    out = {max_of(out.key, rest.key), rest.flag};
  }
  return out;
}

}  // namespace specfast
