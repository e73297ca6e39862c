#pragma once

#include "core/lane_sums.h"
#include "core/logit_row.h"

namespace specfast {

// The sum over k of before[k] * (keys[k] * after[k]) in the order of lane sums: the product in
// brackets rounded, the other one fused. By kLanes lanes together; what does not wait for `before`
// is made ahead. kRank: of all rows, a multiple of 256; 0: any.
template <class W, int kLanes, int kRank>
struct SelectorSums {
  static constexpr int kSums = kLaneSums / kLanes;  // of a lane
  static constexpr int kAtOnce = kLaneSums * kLaneRun;

  static_assert(kRank % kAtOnce == 0);
  static_assert(kLaneRun == kGroupIds);

  // The first run of each of a lane's sums; zeros past the rank.
  struct Factors {
    LogitGroup<W> at[kSums];
  };
  struct Products {
    float at[kSums][kLaneRun];
  };

  int32_t any_rank;  // a multiple of kLaneRun, if none is fixed
  int lane;

  SPECFAST_HD int32_t rank() const { return kRank > 0 ? kRank : any_rank; }
  SPECFAST_HD bool has(int32_t first) const { return kRank > 0 || first < any_rank; }

  SPECFAST_HD int32_t first(int sum) const { return (lane + sum * kLanes) * kLaneRun; }

  // visit(k) for the first term of each run that is this lane's.
  template <class Visit>
  SPECFAST_HD void for_each_run(const Visit& visit) const {
    SPECFAST_NO_UNROLL
    for (int32_t skipped = 0; skipped < rank(); skipped += kAtOnce) {
      SPECFAST_UNROLL
      for (int i = 0; i < kSums; ++i) {
        if (has(skipped + first(i))) visit(skipped + first(i));
      }
    }
  }

  SPECFAST_HD Factors load(const W* row) const {
    Factors out;
    SPECFAST_UNROLL
    for (int i = 0; i < kSums; ++i) {
      out.at[i] = {};
      if (has(first(i))) out.at[i] = run_at(row + first(i));
    }
    return out;
  }
  SPECFAST_HD Products products(const float* keys, const W* after) const {
    Products out;
    SPECFAST_UNROLL
    for (int i = 0; i < kSums; ++i) {
      SPECFAST_UNROLL
      for (int k = 0; k < kLaneRun; ++k) out.at[i][k] = 0.0f;
      if (has(first(i))) multiply(keys + first(i), after + first(i), out.at[i]);
    }
    return out;
  }

  // On all kLanes lanes; `ahead` and `made` are load(before) and products(keys, after).
  SPECFAST_HD float sum(const Factors& ahead, const Products& made, const W* before,
                        const float* keys, const W* after) const {
    float sums[kSums] = {};
    SPECFAST_UNROLL
    for (int i = 0; i < kSums; ++i) add(ahead.at[i], made.at[i], sums[i]);
    SPECFAST_NO_UNROLL
    for (int32_t skipped = kAtOnce; skipped < rank(); skipped += kAtOnce) {
      SPECFAST_UNROLL
      for (int i = 0; i < kSums; ++i) {
        int32_t at = skipped + first(i);
        if (!has(at)) continue;
        float others[kLaneRun];
        multiply(keys + at, after + at, others);
        add(run_at(before + at), others, sums[i]);
      }
    }
    return folded_sums<kLanes>(sums);
  }

 private:
  // At a multiple of sixteen bytes.
  template <class T>
  SPECFAST_HD static LogitGroup<T> run_at(const T* first) {
    return *reinterpret_cast<const LogitGroup<T>*>(first);
  }
  SPECFAST_HD static void multiply(const float* keys, const W* after, float (&out)[kLaneRun]) {
    LogitGroup<float> of_keys = run_at(keys);
    LogitGroup<W> of_row = run_at(after);
    SPECFAST_UNROLL
    for (int k = 0; k < kLaneRun; ++k) out[k] = of_keys.get(k) * to_float(of_row.get(k));
  }
  SPECFAST_HD static void add(const LogitGroup<W>& factors, const float (&products)[kLaneRun],
                              float& sum) {
    SPECFAST_UNROLL
    for (int k = 0; k < kLaneRun; ++k) sum = fmaf(to_float(factors.get(k)), products[k], sum);
  }
};

}  // namespace specfast
