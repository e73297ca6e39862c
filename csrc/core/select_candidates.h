#pragma once

#include <cstring>

#include "core/candidate_lists.h"
#include "core/find_cut.h"

namespace specfast {

// Unsigned integers in the order of the scores; NaN counts as -inf, -0 as +0. The keys below that
// of -inf are free; 0 stands for "no score".
constexpr uint32_t kMinusInfinityKey = 0x007fffffu;

SPECFAST_HD uint32_t score_key(float score) {
  if (score != score) return kMinusInfinityKey;
  score += 0.0f;
  uint32_t bits;
  memcpy(&bits, &score, sizeof(bits));
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

struct SelectScratch {
  CandidateScratch candidates;
  uint32_t* keys;    // [C] order of the scores; the memory of candidates.node_of, used before it
  uint32_t* limits;  // [C / k] lowest key on the path above a group, 0 where it misses the root
};

template <class Arena>
SPECFAST_HD SelectScratch select_scratch(Arena& arena, const CandidateLists& lists) {
  SelectScratch scratch;
  scratch.candidates = candidate_scratch(arena, lists);
  scratch.keys = reinterpret_cast<uint32_t*>(scratch.candidates.node_of);
  scratch.limits = arena.template scratch<uint32_t>(lists.num_candidates / lists.topk);
  return scratch;
}

// Reads scores and parents; the keys' range. A barrier.
template <class Team>
SPECFAST_HD KeyRange load_candidates(Team& team, const CandidateLists& lists,
                                     const SelectScratch& scratch, int b) {
  const float* scores = lists.scores + b * lists.scores_stride;
  KeyRange range{UINT32_MAX, 0};
  load_group_parents(team, lists, scratch.candidates, b);
  SPECFAST_NO_UNROLL
  for (int i = team.rank(); i < lists.num_candidates; i += team.size()) {
    uint32_t key = score_key(scores[i]);
    scratch.keys[i] = key;
    range = {min_of(range.lowest, key), max_of(range.highest, key)};
  }
  return team.union_of(range);
}

// Whether no score exceeds that of its parent and no group is malformed, as an honest draft has it:
// then each path's lowest score is its last. A barrier.
template <class Team>
SPECFAST_HD bool scores_fall(Team& team, const CandidateLists& lists,
                             const SelectScratch& scratch) {
  int rises = 0;
  SPECFAST_NO_UNROLL
  for (int i = team.rank(); i < lists.num_candidates; i += team.size()) {
    int group = i / lists.topk;
    if (group == 0) continue;
    int32_t parent = scratch.candidates.group_parents[group];
    rises |= parent < 0 || scratch.keys[i] > scratch.keys[parent];
  }
  return !team.any(rises != 0);
}

// Groups decrease along a path, so the walk ends after at most C / k steps, D - 1 in a tree of
// depth D.
SPECFAST_HD uint32_t path_limit(const CandidateLists& lists, const SelectScratch& scratch,
                                int group) {
  uint32_t limit = UINT32_MAX;
  while (group > 0) {
    int32_t parent = scratch.candidates.group_parents[group];
    if (parent < 0) return 0;
    limit = min_of(limit, scratch.keys[parent]);
    group = parent / lists.topk;
  }
  return limit;
}

// Lowers each key to the lowest on its path, and to that of -inf where the path misses the root. A
// thread touches the keys of its own candidates only, from the barrier in here on.
template <class Team>
SPECFAST_HD void limit_keys(Team& team, const CandidateLists& lists, const SelectScratch& scratch) {
  int num_groups = lists.num_candidates / lists.topk;
  SPECFAST_NO_UNROLL
  for (int group = team.rank(); group < num_groups; group += team.size()) {
    scratch.limits[group] = path_limit(lists, scratch, group);
  }
  team.sync_part();
  SPECFAST_NO_UNROLL
  for (int i = team.rank(); i < lists.num_candidates; i += team.size()) {
    uint32_t key = min_of(scratch.keys[i], scratch.limits[i / lists.topk]);
    scratch.keys[i] = max_of(key, kMinusInfinityKey);
  }
}

// Turns the keys into nodes: the chosen candidates become nodes 1, 2, ... in ascending order.
template <class Team>
SPECFAST_HD void number_chosen(Team& team, const CandidateLists& lists,
                               const SelectScratch& scratch, Cut cut) {
  CountPair before_chunk{0, 0};  // above the cut, ties
  SPECFAST_NO_UNROLL
  for (int first = 0; first < lists.num_candidates; first += team.size()) {
    int candidate = first + team.rank();
    bool inside = candidate < lists.num_candidates;
    uint32_t key = inside ? scratch.keys[candidate] : 0;
    bool above = inside && key > cut.key;
    bool tie = inside && key == cut.key;
    CountPair in_chunk;
    CountPair before = before_chunk + team.exclusive_count(above, tie, &in_chunk);
    before_chunk = before_chunk + in_chunk;
    bool chosen = above || (tie && before.second < cut.num_ties);
    int node = 1 + before.first + min_of(before.second, cut.num_ties);
    if (inside) scratch.candidates.node_of[candidate] = chosen ? node : kNoNode;
  }
}

// Selects the num_nodes - 1 best candidates by (effective score descending, candidate ascending),
// where the effective score is the lowest on the path from the root, so that a candidate never
// comes before its ancestors. One whose path misses the root counts as -inf. Fills group_parents
// and node_of. Each thread has numbered the candidates rank(), rank() + size(), ...; those of
// others need a barrier. True if a path may miss the root; only then `limits` is filled.
template <class Team>
SPECFAST_HD bool select_candidates(Team& team, const CandidateLists& lists,
                                   const SelectScratch& scratch, int num_nodes, int b) {
  KeyRange range = load_candidates(team, lists, scratch, b);
  bool limited = !scores_fall(team, lists, scratch);
  if (limited) {
    limit_keys(team, lists, scratch);
    range.lowest = kMinusInfinityKey;
  }
  Cut cut = find_cut(team, scratch.keys, lists.num_candidates, num_nodes - 1, range);
  number_chosen(team, lists, scratch, cut);
  return limited;
}

}  // namespace specfast
