#pragma once

#include "core/argmax_key.h"
#include "core/row_vector.cuh"
#include "core/team.h"

namespace specfast {

// Rare, so out of line, and by value, so that neither has to lie in memory for it.
template <class Row, class Team>
__device__ __noinline__ uint64_t largest_beside_nan(Row row, Team team) {
  uint64_t key = 0;
  row.for_each_raw_group(team, [&](int32_t id, const auto& values) {
    for (int i = 0; i < 8; ++i) key = max_of(key, argmax_key(values[i], id + i));
  });
  return key;
}

// LogitRow::largest where groups need no edits: whole vectors are compared, the best one stays in
// registers, and the id within it is looked up once.
template <class Row, class Team>
__device__ KeyFlag largest_of_groups(Row& row, Team& team) {
  using T = typename Row::Element;
  using Vector = RowVector<T>;
  constexpr int kVectors = sizeof(LogitGroup<T>) / sizeof(uint4);
  float best = -INFINITY;
  uint4 best_vector = make_uint4(0, 0, 0, 0);
  int32_t best_id = 0;
  bool has_nan = false;
  row.for_each_stored_group(team, [&](int32_t id, const LogitGroup<T>& group) {
    const uint4* vectors = reinterpret_cast<const uint4*>(&group);
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      float largest = Vector::max_nan(vectors[k]);
      has_nan |= largest != largest;
      if (largest > best) {
        best = largest;
        best_vector = vectors[k];
        best_id = id + k * Vector::kElements;
      }
    }
  });
  uint64_t key = argmax_key(best, best_id + Vector::first_equal(best_vector, best));
  // A NaN hides the rest of its vector.
  if (has_nan) key = largest_beside_nan(row, team);
  return {key, has_nan};
}

}  // namespace specfast
