#pragma once

#include "core/argmax_key.h"
#include "core/row_masses.h"

namespace specfast {

// The tokens of a row within some range of values, when they are few: every part holds all of them,
// best first, so that cuts and draws among them need no exchange.
class RowCandidates {
 public:
  static constexpr int kMost = 512;

  template <class Arena>
  SPECFAST_HD void place(Arena& arena) {
    keys_ = arena.template scratch<uint64_t>(kMost);
    unsorted_ = arena.template scratch<uint64_t>(kMost);
    part_keys_ = arena.template scratch<uint64_t>(kMost);
    running_ = arena.template scratch<uint64_t>(kMost);
    found_ = arena.template scratch<int32_t>(2);
    counter_ = found_ + 1;
  }

  // Collects the tokens from value `lowest` up for which is_candidate(id, value), and gives each
  // the mass of weight_of(value); of more than `limit` only the best. False, and no candidates, if
  // they are more than kMost.
  template <class Team, class Row, class Predicate, class WeightOf>
  SPECFAST_HD bool collect(Team& team, Exchange& exchange, Row& row, float lowest, int32_t limit,
                           Predicate is_candidate, WeightOf weight_of) {
    if (team.rank() == 0) *counter_ = 0;
    team.sync_part();  // cleared before threads count; the last list has been looked at
    row.for_each_high_group(team, lowest, [&](int32_t id, const float (&values)[kGroupIds]) {
      SPECFAST_UNROLL
      for (int i = 0; i < kGroupIds; ++i) {
        if (!(values[i] >= lowest) || !is_candidate(id + i, values[i])) continue;
        int32_t at = team.atomic_add(counter_, 1);
        if (at < kMost) part_keys_[at] = argmax_key(values[i], id + i);
      }
    });
    team.sync_part();  // counted
    int32_t mine = *counter_;
    uint64_t words[1] = {static_cast<uint64_t>(mine)};
    const uint64_t* counts = exchange.all_gather(team, words);
    int32_t first = 0;
    count_ = 0;
    for (int part = 0; part < team.parts(); ++part) {
      // Past the limit only that it is passed matters; a sum of full counts could overflow.
      int32_t here = static_cast<int32_t>(min_of<uint64_t>(counts[part], kMost + 1));
      if (part < team.part()) first += here;
      count_ += here;
    }
    if (count_ > kMost) return false;
    exchange.gather_list(team, part_keys_, mine, first, unsorted_, count_);
    sort(team);
    truncate(min_of(count_, limit));
    add_up(team, weight_of);
    return true;
  }

  SPECFAST_HD int32_t count() const { return count_; }
  SPECFAST_HD uint64_t key(int32_t i) const { return keys_[i]; }
  // Mass of all.
  SPECFAST_HD uint64_t mass() const { return count_ > 0 ? running_[count_ - 1] : 0; }

  // The number of the candidate with which the running mass reaches `target`, which it does.
  template <class Team>
  SPECFAST_HD int32_t reach(Team& team, uint64_t target) {
    SPECFAST_NO_UNROLL
    for (int i = team.rank(); i < count_; i += team.size()) {
      uint64_t before = i > 0 ? running_[i - 1] : 0;
      if (before < target && target <= running_[i]) *found_ = i;
    }
    return found(team);
  }

  // The number of the last candidate whose mass is at least `least`; the first one's is.
  template <class Team>
  SPECFAST_HD int32_t last_with(Team& team, uint64_t least) {
    SPECFAST_NO_UNROLL
    for (int i = team.rank(); i < count_; i += team.size()) {
      if (mass_at(i) >= least && (i + 1 == count_ || mass_at(i + 1) < least)) *found_ = i;
    }
    return found(team);
  }

  // Takes over what a copy of this has done.
  SPECFAST_HD void absorb(const RowCandidates& done) { count_ = done.count_; }

  // Forgets all but the first `count`.
  SPECFAST_HD void truncate(int32_t count) { count_ = count; }

  // As RowMasses::sum and find.
  template <class Team, class WeightsOf>
  SPECFAST_HD uint64_t sum(Team& team, const WeightsOf& weights) {
    uint64_t mine = 0;
    SPECFAST_NO_UNROLL
    for (int i = team.rank(); i < count_; i += team.size()) {
      uint64_t mass = to_mass(weights.one(argmax_id(keys_[i]), argmax_value(keys_[i])));
      unsorted_[i] = mass;
      mine += mass;
    }
    return static_cast<uint64_t>(team.sum(static_cast<int64_t>(mine)));
  }
  template <class Team>
  SPECFAST_HD int32_t find(Team& team, uint64_t at) {
    SPECFAST_NO_UNROLL
    for (int i = team.rank(); i < count_; i += team.size()) {
      uint64_t own = unsorted_[i];
      if (own == 0) continue;
      int32_t id = argmax_id(keys_[i]);
      uint64_t before = 0;
      SPECFAST_UNROLL_BY_4
      for (int j = 0; j < count_; ++j) before += argmax_id(keys_[j]) < id ? unsorted_[j] : 0;
      if (at >= before && at - before < own) *found_ = id;
    }
    return found(team);
  }

  // The largest id.
  template <class Team>
  SPECFAST_HD int32_t last_id(Team& team) {
    int32_t last = -1;
    SPECFAST_NO_UNROLL
    for (int i = team.rank(); i < count_; i += team.size()) {
      last = max_of(last, argmax_id(keys_[i]));
    }
    return -team.min(-last);
  }

 private:
  SPECFAST_HD uint64_t mass_at(int32_t i) const {
    return i > 0 ? running_[i] - running_[i - 1] : running_[0];
  }

  template <class Team>
  SPECFAST_HD int32_t found(Team& team) {
    team.sync_part();  // found_ is written by the one thread that found it
    int32_t out = *found_;
    team.sync_part();  // and read before the next search
    return out;
  }

  // By counting: keys are distinct.
  template <class Team>
  SPECFAST_HD void sort(Team& team) {
    SPECFAST_NO_UNROLL
    for (int i = team.rank(); i < count_; i += team.size()) {
      uint64_t key = unsorted_[i];
      int32_t better = 0;
      SPECFAST_UNROLL_BY_16
      for (int j = 0; j < count_; ++j) better += unsorted_[j] > key ? 1 : 0;
      keys_[better] = key;
    }
    team.sync_part();  // keys are in order
  }

  template <class Team, class WeightOf>
  SPECFAST_HD void add_up(Team& team, WeightOf weight_of) {
    if (team.subgroup() == 0) {
      uint64_t before = 0;
      SPECFAST_NO_UNROLL
      for (int first = 0; first < count_; first += team.lanes()) {
        int i = first + team.lane();
        uint64_t mass = i < count_ ? to_mass(weight_of(argmax_value(keys_[i]))) : 0;
        uint64_t all;
        uint64_t here = before + team.lane_prefix(mass, &all) + mass;
        if (i < count_) running_[i] = here;
        before += all;
      }
    }
    team.sync_part();  // running masses are written
  }

  uint64_t* keys_ = nullptr;       // scratch [kMost], best first
  uint64_t* unsorted_ = nullptr;   // scratch [kMost], as collected; later the masses of a draw
  uint64_t* part_keys_ = nullptr;  // scratch [kMost], of this part
  uint64_t* running_ = nullptr;    // scratch [kMost], running masses
  int32_t* found_ = nullptr;       // scratch [1]
  int32_t* counter_ = nullptr;     // scratch [1]
  int32_t count_ = 0;
};

}  // namespace specfast
