#pragma once

#include "core/types.h"

namespace specfast {

// A float32 sum over k whose order is part of its meaning, so that a warp and a single thread make
// the same bits: of 32 running sums number k / 8 % 32 takes term k, in the order of k; then halves
// are added to halves.
constexpr int kLaneRun = 8;
constexpr int kLaneSums = 32;

// Adds halves to halves in place.
inline float sum_of_halves(float* sums, int count) {
  for (int width = count / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) sums[i] += sums[i + width];
  }
  return sums[0];
}

// The same by kLanes neighbouring lanes, of which each has made the running sums number lane,
// lane + kLanes, ... All get the sum.
template <int kLanes>
SPECFAST_HD float folded_sums(float (&sums)[kLaneSums / kLanes]) {
  SPECFAST_UNROLL
  for (int width = kLaneSums / kLanes / 2; width > 0; width /= 2) {
    SPECFAST_UNROLL
    for (int i = 0; i < width; ++i) sums[i] += sums[i + width];
  }
  float sum = sums[0];
#if defined(__CUDA_ARCH__)
  SPECFAST_UNROLL
  for (int width = kLanes / 2; width > 0; width /= 2) sum += __shfl_xor_sync(~0u, sum, width);
#endif
  return sum;
}

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
  return sum_of_halves(sums, kLaneSums);
#endif
}

// The same for what a whole part adds up: of 512 running sums number k / 8 % 512 takes term k; each
// 32 neighbours are added up as above, and then the 16 results, halves to halves. `scratch` is of
// kRowSums floats; a second call waits for a barrier in between.
constexpr int kRowSums = 512;
constexpr int kRowGroups = kRowSums / kLaneSums;

template <class Team, class RunningSum>
SPECFAST_HD float sum_of_row(Team& team, float* scratch, const RunningSum& running_sum) {
#if defined(__CUDA_ARCH__)
  // A thread for each of them.
  float sum = sum_of_lanes(team, [&](int) { return running_sum(team.rank()); });
  if (team.lane() == 0) scratch[team.subgroup()] = sum;
  team.sync_part();  // each warp's result is written above and read by all below
  sum = scratch[team.lane() % kRowGroups];
  SPECFAST_UNROLL
  for (int width = kRowGroups / 2; width > 0; width /= 2) sum += __shfl_xor_sync(~0u, sum, width);
  return sum;
#else
  for (int i = team.rank(); i < kRowSums; i += team.size()) scratch[i] = running_sum(i);
  team.sync_part();  // the running sums are written above and read by all below
  float groups[kRowGroups];
  for (int group = 0; group < kRowGroups; ++group) {
    float sums[kLaneSums];
    for (int i = 0; i < kLaneSums; ++i) sums[i] = scratch[group * kLaneSums + i];
    groups[group] = sum_of_halves(sums, kLaneSums);
  }
  return sum_of_halves(groups, kRowGroups);
#endif
}

}  // namespace specfast
