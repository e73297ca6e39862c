#pragma once

#include "core/exchange.h"
#include "core/logit_row.h"
#include "core/mass.h"

namespace specfast {

// Tokens that are out of a draw, with the mass that each had.
struct Exclusions {
  const int32_t* ids = nullptr;
  const uint64_t* masses = nullptr;
  int32_t count = 0;

  SPECFAST_HD bool contain(int32_t id) const {
    for (int32_t i = 0; i < count; ++i) {
      if (ids[i] == id) return true;
    }
    return false;
  }
  // Mass of those with ids in [begin, end).
  SPECFAST_HD uint64_t mass(int32_t begin = 0, int32_t end = INT32_MAX) const {
    uint64_t sum = 0;
    for (int32_t i = 0; i < count; ++i) {
      if (ids[i] >= begin && ids[i] < end) sum += masses[i];
    }
    return sum;
  }
};

// Mass of eight weights in [0, 1].
SPECFAST_HD uint64_t sum_of_masses(const float (&weights)[kGroupIds]) {
#if defined(__CUDA_ARCH__)
  // Conversions to 64 bits are slow, so a weight splits into multiples of 2^-20 and what is below:
  // adding 1.5 * 2^23 leaves an integer in the low bits of a float.
  constexpr float kInteger = 12582912.0f;
  constexpr float kHigh = 1048576.0f;
  uint32_t high = 0;
  uint32_t low = 0;
#pragma unroll
  for (int i = 0; i < kGroupIds; ++i) {
    float scaled = weights[i] * kHigh;
    float rounded = scaled + kInteger;
    float rest = scaled - (rounded - kInteger);
    high += __float_as_uint(rounded);
    low += __float_as_uint(__fmaf_rd(rest, kHigh, kInteger));
  }
  constexpr uint32_t kIntegers = 0x4b400000u * kGroupIds;
  int32_t multiples = static_cast<int32_t>(high - kIntegers);
  int32_t below = static_cast<int32_t>(low - kIntegers);
  return static_cast<uint64_t>(static_cast<int64_t>(multiples) * 1048576 + below);
#else
  uint64_t sum = 0;
  for (float weight : weights) sum += to_mass(weight);
  return sum;
#endif
}

// Sums of masses over a row, by thread and by part, and the search for a token in them.
class RowMasses {
 public:
  template <class Arena>
  SPECFAST_HD void place(Arena& arena) {
    left_ = arena.template scratch<uint64_t>(kMaxParts);
    subgroup_masses_ = arena.template scratch<uint64_t>(kMaxSubgroups);
    found_ = arena.template scratch<int32_t>(1);
  }

  // Sum over the row of the masses of weight_of(id, value), which is in [0, 1].
  template <class Team, class Row, class WeightOf>
  SPECFAST_HD uint64_t sum(Team& team, Exchange& exchange, const Row& row,
                           const WeightOf& weight_of) {
    mine_ = 0;
    row.for_each_group(team, [&](int32_t id, const float (&values)[kGroupIds]) {
      float weights[kGroupIds];
      SPECFAST_UNROLL
      for (int i = 0; i < kGroupIds; ++i) weights[i] = weight_of(id + i, values[i]);
      mine_ += sum_of_masses(weights);
    });
    uint64_t words[1] = {static_cast<uint64_t>(team.sum(static_cast<int64_t>(mine_)))};
    part_masses_ = exchange.all_gather(team, words);
    return sum_of_parts(team, part_masses_);
  }

  // The smallest id whose running sum of masses exceeds `at`, which is below their sum; the
  // excluded ids count nothing. `sum` came before, over the same weights.
  template <class Team, class Row, class WeightOf>
  SPECFAST_HD int32_t find(Team& team, Exchange& exchange, const Row& row,
                           const WeightOf& weight_of, const Exclusions& excluded, uint64_t at) {
    SPECFAST_NO_UNROLL
    for (int part = team.rank(); part < team.parts(); part += team.size()) {
      GroupRange range = GroupRange::of(row.vocab_size(), part, team.parts());
      left_[part] =
          part_masses_[part] - excluded.mass(range.begin * kGroupIds, range.end * kGroupIds);
    }
    GroupRange run = row.run(team);
    uint64_t mine = mine_ - excluded.mass(row.first_id(run.begin), row.first_id(run.end));
    uint64_t of_subgroup;
    uint64_t before = team.lane_prefix(mine, &of_subgroup);
    if (team.lane() == 0) subgroup_masses_[team.subgroup()] = of_subgroup;
    team.sync_part();  // left_ and subgroup_masses_ are written
    int owner = 0;
    for (; owner < team.parts() - 1 && at >= left_[owner]; ++owner) at -= left_[owner];
    if (team.part() == owner) {
      for (int i = 0; i < team.subgroup(); ++i) before += subgroup_masses_[i];
      if (at >= before && at - before < mine) {
        *found_ = find_in_run(row, run, weight_of, excluded, at - before);
      }
    }
    team.sync_part();  // found_ is written
    uint64_t words[1] = {static_cast<uint64_t>(*found_)};
    return static_cast<int32_t>(exchange.all_gather(team, words)[owner]);
  }

 private:
  static constexpr int kMaxSubgroups = 32;

  // By the thread in whose run it is.
  template <class Row, class WeightOf>
  SPECFAST_HD static int32_t find_in_run(const Row& row, GroupRange run, const WeightOf& weight_of,
                                         const Exclusions& excluded, uint64_t at) {
    SPECFAST_NO_UNROLL
    for (int32_t group = run.begin; group < run.end; ++group) {
      float weights[kGroupIds];
      row.group_values(group, weights);
      int32_t id = row.first_id(group);
      SPECFAST_UNROLL
      for (int i = 0; i < kGroupIds; ++i) weights[i] = weight_of(id + i, weights[i]);
      SPECFAST_NO_UNROLL
      for (int32_t k = 0; k < excluded.count; ++k) {
        int32_t gone = excluded.ids[k] - id;
        SPECFAST_UNROLL
        for (int i = 0; i < kGroupIds; ++i) weights[i] = gone == i ? 0.0f : weights[i];
      }
      uint64_t of_group = sum_of_masses(weights);
      if (at >= of_group) {
        at -= of_group;
        continue;
      }
      int32_t found = -1;
      SPECFAST_UNROLL
      for (int i = 0; i < kGroupIds; ++i) {
        uint64_t here = to_mass(weights[i]);
        if (found < 0 && at < here) found = id + i;
        at -= here;
      }
      return found;
    }
    return -1;  // `at` was not below the sum
  }

  uint64_t* left_ = nullptr;             // scratch [kMaxParts], of each part without exclusions
  uint64_t* subgroup_masses_ = nullptr;  // scratch [kMaxSubgroups]
  int32_t* found_ = nullptr;             // scratch [1]
  const uint64_t* part_masses_ = nullptr;
  uint64_t mine_ = 0;  // of this thread's run
};

}  // namespace specfast
