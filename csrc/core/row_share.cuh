#pragma once

#include "core/logit_row.h"
#include "core/token_weights.h"

namespace specfast {

// The columns of a row that one warp looks at, neighbouring groups on each lane, in the order of
// lanes. They stay in registers.
template <class T>
class RowShare {
 public:
  static constexpr int kMostGroups = 8;  // per lane
  static constexpr int kMostIds = 32 * kMostGroups * kGroupIds;

  // Columns [begin, end), at most kMostIds of them; past the L1 cache.
  __device__ RowShare(const T* row, int32_t begin, int32_t end) {
    int32_t of_lane = ceil_div(ceil_div(end - begin, kGroupIds), 32);
    begin_ = begin + static_cast<int32_t>(threadIdx.x % 32) * of_lane * kGroupIds;
    end_ = min_of(begin_ + of_lane * kGroupIds, end);
#pragma unroll
    for (int i = 0; i < kMostGroups; ++i) {
      int32_t id = begin_ + i * kGroupIds;
      if (id < end_) groups_[i] = load(row, id);
    }
  }

  // Of this lane's columns.
  __device__ uint64_t mass(const PlainWeights& weights) const {
    uint64_t sum = 0;
#pragma unroll
    for (int i = 0; i < kMostGroups; ++i) {
      if (begin_ + i * kGroupIds >= end_) break;
      sum += mass_of(weights, i);
    }
    return sum;
  }
  // By the lane that has it: the first column whose running sum exceeds `at`.
  __device__ int32_t find(const PlainWeights& weights, uint64_t at) const {
    int32_t found = begin_;
#pragma unroll
    for (int i = 0; i < kMostGroups; ++i) {
      if (begin_ + i * kGroupIds >= end_) break;
      uint64_t mass = mass_of(weights, i);
      if (at < mass) return begin_ + i * kGroupIds + find_in(weights, groups_[i], at);
      at -= mass;
    }
    return found;
  }

 private:
  __device__ LogitGroup<T> load(const T* row, int32_t id) const {
    LogitGroup<T> out;
    if (id + kGroupIds <= end_ && reinterpret_cast<uintptr_t>(row + id) % 16 == 0) {
      const uint4* words = reinterpret_cast<const uint4*>(row + id);
#pragma unroll
      for (size_t i = 0; i < sizeof(out) / sizeof(uint4); ++i) {
        reinterpret_cast<uint4*>(&out)[i] = __ldcg(words + i);
      }
      return out;
    }
    return load_one_by_one(row, id, end_);
  }
  __device__ __noinline__ static LogitGroup<T> load_one_by_one(const T* row, int32_t id,
                                                               int32_t end) {
    LogitGroup<T> out{};
#pragma unroll
    for (int i = 0; i < kGroupIds; ++i) {
      out.set(i, id + i < end ? row[id + i] : rounded_to<T>(-INFINITY));
    }
    return out;
  }
  __device__ uint64_t mass_of(const PlainWeights& weights, int i) const {
    float values[kGroupIds];
#pragma unroll
    for (int k = 0; k < kGroupIds; ++k) values[k] = to_float(groups_[i].get(k));
    return weights.group_mass(begin_ + i * kGroupIds, values);
  }
  __device__ __noinline__ static int32_t find_in(const PlainWeights& weights, LogitGroup<T> group,
                                                 uint64_t at) {
#pragma unroll
    for (int k = 0; k < kGroupIds; ++k) {
      uint64_t mass = weights.weights.mass(to_float(group.get(k)));
      if (at < mass) return k;
      at -= mass;
    }
    return 0;
  }

  LogitGroup<T> groups_[kMostGroups];
  int32_t begin_;
  int32_t end_;
};

}  // namespace specfast
