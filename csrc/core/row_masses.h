#pragma once

#include "core/exchange.h"
#include "core/token_weights.h"

namespace specfast {

// Tokens that are out of a draw, with the mass that each had.
struct Exclusions {
  const int32_t* ids = nullptr;
  const uint64_t* masses = nullptr;
  int32_t count = 0;

  SPECFAST_HD bool contain(int32_t id) const {
    SPECFAST_NO_UNROLL
    for (int32_t i = 0; i < count; ++i) {
      if (ids[i] == id) return true;
    }
    return false;
  }
  // Mass of those with ids in [begin, end).
  SPECFAST_HD uint64_t mass(int32_t begin = 0, int32_t end = INT32_MAX) const {
    uint64_t sum = 0;
    SPECFAST_NO_UNROLL
    for (int32_t i = 0; i < count; ++i) {
      if (ids[i] >= begin && ids[i] < end) sum += masses[i];
    }
    return sum;
  }
};

// Sums of masses over a row, by subgroup and by part, and the search for a token in them.
class RowMasses {
 public:
  template <class Arena>
  SPECFAST_HD void place(Arena& arena) {
    subgroup_masses_ = arena.template scratch<uint64_t>(2 * kMaxSubgroups);
    run_masses_ = arena.template scratch<uint64_t>(kMaxSubgroups);
  }

  // Sum over the row of the masses of `weights`.
  template <class Team, class Row, class WeightsOf>
  SPECFAST_HD uint64_t sum(Team& team, Exchange& exchange, const Row& row,
                           const WeightsOf& weights) {
    uint64_t of_lane = 0;
    if constexpr (WeightsOf::kFetches) {
      // For one group while the one before it is computed.
      float fetched[kGroupIds] = {};
      int32_t stride = team.lanes() * kGroupIds;
      GroupRange mine = row.subgroup_range(team.subgroup());
      int32_t end = row.first_id(mine.end);
      if (row.first_id(mine.begin + team.lane()) < end) {
        weights.fetch(row.first_id(mine.begin + team.lane()), fetched);
      }
      row.for_each_group(team, [&](int32_t id, const float (&values)[kGroupIds]) {
        float next[kGroupIds] = {};
        if (id + stride < end) weights.fetch(id + stride, next);
        of_lane += weights.group_mass(id, values, fetched);
        SPECFAST_UNROLL
        for (int i = 0; i < kGroupIds; ++i) fetched[i] = next[i];
      });
    } else {
      row.for_each_group(team, [&](int32_t id, const float (&values)[kGroupIds]) {
        of_lane += weights.group_mass(id, values);
      });
    }
    // Two buffers in turn: the last sum may still be searched by a slower thread.
    turn_ ^= 1;
    uint64_t* of_subgroups = subgroup_masses_ + turn_ * kMaxSubgroups;
    uint64_t of_subgroup = team.lane_sum(of_lane);
    if (team.lane() == 0) of_subgroups[team.subgroup()] = of_subgroup;
    team.sync_part();  // all subgroups have written theirs
    uint64_t words[1] = {team.total(of_subgroups, team.subgroups())};
    const uint64_t* of_parts = exchange.all_gather(team, words);
    part_turn_ = exchange.turn();
    return sum_of_parts(team, of_parts);
  }

  // The smallest id whose running sum of masses exceeds `at`, which is below their sum; the
  // excluded ids count nothing. `sum` came last, over the same weights.
  template <class Team, class Row, class WeightsOf>
  SPECFAST_HD int32_t find(Team& team, Exchange& exchange, const Row& row, const WeightsOf& weights,
                           const Exclusions& excluded, uint64_t at) {
    const uint64_t* of_parts = exchange.answers(part_turn_);
    Place part = team.locate(
        team.parts(),
        [&](int i) {
          GroupRange range = GroupRange::of(row.vocab_size(), i, team.parts());
          return of_parts[i] - excluded.mass(range.begin * kGroupIds, range.end * kGroupIds);
        },
        at);
    int32_t found = -1;
    bool has_found = false;
    // Were there no place, a part would still have to speak.
    if (team.part() == max_of(part.index, 0)) {
      found = find_in_part(team, row, weights, excluded, part.rest, &has_found);
    }
    return static_cast<int32_t>(exchange.tell(team, has_found, static_cast<uint64_t>(found)));
  }

  // Takes over what a copy of this has done.
  SPECFAST_HD void absorb(const RowMasses& done) {
    turn_ = done.turn_;
    part_turn_ = done.part_turn_;
  }

 private:
  static constexpr int kMaxSubgroups = 32;

  // The groups of the subgroup that has the token are dealt out again, in runs, to the whole part.
  // One subgroup gets the answer.
  template <class Team, class Row, class WeightsOf>
  SPECFAST_HD int32_t find_in_part(Team& team, const Row& row, const WeightsOf& weights,
                                   const Exclusions& excluded, uint64_t at, bool* has_found) {
    const uint64_t* of_subgroups = subgroup_masses_ + turn_ * kMaxSubgroups;
    Place subgroup = team.locate(
        team.subgroups(),
        [&](int i) {
          GroupRange range = row.subgroup_range(i);
          return of_subgroups[i] -
                 excluded.mass(row.first_id(range.begin), row.first_id(range.end));
        },
        at);
    GroupRange range = row.subgroup_range(max_of(subgroup.index, 0));
    int32_t length = ceil_div(range.size(), static_cast<int32_t>(team.size()));
    int32_t begin = min_of(range.begin + team.rank() * length, range.end);
    GroupRange run{begin, min_of(begin + length, range.end)};
    // A single thread need not know how much it holds.
    uint64_t of_run = team.size() == 1 ? UINT64_MAX : 0;
    float last[kGroupIds] = {};  // weights of the run's last group
    SPECFAST_NO_UNROLL
    for (int32_t group = run.begin; team.size() > 1 && group < run.end; ++group) {
      weights_without(row, group, weights, excluded, last);
      of_run += mass_of_weights(last);
    }
    uint64_t of_runs = team.lane_sum(of_run);
    if (team.lane() == 0) run_masses_[team.subgroup()] = of_runs;
    team.sync_part();  // all subgroups have written theirs
    Place runs =
        team.locate(team.subgroups(), [&](int i) { return run_masses_[i]; }, subgroup.rest);
    *has_found = team.subgroup() == max_of(runs.index, 0);
    if (!*has_found) return -1;
    Place lane = team.locate_lane(of_run, runs.rest);
    int source = max_of(lane.index, 0);
    if (length == 1 && team.size() > 1) {
      int32_t id = row.first_id(run.begin) + place_in_group(last, lane.rest);
      return lane.index < 0
                 ? -1
                 : static_cast<int32_t>(team.from_lane(static_cast<uint64_t>(id), source));
    }
    run = {static_cast<int32_t>(team.from_lane(static_cast<uint64_t>(run.begin), source)),
           static_cast<int32_t>(team.from_lane(static_cast<uint64_t>(run.end), source))};
    return find_in_run(team, row, run, weights, excluded, lane.rest);
  }

  // The first of a group's tokens whose running sum exceeds `at`, which is below their sum.
  SPECFAST_HD static int32_t place_in_group(const float (&weights)[kGroupIds], uint64_t at) {
    int32_t place = 0;
    uint64_t sum = 0;
    SPECFAST_UNROLL
    for (int i = 0; i < kGroupIds; ++i) {
      sum += to_mass(weights[i]);
      place += at >= sum ? 1 : 0;
    }
    return place;
  }

  template <class Row, class WeightsOf>
  SPECFAST_HD static void weights_without(const Row& row, int32_t group, const WeightsOf& weights,
                                          const Exclusions& excluded, float (&out)[kGroupIds]) {
    float values[kGroupIds];
    row.group_values(group, values);
    int32_t id = row.first_id(group);
    SPECFAST_NO_UNROLL
    for (int32_t k = 0; k < excluded.count; ++k) {
      int32_t gone = excluded.ids[k] - id;
      SPECFAST_UNROLL
      for (int i = 0; i < kGroupIds; ++i) values[i] = gone == i ? -INFINITY : values[i];
    }
    weights_of_group(weights, id, values, out);
  }

  // The token of a lane's run, which its whole subgroup looks for; -1 if `at` is not below its
  // mass.
  template <class Team, class Row, class WeightsOf>
  SPECFAST_HD static int32_t find_in_run(Team& team, const Row& row, GroupRange run,
                                         const WeightsOf& weights, const Exclusions& excluded,
                                         uint64_t at) {
    Place group{-1, at};
    SPECFAST_NO_UNROLL
    for (int32_t first = run.begin; group.index < 0 && first < run.end; first += team.lanes()) {
      int32_t mine = first + team.lane();
      float of_tokens[kGroupIds] = {};
      if (mine < run.end) weights_without(row, mine, weights, excluded, of_tokens);
      group = team.locate_lane(mass_of_weights(of_tokens), group.rest);
      if (group.index < 0) continue;
      int32_t id = row.first_id(mine) + place_in_group(of_tokens, group.rest);
      return static_cast<int32_t>(team.from_lane(static_cast<uint64_t>(id), group.index));
    }
    return -1;
  }

  uint64_t* subgroup_masses_ = nullptr;  // scratch [2, kMaxSubgroups], of the last sums
  uint64_t* run_masses_ = nullptr;       // scratch [kMaxSubgroups], of the search
  int turn_ = 0;
  int part_turn_ = 0;  // of the exchange that brought the sums of all parts
};

}  // namespace specfast
