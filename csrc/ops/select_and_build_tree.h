#pragma once

#include "core/select_candidates.h"
#include "core/team.h"
#include "core/tree_record.h"

struct CUstream_st;

namespace specfast {

// select_draft_tokens and build_tree in one launch; nothing between them leaves the scratch.
struct SelectAndBuildTreeParams {
  CandidateLists lists;   // N - 1 <= num_candidates
  IdView anchors;         // [B]
  IdView tokens;          // [B, C] token of each candidate
  int64_t tokens_stride;  // elements between rows
  TreeRecord record;      // status: kBadTree if a malformed path had to be selected
};

struct SelectAndBuildTreeScratch {
  TreeScratch tree;
  SelectScratch select;
};

template <class Arena>
SPECFAST_HD SelectAndBuildTreeScratch
select_and_build_tree_scratch(Arena& arena, const SelectAndBuildTreeParams& p) {
  return {tree_scratch(arena, p.record.num_nodes), select_scratch(arena, p.lists)};
}

template <class Team>
SPECFAST_HD void select_and_build_tree_request(Team& team, const SelectAndBuildTreeParams& p,
                                               const SelectAndBuildTreeScratch& scratch, int b) {
  const CandidateScratch& candidates = scratch.select.candidates;
  int32_t prefix_len = p.record.prefix_lens[b];
  // The token of a thread's first candidate, mostly its only one, comes along with the score.
  int64_t tokens = b * p.tokens_stride;
  int first = min_of(team.rank(), p.lists.num_candidates - 1);
  IdLoad anchor = p.anchors.fetch(b);
  IdLoad first_token = p.tokens.fetch(tokens + first);
  select_candidates(team, p.lists, scratch.select, p.record.num_nodes, b);
  team.sync_part();
  int detached = 0;
  SPECFAST_NO_UNROLL
  for (int i = team.rank(); i < p.lists.num_candidates; i += team.size()) {
    int32_t node = candidates.node_of[i];
    if (node == kNoNode) continue;
    int32_t parent = parent_node(p.lists, candidates, i, node);
    detached |= parent < 0;
    place_node(scratch.tree, node, parent);
  }
  // The root is left to the last thread, which has the fewest candidates.
  bool is_last = team.rank() == team.size() - 1;
  if (is_last) place_node(scratch.tree, 0, -1);
  int32_t status = team.any(detached != 0) ? kBadTree : kStatusOk;
  write_tree(team, p.record, scratch.tree, prefix_len, status, b);
  // Last, where most threads have nothing else to do.
  if (is_last) write_token(team, p.record, b, 0, p.anchors.value(anchor));
  SPECFAST_NO_UNROLL
  for (int i = team.rank(); i < p.lists.num_candidates; i += team.size()) {
    int32_t node = candidates.node_of[i];
    if (node == kNoNode) continue;
    IdLoad token = first_token;
    if (i != first) token = p.tokens.fetch(tokens + i);
    write_token(team, p.record, b, node, p.tokens.value(token));
  }
}

inline void select_and_build_tree_cpu(const SelectAndBuildTreeParams& p) {
  SerialTeam team;
  SelectAndBuildTreeScratch scratch = select_and_build_tree_scratch(team, p);
  for (int b = 0; b < p.record.batch_size; ++b) {
    select_and_build_tree_request(team, p, scratch, b);
  }
}

void select_and_build_tree_cuda(const SelectAndBuildTreeParams& p, CUstream_st* stream);

}  // namespace specfast
