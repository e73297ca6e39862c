#pragma once

#include "core/argmax_key.h"
#include "core/mass.h"
#include "core/team.h"

namespace specfast {

// A choice among n <= 32 scores in scratch, by every subgroup for itself, each the same: one score
// per lane, no barrier.

// The lowest place of the largest score; -1 where none is above -inf.
struct BestScore {
  float value;
  int32_t place;
  bool has_nan;
};
template <class Team>
SPECFAST_HD BestScore best_score([[maybe_unused]] const Team& team, const float* scores,
                                 int32_t n) {
#if defined(__CUDA_ARCH__)
  float mine = team.lane() < n ? scores[team.lane()] : -INFINITY;
  uint32_t order = value_order(mine);
  uint32_t largest = __reduce_max_sync(~0u, order);
  unsigned places = __ballot_sync(~0u, order == largest);
  bool has_nan = __any_sync(~0u, mine != mine) != 0;
  if (largest == 0) return {-INFINITY, -1, has_nan};
  return {ordered_value(largest), __ffs(places) - 1, has_nan};
#else
  BestScore best{-INFINITY, -1, false};
  for (int32_t i = 0; i < n; ++i) {
    best.has_nan |= scores[i] != scores[i];
    if (scores[i] > best.value) best = {scores[i], i, best.has_nan};
  }
  return best;
#endif
}

// A draw from their masses: all of them together, and the place whose running sum exceeds
// floor(random * total / 2^64).
struct DrawnScore {
  uint64_t total;
  int32_t place;
};
template <class Team>
SPECFAST_HD DrawnScore draw_score(Team& team, const float* scores, int32_t n,
                                  const Weights& weights, uint64_t random) {
#if defined(__CUDA_ARCH__)
  uint64_t mine = team.lane() < n ? weights.mass(scores[team.lane()]) : 0;
  uint64_t total;
  uint64_t before = team.lane_prefix(mine, &total);
  uint64_t at = scaled_draw(random, total);
  unsigned hit = __ballot_sync(~0u, at >= before && at - before < mine);
  return {total, __ffs(hit) - 1};
#else
  uint64_t total = 0;
  for (int32_t i = 0; i < n; ++i) total += weights.mass(scores[i]);
  auto mass_of = [&](int i) { return weights.mass(scores[i]); };
  return {total, team.locate(n, mass_of, scaled_draw(random, total)).index};
#endif
}

}  // namespace specfast
