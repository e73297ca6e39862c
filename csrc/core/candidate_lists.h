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
  int32_t* node_of;        // [C] node of each candidate, or kNoNode
  int32_t* group_parents;  // [C / k] parent_list, -1 where malformed
};

template <class Arena>
SPECFAST_HD CandidateScratch candidate_scratch(Arena& arena, const CandidateLists& lists) {
  return {arena.template scratch<int32_t>(lists.num_candidates),
          arena.template scratch<int32_t>(lists.num_candidates / lists.topk)};
}

// From the last thread down, as the first ones have other loads to wait for. Needs a barrier after
// it.
template <class Team>
SPECFAST_HD void load_group_parents(Team& team, const CandidateLists& lists,
                                    const CandidateScratch& scratch, int b) {
  int num_groups = lists.num_candidates / lists.topk;
  SPECFAST_NO_UNROLL
  for (int group = team.size() - team.rank(); group < num_groups; group += team.size()) {
    int64_t parent = lists.parent_list[b * lists.parent_list_stride + group];
    bool earlier = static_cast<uint64_t>(parent) < static_cast<uint32_t>(group * lists.topk);
    scratch.group_parents[group] = earlier ? static_cast<int32_t>(parent) : -1;
  }
}

// The parent of a candidate's node among the selected candidates, 0 = root. -1 if it has none: a
// malformed group, a parent that is not selected or not an earlier node.
SPECFAST_HD int32_t parent_node(const CandidateLists& lists, const CandidateScratch& scratch,
                                int candidate, int node) {
  int group = candidate / lists.topk;
  if (group == 0) return 0;
  int32_t parent = scratch.group_parents[group];
  if (parent < 0) return -1;
  int32_t above = scratch.node_of[parent];
  return above < node ? above : -1;
}

}  // namespace specfast
