#pragma once

#include "core/small_divisor.h"
#include "core/tree_paths.h"

namespace specfast {

// With kMaxTreeDepth and kMaxTreeNodes these keep the scratch below the 99 KB of shared memory that
// every supported card has.
constexpr int kMaxCandidates = 8192;
constexpr int kMaxTreeDepth = 1024;

// What an EAGLE-2 draft proposes for B requests, numbered as SGLang does. A frontier of k = topk
// candidates is expanded level by level, each into k candidates; "group" g is the g-th expansion:
//
//   group 0          the root's children, candidates 0 .. k-1
//   group g >= 1     the children of candidate parent_list[g], candidates g*k .. g*k + k-1
//
// so candidate c belongs to group c / k. A parent stands in an earlier group than its children:
// an entry outside [0, g*k) makes the whole group malformed.
struct CandidateLists {
  SmallDivisor topk;       // k >= 1
  int32_t num_candidates;  // C = k * groups <= kMaxCandidates

  IdView parent_list;          // [B, >= groups], entry 0 unused; null or never read for one group
  int64_t parent_list_stride;  // elements between rows
  const float* scores;         // [B, C] log probability of the path to the candidate; may be null
  int64_t scores_stride;       // elements between rows
};

struct CandidateScratch {
  int32_t* group_parents;  // [C / k] parent_list, -1 where malformed
  int32_t* node_of;        // [C] node of each candidate, or kNoNode
  int32_t* candidate_of;   // [N] candidate of each node >= 1, -1 = none
};

template <class Arena>
SPECFAST_HD CandidateScratch candidate_scratch(Arena& arena, const CandidateLists& lists,
                                               int num_nodes) {
  CandidateScratch scratch;
  scratch.group_parents = arena.template scratch<int32_t>(lists.num_candidates / lists.topk);
  scratch.node_of = arena.template scratch<int32_t>(lists.num_candidates);
  scratch.candidate_of = arena.template scratch<int32_t>(num_nodes);
  return scratch;
}

// From the last thread down, as the first ones have other loads to wait for. Needs a barrier after
// it.
template <class Team>
SPECFAST_HD void load_group_parents(Team& team, const CandidateLists& lists,
                                    const CandidateScratch& scratch, int b) {
  int num_groups = lists.num_candidates / lists.topk;
  for (int group = team.size() - team.rank(); group < num_groups; group += team.size()) {
    int64_t parent = lists.parent_list[b * lists.parent_list_stride + group];
    bool earlier = parent >= 0 && parent < static_cast<int64_t>(group) * lists.topk;
    scratch.group_parents[group] = earlier ? static_cast<int32_t>(parent) : -1;
  }
}

// The parent of node >= 1 among the selected candidates, 0 = root. -1 if it has none: no candidate
// of its own (none given, or an earlier node has it), a malformed group, a parent that is not
// selected or not an earlier node.
SPECFAST_HD int32_t parent_node(const CandidateLists& lists, const CandidateScratch& scratch,
                                int node) {
  int32_t candidate = scratch.candidate_of[node];
  if (candidate < 0 || scratch.node_of[candidate] != node) return -1;
  int32_t group = candidate / lists.topk;
  if (group == 0) return 0;
  int32_t parent = scratch.group_parents[group];
  if (parent < 0) return -1;
  int32_t above = scratch.node_of[parent];
  return above < node ? above : -1;
}

// Places all nodes of the tree under their parents; a barrier after node_of and candidate_of, and
// itself one. True if a node has no parent.
template <class Team>
SPECFAST_HD bool place_candidates(Team& team, const CandidateLists& lists,
                                  const CandidateScratch& scratch, const TreeScratch& tree,
                                  int num_nodes) {
  bool detached = false;
  for (int node = team.rank(); node < num_nodes; node += team.size()) {
    int32_t parent = node == 0 ? -1 : parent_node(lists, scratch, node);
    detached |= node != 0 && parent < 0;
    place_node(tree, node, parent);
  }
  return team.any(detached);
}

}  // namespace specfast
