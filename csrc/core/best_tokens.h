#pragma once

#include "core/exchange.h"
#include "core/logit_row.h"

namespace specfast {

// As argmax_key, of whatever value: NaN and -inf come last, by their ids. Never 0.
SPECFAST_HD uint64_t ranking_key(float value, int32_t id) {
  uint32_t low = static_cast<uint32_t>(INT32_MAX - id) << 1;
  return (static_cast<uint64_t>(value_order(value)) << 32) | low;
}
// -inf of a value that came last.
SPECFAST_HD float ranked_value(uint64_t key) {
  return key >> 32 == 0 ? -INFINITY : argmax_value(key);
}

// How many of n keys are above one of them.
SPECFAST_HD int32_t rank_among(const uint64_t* keys, int32_t n, uint64_t key) {
  constexpr int kAtOnce = 8;
  int32_t above = 0;
  int32_t i = 0;
  SPECFAST_NO_UNROLL
  for (; i + kAtOnce <= n; i += kAtOnce) {
    SPECFAST_UNROLL
    for (int k = 0; k < kAtOnce; ++k) above += keys[i + k] > key ? 1 : 0;
  }
  SPECFAST_NO_UNROLL
  for (; i < n; ++i) above += keys[i] > key ? 1 : 0;
  return above;
}

// The best k tokens of a row that has as many, in the order of their ranking keys. Each part finds
// its own best: it lists what reaches a bound that k of its tokens surely reach, which is little
// more than k of them as a rule. Then all parts get the best of each, with a word that goes with
// it.
class BestTokens {
 public:
  static constexpr int kMost = 32;  // k at most

  SPECFAST_HD explicit BestTokens(int32_t k) : k_(k) {}

  template <class Arena>
  SPECFAST_HD void place(Arena& arena) {
    listed_ = arena.template scratch<uint64_t>(kRoom);
    of_part_ = arena.template scratch<uint64_t>(1 + kMost);
    of_parts_ = arena.template scratch<uint64_t>(kMaxParts * (1 + kMost));
    count_ = arena.template scratch<int32_t>(1);
  }

  // From the largest key of each thread's tokens. A barrier.
  template <class Team>
  SPECFAST_HD void begin(Team& team, uint64_t largest) {
    if (team.rank() == 0) *count_ = 0;
    uint32_t bound = team.lower_bound_of_nth(static_cast<uint32_t>(largest >> 32), k_);
    // No value reaches NaN.
    lowest_ = bound > 0 ? ordered_value(bound) : NAN;
  }

  // What is listed reaches this; NaN: nothing does.
  SPECFAST_HD float lowest() const { return lowest_; }

  // For every group of this thread's, or all that may reach `lowest`, before `finish`.
  template <class Team>
  SPECFAST_HD void list(Team& team, int32_t id, const float (&values)[kGroupIds]) {
    float largest = values[0];
    SPECFAST_UNROLL
    for (int i = 1; i < kGroupIds; ++i) largest = fmaxf(largest, values[i]);
    if (!(largest >= lowest_)) return;  // as nearly all groups
    SPECFAST_UNROLL
    for (int i = 0; i < kGroupIds; ++i) {
      if (!(values[i] >= lowest_)) continue;
      int32_t at = team.atomic_add(count_, 1);
      if (at < kRoom) listed_[at] = ranking_key(values[i], id + i);
    }
  }

  // Behind a barrier after the last `list`. `word` goes with this part. Is a barrier.
  template <class Team, class Row>
  SPECFAST_HD void finish(Team& team, Exchange& exchange, const Row& row, uint64_t word) {
    if (team.rank() == 0) of_part_[0] = word;
    int32_t count = *count_;
    if (count >= k_ && count <= kRoom) {
      SPECFAST_NO_UNROLL
      for (int32_t i = team.rank(); i < count; i += team.size()) {
        int32_t place = rank_among(listed_, count, listed_[i]);
        if (place < k_) of_part_[1 + place] = listed_[i];
      }
    } else {
      uint64_t* best = of_part_ + 1;
      int32_t k = k_;
      out_of_line_with_copy(row, team,
                            [=](const Row& in, Team& own) { list_all(own, in, k, best); });
    }
    int32_t words = 1 + k_;
    exchange.gather_list(team, of_part_, words, team.part() * words, of_parts_,
                         team.parts() * words);
  }

  // Of all parts.
  template <class Team>
  SPECFAST_HD uint64_t sum_of_words(Team& team) const {
    uint64_t mine = 0;
    for (int part = team.lane(); part < team.parts(); part += team.lanes()) {
      mine += of_parts_[part * (1 + k_)];
    }
    return team.lane_sum(mine);
  }

  // visit(place, key) for each of the k best, by one thread of the part each.
  template <class Team, class Visit>
  SPECFAST_HD void for_each(const Team& team, Visit visit) const {
    SPECFAST_NO_UNROLL
    for (int32_t i = team.rank(); i < team.parts() * k_; i += team.size()) {
      uint64_t key = of_parts_[i / k_ * (1 + k_) + 1 + i % k_];
      int32_t place = 0;
      SPECFAST_NO_UNROLL
      for (int part = 0; part < team.parts(); ++part) {
        place += rank_among(of_parts_ + part * (1 + k_) + 1, k_, key);
      }
      if (key != 0 && place < k_) visit(place, key);
    }
  }

 private:
  static constexpr int kRoom = 256;  // what a part lists

  // best[0 .. k) of a part without a bound: each thread keeps its own best in one pass, and the
  // threads' lists are merged. Past the vocabulary are values of -inf: k ids come before them.
  template <class Team, class Row>
  SPECFAST_HD static void list_all(Team& team, const Row& row, int32_t k, uint64_t* best) {
    uint64_t mine[kMost];
    int32_t count = 0;
    float last = -INFINITY;  // a value has to be above it, once there are k
    row.for_each_group(team, [&](int32_t id, const float (&values)[kGroupIds]) {
      SPECFAST_NO_UNROLL
      for (int i = 0; i < kGroupIds; ++i) {
        if (count == k && !(values[i] > last)) continue;
        uint64_t key = ranking_key(values[i], id + i);
        int32_t at = count < k ? count++ : k - 1;
        SPECFAST_NO_UNROLL
        for (; at > 0 && mine[at - 1] < key; --at) mine[at] = mine[at - 1];
        mine[at] = key;
        last = ranked_value(mine[count - 1]);
      }
    });
    int32_t used = 0;
    SPECFAST_NO_UNROLL
    for (int32_t place = 0; place < k; ++place) {
      uint64_t own = used < count ? mine[used] : 0;
      uint64_t key = team.max_key(own, false, team.size()).key;
      if (own == key) ++used;
      if (team.rank() == 0) best[place] = key;
    }
  }

  int32_t k_;
  float lowest_ = NAN;
  uint64_t* listed_ = nullptr;    // scratch [kRoom]
  uint64_t* of_part_ = nullptr;   // scratch [1 + kMost] the word, and keys, best first
  uint64_t* of_parts_ = nullptr;  // scratch [kMaxParts, 1 + k]
  int32_t* count_ = nullptr;      // scratch [1] tokens that reach the bound
};

}  // namespace specfast
