#pragma once

#include "core/team.h"

namespace specfast {

// Sum of the words that all parts gave.
template <class Team>
SPECFAST_HD uint64_t sum_of_parts(Team& team, const uint64_t* words) {
  return team.total(words, team.parts());
}

// What is done in the shadow of an exchange, if anything.
struct Nothing {
  SPECFAST_HD void operator()() const {}
};

// Exchanges of a few words between the parts of a team, one after the other. What a call returns
// stays until the third call after it. Mailboxes take turns, three of them: who posts to one again
// has collected two exchanges since, of which one at least was an all_gather, to which every part
// posts behind a barrier of its threads, and so when all of them have done with the mailbox.
class Exchange {
 public:
  static constexpr int kMaxWords = 3;

  template <class Arena>
  SPECFAST_HD void place(Arena& arena) {
    mailbox_ = arena.template scratch<uint64_t>(kExchangeTurns * kMaxWords * kMaxParts);
  }

  // Every part gives words[0..kWords), the same on all its threads, and gets those of all parts. A
  // barrier of the part lies between the last look at an earlier answer and this call. What is got:
  // word w of part p at [w * kMaxParts + p]. `meanwhile` runs on every thread while the words
  // travel.
  template <int kWords, class Team, class Meanwhile = Nothing>
  SPECFAST_HD const uint64_t* all_gather(Team& team, const uint64_t (&words)[kWords],
                                         Meanwhile meanwhile = {}) {
    uint64_t* slot = next_slot(team);
    SPECFAST_NO_UNROLL
    for (int part = team.rank(); part < team.parts(); part += team.size()) {
      for (int w = 0; w < kWords; ++w) {
        team.post(part, slot + w * kMaxParts + team.part(), words[w], turn_);
      }
    }
    meanwhile();
    team.collect(kWords * team.parts(), turn_);
    return slot;
  }

  // One subgroup of the whole team has a word, the same on its lanes; all get it. The calls before
  // and after are all_gathers.
  template <class Team>
  SPECFAST_HD uint64_t tell(Team& team, bool has_word, uint64_t word) {
    uint64_t* slot = next_slot(team);
    if (has_word) {
      for (int part = team.lane(); part < team.parts(); part += team.lanes()) {
        team.post(part, slot, word, turn_);
      }
    }
    team.collect(1, turn_);
    return *slot;
  }

  // What was got in the exchange before `turn()` came to this number.
  SPECFAST_HD int turn() const { return turn_; }
  SPECFAST_HD const uint64_t* answers(int turn) const {
    return mailbox_ + turn * kMaxWords * kMaxParts;
  }

  // Takes over what a copy of this has done.
  SPECFAST_HD void absorb(const Exchange& done) {
    turn_ = done.turn_;
    started_ = done.started_;
  }

  // After the last exchange, or where there was none: no part leaves before all have started.
  template <class Team>
  SPECFAST_HD void finish(Team& team) {
    if (!started_) team.wait();
    started_ = true;
  }

  // Like `tell`, since a part may have no words: every part gives its n_mine words as number
  // `first` and following of `all`, which has n_all words on every part.
  template <class Team>
  SPECFAST_HD void gather_list(Team& team, const uint64_t* mine, int n_mine, int first,
                               uint64_t* all, int n_all) {
    team.sync_part();  // the list is whole, and the last answer has been read
    next_slot(team);
    SPECFAST_NO_UNROLL
    for (int i = team.rank(); i < n_mine * team.parts(); i += team.size()) {
      int word = i / team.parts();
      team.post(i - word * team.parts(), all + first + word, mine[word], turn_);
    }
    team.collect(n_all, turn_);
  }

 private:
  // The first exchange waits until every part has started.
  template <class Team>
  SPECFAST_HD uint64_t* next_slot(Team& team) {
    if (!started_) team.wait();
    started_ = true;
    turn_ = turn_ + 1 == kExchangeTurns ? 0 : turn_ + 1;
    return mailbox_ + turn_ * kMaxWords * kMaxParts;
  }

  uint64_t* mailbox_ = nullptr;  // scratch [kExchangeTurns, kMaxWords, kMaxParts]
  int turn_ = 0;
  bool started_ = false;
};

}  // namespace specfast
