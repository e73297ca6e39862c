#pragma once

#include "core/team.h"

namespace specfast {

// Chosen are the keys above `key` and the first `num_ties` that equal it.
struct Cut {
  uint32_t key;
  int num_ties;
};

// The cut that chooses `wanted` of the keys in `range`: bisects for the largest value that at least
// `wanted` keys reach, and stops at the first that exactly `wanted` reach.
template <class NumReaching>
SPECFAST_HD Cut bisect_cut(KeyRange range, int wanted, NumReaching num_reaching) {
  int num_above = 0;
  SPECFAST_NO_UNROLL
  while (range.lowest < range.highest) {
    uint32_t bound = range.highest - (range.highest - range.lowest) / 2;
    int reached = num_reaching(bound);
    if (reached == wanted) return {bound - 1, 0};
    if (reached > wanted) {
      range.lowest = bound;
    } else {
      range.highest = bound - 1;
      num_above = reached;
    }
  }
  return {range.highest, wanted - num_above};
}

// The same for n keys in scratch. Each thread reads the keys rank(), rank() + size(), ...
template <class Team>
SPECFAST_HD Cut find_cut(Team& team, const uint32_t* keys, int n, int wanted, KeyRange range) {
  if (n <= team.size()) {
    const uint32_t mine = team.rank() < n ? keys[team.rank()] : 0;
    return bisect_cut(range, wanted, [&](uint32_t bound) { return team.count(mine >= bound); });
  }
  return bisect_cut(range, wanted, [&](uint32_t bound) {
    int mine_reached = 0;
    SPECFAST_NO_UNROLL
    for (int i = team.rank(); i < n; i += team.size()) mine_reached += keys[i] >= bound;
    return team.sum(mine_reached);
  });
}

}  // namespace specfast
