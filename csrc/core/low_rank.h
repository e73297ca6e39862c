#pragma once

#include <cmath>

#include "core/types.h"

namespace specfast {

// Sum over k of weights[k] * factors[k] in float32, in an order that is part of its meaning: eight
// running sums, number k % 8 taking term k by a fused multiply-add, then halves added to halves.
template <class W>
SPECFAST_HD float weighted_sum(const W* weights, const float* factors, int32_t rank) {
  constexpr int kSums = 8;
  float sums[kSums] = {};
  int32_t whole = rank / kSums * kSums;
  for (int32_t first = 0; first < whole; first += kSums) {
    SPECFAST_UNROLL
    for (int i = 0; i < kSums; ++i) {
      sums[i] = fmaf(to_float(weights[first + i]), factors[first + i], sums[i]);
    }
  }
  SPECFAST_UNROLL
  for (int i = 0; i < kSums; ++i) {
    if (whole + i < rank) sums[i] = fmaf(to_float(weights[whole + i]), factors[whole + i], sums[i]);
  }
  SPECFAST_UNROLL
  for (int width = kSums / 2; width > 0; width /= 2) {
    SPECFAST_UNROLL
    for (int i = 0; i < width; ++i) sums[i] += sums[i + width];
  }
  return sums[0];
}

}  // namespace specfast
