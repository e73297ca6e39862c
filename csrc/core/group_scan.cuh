#pragma once

#include "core/argmax_key.h"
#include "core/row_vector.cuh"
#include "core/team.h"

namespace specfast {

// NaN does not count.
template <class T>
__device__ float largest_number(const LogitGroup<T>& group) {
  const uint4* vectors = reinterpret_cast<const uint4*>(&group);
  float largest = RowVector<T>::max_number(vectors[0]);
  constexpr int kVectors = sizeof(LogitGroup<T>) / sizeof(uint4);
  return kVectors == 1 ? largest : fmaxf(largest, RowVector<T>::max_number(vectors[kVectors - 1]));
}

// Of some groups; NaN if one of them has a NaN.
template <class T, int kCount>
__device__ float largest_or_nan(const LogitGroup<T> (&groups)[kCount]) {
  using Vector = RowVector<T>;
  constexpr int kVectors = kCount * sizeof(LogitGroup<T>) / sizeof(uint4);
  const uint4* vectors = reinterpret_cast<const uint4*>(groups);
  uint4 largest = vectors[0];
#pragma unroll
  for (int k = 1; k < kVectors; ++k) largest = Vector::larger(largest, vectors[k]);
  return Vector::max_nan(largest);
}

// Rare, so out of line, and by value, so that neither has to lie in memory for it.
template <class Row, class Team>
__device__ __noinline__ uint64_t largest_beside_nan(Row row, Team team) {
  uint64_t key = 0;
  row.for_each_raw_group(team, [&](int32_t id, const auto& values) {
    for (int i = 0; i < 8; ++i) key = max_of(key, argmax_key(values[i], id + i));
  });
  return key;
}

// LogitRow::largest where groups need no edits: whole vectors are compared, and the id within the
// best one is looked up once.
template <class Row, class Team>
__device__ KeyFlag largest_of_groups(Row& row, Team& team) {
  using T = typename Row::Element;
  using Vector = RowVector<T>;
  constexpr int kVectors = sizeof(LogitGroup<T>) / sizeof(uint4);
  float best = -INFINITY;
  int32_t best_id = 0;  // of a group of this thread's, once there is a best
  bool has_nan = false;
  row.for_each_arriving_group(team, [&](int32_t id, const LogitGroup<T>& group) {
    const uint4* vectors = reinterpret_cast<const uint4*>(&group);
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      float largest = Vector::max_nan(vectors[k]);
      has_nan |= largest != largest;
      if (largest > best) {
        best = largest;
        best_id = id + k * Vector::kElements;
      }
    }
  });
  // A NaN hides the rest of its vector.
  if (has_nan) return {largest_beside_nan(row, team), true};
  if (!(best > -INFINITY)) return {0, false};
  LogitGroup<T> group = row.group_of(best_id);
  uint4 best_vector = reinterpret_cast<const uint4*>(&group)[0];
  if (kVectors == 2 && best_id % kGroupIds != 0) {
    best_vector = reinterpret_cast<const uint4*>(&group)[kVectors - 1];
  }
  return {argmax_key(best, best_id + Vector::first_equal(best_vector, best)), false};
}

}  // namespace specfast
