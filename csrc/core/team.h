#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/types.h"

namespace specfast {

// A Team is the set of threads that run one algorithm body together. It has `parts()` parts (the
// CTAs of a cluster) of `size()` threads; `scratch` is memory shared by one part.
//
//   int rank(), size()        this thread within its part
//   int part(), parts()       this part within the team
//   void sync_part()          barrier and memory order over one part
//   void arrive(), wait()     a barrier over the whole team in two halves; work between them
//                             overlaps the waiting. Passed once before the first post: another
//                             part's scratch may not be there earlier
//   T* scratch<T>(n)          n elements, uninitialised; all threads ask in the same order
//   void post(part, word, value, turn), collect(n, turn)   an exchange between parts: post stores
//                             value to another part's copy of a scratch word; collect waits until n
//                             words were posted to this part. `turn`, below kExchangeTurns, differs
//                             from one exchange to the next, and so does the scratch used
//   KeyFlag max_key(key, flag, n)   over each n neighbouring ranks of one part (n divides size();
//                             on a device it is a multiple of 32): largest key, OR of the flags;
//                             each thread gets its own group's
//   KeyFlag largest(keys, n)  largest of n <= 32 scratch keys whose bit 0 is a flag; OR of the
//                             flags; no barrier
//   int min(int), int sum(int), int64_t sum(int64_t)   over one part; same on all threads
//   int count(bool)           threads of this part that say true; same on all threads
//   KeyRange union_of(range)  from the lowest to the highest of one part; same on all threads
//   CountPair exclusive_count(a, b, CountPair* total)   threads of this part before this one, in
//                             rank order, that say `a` and that say `b`; total: of the whole part
//   bool any(bool)            over one part
//   void atomic_min(int*, int), void atomic_or(uint32_t*, uint32_t), int atomic_add(int*, int)   on
//                             scratch; the last gives the value before
//   T peek(const T*), uint64_t fetch_or(uint64_t*, uint64_t)   on memory that teams of one launch
//                             share; the second gives the value before, and orders what its thread
//                             wrote before, and reads after it, with others' calls on the same word
//   int lane(), lanes(), subgroup(), subgroups()   a part's threads come in subgroups that run in
//                             step: warps on a device, single threads elsewhere
//   void converge()           brings the threads of a subgroup together again after a loop that
//   some
//                             of them have skipped: barriers do without, a checker of them does not
//   uint64_t lane_sum(uint64_t), lane_prefix(uint64_t, uint64_t* total)   over a subgroup: the sum,
//                             and the sum of the lanes before this one; no barrier
//   uint64_t total(words, n)  sum of n <= 32 scratch words; no barrier
//   uint64_t from_lane(uint64_t, int lane)   that lane's value; no barrier
//   Place locate_lane(size, at), locate(n, size_of, at)   where a running sum passes `at`: of the
//                             lanes' sizes, or of size_of(i) for i < n <= 32; no barrier
//   uint32_t lower_bound_of_nth(uint32_t order, int n)   a number that at least n threads of the
//                             part do not lie below, or 0; same on all threads
//
// Collectives are called by every thread of the part, on paths chosen by values that are equal on
// all threads. Each that speaks of a part is also a barrier: what the part wrote before it can be
// read after it. Bodies use nothing else to communicate: no shuffles, no ballots, no early return
// before a barrier. Floating-point sums are not here because their order must not depend on the
// team.
constexpr int kMaxParts = 16;
constexpr int kExchangeTurns = 3;

struct KeyFlag {
  uint64_t key;
  bool flag;
};

struct KeyRange {
  uint32_t lowest;
  uint32_t highest;
};

struct CountPair {
  int first;
  int second;

  SPECFAST_HD friend CountPair operator+(CountPair a, CountPair b) {
    return {a.first + b.first, a.second + b.second};
  }
};

// The first whose running sum, itself included, exceeds a number; `rest` is what the ones before it
// leave of the number. -1 if there is none.
struct Place {
  int index;
  uint64_t rest;
};

// Subgroups of single threads.
class SingleLanes {
 public:
  SPECFAST_HD int lane() const { return 0; }
  int lanes() const { return 1; }
  void converge() {}
  uint64_t lane_sum(uint64_t value) { return value; }
  uint64_t total(const uint64_t* words, int n) {
    uint64_t sum = 0;
    for (int i = 0; i < n; ++i) sum += words[i];
    return sum;
  }
  uint64_t lane_prefix(uint64_t value, uint64_t* total) {
    *total = value;
    return 0;
  }
  uint64_t from_lane(uint64_t value, int) { return value; }
  Place locate_lane(uint64_t size, uint64_t at) {
    return locate(1, [&](int) { return size; }, at);
  }
  template <class SizeOf>
  Place locate(int n, const SizeOf& size_of, uint64_t at) {
    for (int i = 0; i < n; ++i) {
      uint64_t size = size_of(i);
      if (at < size) return {i, at};
      at -= size;
    }
    return {-1, at};
  }
};

inline KeyFlag largest_flagged_key(const uint64_t* keys, int n) {
  KeyFlag out{0, false};
  for (int i = 0; i < n; ++i) {
    out = {max_of(out.key, keys[i] & ~uint64_t{1}), out.flag || (keys[i] & 1) != 0};
  }
  return out;
}

// Runs f(object, team) in a function of its own: for what is long and rare. On a device it gets
// copies of both, so that the originals can stay in registers; object.absorb(copy) takes back what
// f may have changed. What it leaves alone the compiler can go on to know: that a pointer is one to
// shared memory, that a number is a constant.
template <class Object, class Team, class F>
SPECFAST_HD_OUTLINED void run_outlined(Object& object, Team& team, F f) {
  f(object, team);
}
template <class Object, class Team, class F>
SPECFAST_HD void out_of_line(Object& object, Team& team, F f) {
#if defined(__CUDA_ARCH__)
  Object object_copy = object;
  Team team_copy = team;
  run_outlined(object_copy, team_copy, f);
  object.absorb(object_copy);
  team = team_copy;
#else
  f(object, team);
#endif
}

// The same for what need not come back into the object.
template <class Object, class Team, class F>
SPECFAST_HD void out_of_line_with_copy(Object object, Team& team, F f) {
#if defined(__CUDA_ARCH__)
  Team team_copy = team;
  run_outlined(object, team_copy, f);
  team = team_copy;
#else
  f(object, team);
#endif
}

// Answers `scratch` with nothing but a count, so that a launcher learns from the layout function
// of a body how much shared memory to ask for.
class ScratchSizer {
 public:
  template <class T>
  SPECFAST_HD T* scratch(int n) {
    bytes_ = ceil_div<size_t>(bytes_, 16) * 16 + sizeof(T) * static_cast<size_t>(n);
    return nullptr;
  }
  // Whole blocks of 16 bytes: a compiler reads pairs of words in one access where it may.
  size_t bytes() const { return ceil_div<size_t>(bytes_, 16) * 16; }

 private:
  size_t bytes_ = 0;
};

// One thread that is the whole team: the CPU op.
class SerialTeam : public SingleLanes {
 public:
  static constexpr bool kOnDevice = false;

  int rank() const { return 0; }
  int size() const { return 1; }
  int part() const { return 0; }
  int parts() const { return 1; }
  void sync_part() {}
  void arrive() {}
  void wait() {}
  void post(int, uint64_t* word, uint64_t value, int) { *word = value; }
  void collect(int, int) {}

  template <class T>
  T* scratch(int n) {
    blocks_.emplace_back(sizeof(T) * static_cast<size_t>(n) + 16);
    return reinterpret_cast<T*>(blocks_.back().data());
  }

  KeyFlag max_key(uint64_t key, bool flag, int) { return {key, flag}; }
  KeyFlag largest(const uint64_t* keys, int n) { return largest_flagged_key(keys, n); }
  int min(int value) { return value; }
  int sum(int value) { return value; }
  int64_t sum(int64_t value) { return value; }
  int count(bool value) { return value ? 1 : 0; }
  bool any(bool value) { return value; }
  KeyRange union_of(KeyRange range) { return range; }
  CountPair exclusive_count(bool a, bool b, CountPair* total) {
    *total = {a ? 1 : 0, b ? 1 : 0};
    return {0, 0};
  }

  void atomic_min(int32_t* target, int32_t value) { *target = min_of(*target, value); }
  void atomic_or(uint32_t* target, uint32_t bits) { *target |= bits; }
  int32_t atomic_add(int32_t* target, int32_t value) {
    *target += value;
    return *target - value;
  }

  template <class T>
  T peek(const T* source) {
    return *source;
  }
  uint64_t fetch_or(uint64_t* target, uint64_t bits) {
    uint64_t before = *target;
    *target |= bits;
    return before;
  }

  int subgroup() const { return 0; }
  int subgroups() const { return 1; }
  uint32_t lower_bound_of_nth(uint32_t order, int n) { return n <= 1 ? order : 0; }

 private:
  std::vector<std::vector<char>> blocks_;
};

}  // namespace specfast
