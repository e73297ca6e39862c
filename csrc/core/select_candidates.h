#pragma once

#include <cstring>

#include "core/candidate_lists.h"

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
SPECFAST_HD SelectScratch select_scratch(Arena& arena, const CandidateLists& lists, int num_nodes) {
  SelectScratch scratch;
  scratch.candidates = candidate_scratch(arena, lists, num_nodes);
  scratch.keys = reinterpret_cast<uint32_t*>(scratch.candidates.node_of);
  scratch.limits = arena.template scratch<uint32_t>(lists.num_candidates / lists.topk);
  return scratch;
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

// Chosen are the keys above `key` and the first `num_ties` that equal it.
struct Cut {
  uint32_t key;
  int num_ties;
};

// The cut that chooses `wanted` of n keys, found from the highest bit down: `key` is the largest
// value that at least `wanted` keys reach. Stops at the first bound that exactly `wanted` reach.
template <class Team>
SPECFAST_HD Cut find_cut(Team& team, const uint32_t* keys, int n, int wanted) {
  // With a key per thread at most, a thread keeps its own at hand and a round is one barrier.
  const bool one_each = n <= team.size();
  const uint32_t mine = one_each && team.rank() < n ? keys[team.rank()] : 0;
  uint32_t key = 0;
  int num_above = 0;
  for (int bit = 31; bit >= 0; --bit) {
    uint32_t bound = key | 1u << bit;
    int reached;
    if (one_each) {
      reached = team.count(mine >= bound);
    } else {
      int mine_reached = 0;
      for (int i = team.rank(); i < n; i += team.size()) mine_reached += keys[i] >= bound;
      reached = team.sum(mine_reached);
    }
    if (reached == wanted) return {bound - 1, 0};
    if (reached > wanted) {
      key = bound;
    } else {
      num_above = reached;
    }
  }
  return {key, wanted - num_above};
}

// Turns the keys into nodes: the chosen candidates become nodes 1, 2, ... in ascending order.
template <class Team>
SPECFAST_HD void number_chosen(Team& team, const CandidateLists& lists,
                               const SelectScratch& scratch, Cut cut) {
  // Two counts in one scan; C < 2^15 keeps them apart.
  constexpr int kOneTie = 1 << 16;
  int before_chunk = 0;
  for (int first = 0; first < lists.num_candidates; first += team.size()) {
    int candidate = first + team.rank();
    bool inside = candidate < lists.num_candidates;
    uint32_t key = inside ? scratch.keys[candidate] : 0;
    bool above = inside && key > cut.key;
    bool tie = inside && key == cut.key;
    int in_chunk;
    int before = before_chunk + team.exclusive_scan(above ? 1 : tie ? kOneTie : 0, &in_chunk);
    before_chunk += in_chunk;
    int ties_before = before / kOneTie;
    bool chosen = above || (tie && ties_before < cut.num_ties);
    int node = 1 + before % kOneTie + min_of(ties_before, cut.num_ties);
    if (inside) scratch.candidates.node_of[candidate] = chosen ? node : kNoNode;
    if (chosen) scratch.candidates.candidate_of[node] = candidate;
  }
}

// Selects the num_nodes - 1 best candidates by (effective score descending, candidate ascending),
// where the effective score is the lowest on the path from the root, so that a candidate never
// comes before its ancestors. One whose path misses the root counts as -inf. Fills
// group_parents, node_of, candidate_of and limits; needs a barrier after it.
template <class Team>
SPECFAST_HD void select_candidates(Team& team, const CandidateLists& lists,
                                   const SelectScratch& scratch, int num_nodes, int b) {
  const float* scores = lists.scores + b * lists.scores_stride;
  load_group_parents(team, lists, scratch.candidates, b);
  for (int i = team.rank(); i < lists.num_candidates; i += team.size()) {
    scratch.keys[i] = score_key(scores[i]);
  }
  team.sync_part();
  int num_groups = lists.num_candidates / lists.topk;
  for (int group = team.rank(); group < num_groups; group += team.size()) {
    scratch.limits[group] = path_limit(lists, scratch, group);
  }
  team.sync_part();
  // From here to the end a thread touches no keys but its own, so no barrier is needed for them.
  for (int i = team.rank(); i < lists.num_candidates; i += team.size()) {
    uint32_t key = min_of(scratch.keys[i], scratch.limits[i / lists.topk]);
    scratch.keys[i] = max_of(key, kMinusInfinityKey);
  }
  Cut cut = find_cut(team, scratch.keys, lists.num_candidates, num_nodes - 1);
  number_chosen(team, lists, scratch, cut);
}

}  // namespace specfast
