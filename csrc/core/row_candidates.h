#pragma once

#include "core/argmax_key.h"
#include "core/row_masses.h"

namespace specfast {

// The tokens of a row above some value, when they are few: every part holds all of them, so that
// cuts and draws among them need no exchange. They are ranked by counting.
class RowCandidates {
 public:
  static constexpr int kMost = 512;

  template <class Arena>
  SPECFAST_HD void place(Arena& arena) {
    keys_ = arena.template scratch<uint64_t>(kMost);
    masses_ = arena.template scratch<uint64_t>(kMost);
    drawn_from_ = arena.template scratch<uint64_t>(kMost);
    part_keys_ = arena.template scratch<uint64_t>(kMost);
    cut_ = arena.template scratch<Cut>(1);
    counter_ = arena.template scratch<int32_t>(1);
  }

  struct Cut {
    uint64_t key;
    uint64_t above;  // measure of the tokens before it
    int32_t token;
  };

  // Collects the tokens for which is_candidate(id, value); false, and no candidates, if they are
  // more than kMost.
  template <class Team, class Row, class Predicate>
  SPECFAST_HD bool collect(Team& team, Exchange& exchange, Row& row, Predicate is_candidate) {
    if (team.rank() == 0) *counter_ = 0;
    team.sync_part();  // cleared before threads count; the last list has been looked at
    row.for_each_group(team, [&](int32_t id, const float (&values)[kGroupIds]) {
      SPECFAST_UNROLL
      for (int i = 0; i < kGroupIds; ++i) {
        if (!is_candidate(id + i, values[i])) continue;
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
    exchange.gather_list(team, part_keys_, mine, first, keys_, count_);
    return true;
  }

  // Gives every candidate its mass. A barrier follows before they are looked at.
  template <class Team, class MassOf>
  SPECFAST_HD void weigh(Team& team, MassOf mass_of) {
    SPECFAST_NO_UNROLL
    for (int i = team.rank(); i < count_; i += team.size()) {
      masses_[i] = mass_of(argmax_value(keys_[i]));
    }
    team.sync_part();
  }

  // The candidate at which the running measure, from the largest key down and starting at `before`,
  // reaches target; key 0 if it never does.
  template <class Team, class Measure>
  SPECFAST_HD Cut cut_at(Team& team, uint64_t before, uint64_t target, Measure measure) {
    if (team.rank() == 0) *cut_ = {0, before, -1};
    team.sync_part();  // cleared before the one that finds it writes
    SPECFAST_NO_UNROLL
    for (int i = team.rank(); i < count_; i += team.size()) {
      uint64_t above = before;
      SPECFAST_NO_UNROLL
      for (int j = 0; j < count_; ++j) {
        if (keys_[j] > keys_[i]) above += measure(keys_[j], masses_[j]);
      }
      uint64_t own = measure(keys_[i], masses_[i]);
      if (above < target && above + own >= target) *cut_ = {keys_[i], above, -1};
    }
    team.sync_part();  // written before all read, read before the next call clears
    Cut cut = *cut_;
    team.sync_part();
    return cut;
  }

  // Takes all below the key out, and gives the mass of the rest.
  template <class Team>
  SPECFAST_HD uint64_t keep_from(Team& team, uint64_t key) {
    uint64_t mine = 0;
    SPECFAST_NO_UNROLL
    for (int i = team.rank(); i < count_; i += team.size()) {
      if (keys_[i] < key) masses_[i] = 0;
      mine += masses_[i];
    }
    return static_cast<uint64_t>(team.sum(static_cast<int64_t>(mine)));
  }

  // The lowest key whose mass is at least `least`; UINT64_MAX if none.
  template <class Team>
  SPECFAST_HD uint64_t lowest_key(Team& team, uint64_t least) {
    uint64_t lowest = UINT64_MAX;
    SPECFAST_NO_UNROLL
    for (int i = team.rank(); i < count_; i += team.size()) {
      if (masses_[i] >= least) lowest = min_of(lowest, keys_[i]);
    }
    return ~team.max_key(~lowest & ~uint64_t{1}, false, team.size()).key & ~uint64_t{1};
  }

  // As RowMasses::sum and find, over the candidates that have mass.
  template <class Team, class WeightOf>
  SPECFAST_HD uint64_t sum(Team& team, const WeightOf& weight_of) {
    uint64_t mine = 0;
    SPECFAST_NO_UNROLL
    for (int i = team.rank(); i < count_; i += team.size()) {
      float weight = masses_[i] > 0 ? weight_of(argmax_id(keys_[i]), argmax_value(keys_[i])) : 0.0f;
      uint64_t mass = to_mass(weight);
      drawn_from_[i] = mass;
      mine += mass;
    }
    return static_cast<uint64_t>(team.sum(static_cast<int64_t>(mine)));
  }
  template <class Team>
  SPECFAST_HD int32_t find(Team& team, uint64_t at) {
    SPECFAST_NO_UNROLL
    for (int i = team.rank(); i < count_; i += team.size()) {
      uint64_t own = drawn_from_[i];
      if (own == 0) continue;
      int32_t id = argmax_id(keys_[i]);
      uint64_t before = 0;
      SPECFAST_NO_UNROLL
      for (int j = 0; j < count_; ++j) {
        if (argmax_id(keys_[j]) < id) before += drawn_from_[j];
      }
      if (at >= before && at - before < own) *cut_ = {0, 0, id};
    }
    team.sync_part();  // as in cut_at
    int32_t token = cut_->token;
    team.sync_part();
    return token;
  }

  // The last id with mass, -1 if there is none.
  template <class Team>
  SPECFAST_HD int32_t last(Team& team) {
    int32_t last = -1;
    SPECFAST_NO_UNROLL
    for (int i = team.rank(); i < count_; i += team.size()) {
      if (masses_[i] > 0) last = max_of(last, argmax_id(keys_[i]));
    }
    return -team.min(-last);
  }

 private:
  uint64_t* keys_ = nullptr;        // scratch [kMost], the same on every part up to order
  uint64_t* masses_ = nullptr;      // scratch [kMost], 0 once cut
  uint64_t* drawn_from_ = nullptr;  // scratch [kMost], of the draw at hand
  uint64_t* part_keys_ = nullptr;   // scratch [kMost]
  Cut* cut_ = nullptr;              // scratch [1]
  int32_t* counter_ = nullptr;      // scratch [1]
  int32_t count_ = 0;
};

}  // namespace specfast
