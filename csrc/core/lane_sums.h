#pragma once

#include "core/types.h"

namespace specfast {

// A float32 sum over k whose order is part of its meaning, so that a warp and a single thread make
// the same bits: of 32 running sums number k / 8 % 32 takes term k, in the order of k; then halves
// are added to halves.
constexpr int kLaneRun = 8;
constexpr int kLaneSums = 32;

// By a subgroup; running_sum(number) is one of the 32.
template <class Team, class RunningSum>
SPECFAST_HD float sum_of_lanes(const Team& team, const RunningSum& running_sum) {
#if defined(__CUDA_ARCH__)
  float sum = running_sum(team.lane());
  SPECFAST_UNROLL
  for (int width = kLaneSums / 2; width > 0; width /= 2) sum += __shfl_xor_sync(~0u, sum, width);
  return sum;
#else
  float sums[kLaneSums];
  for (int i = 0; i < kLaneSums; ++i) sums[i] = running_sum(i + team.lane());  // the only lane
  for (int width = kLaneSums / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) sums[i] += sums[i + width];
  }
  return sums[0];
#endif
}

}  // namespace specfast
