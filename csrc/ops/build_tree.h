#pragma once

#include "core/candidate_lists.h"
#include "core/team.h"
#include "core/tree_record.h"

struct CUstream_st;

namespace specfast {

// The verify tree of selected candidates. Node 0 is the anchor, node i >= 1 is candidate
// selected_index[i - 1]; its parent is the node of the candidate's parent. A node without a parent
// (see parent_node) is detached and its request flagged kBadTree.
struct BuildTreeParams {
  CandidateLists lists;           // scores are not read
  IdView selected_index;          // [B, N - 1] any order, as long as parents come first
  int64_t selected_index_stride;  // elements between rows
  IdView anchors;                 // [B]
  IdView draft_tokens;            // [B, N - 1] token of each selected candidate
  int64_t draft_tokens_stride;    // elements between rows
  TreeRecord record;
};

struct BuildTreeScratch {
  TreeScratch tree;
  int32_t* candidate_of;  // [N] candidate of each node >= 1, -1 = none
  CandidateScratch candidates;
};

template <class Arena>
SPECFAST_HD BuildTreeScratch build_tree_scratch(Arena& arena, const BuildTreeParams& p) {
  return {tree_scratch(arena, p.record.num_nodes),
          arena.template scratch<int32_t>(p.record.num_nodes), candidate_scratch(arena, p.lists)};
}

template <class Team>
SPECFAST_HD void build_tree_request(Team& team, const BuildTreeParams& p,
                                    const BuildTreeScratch& scratch, int b) {
  const CandidateScratch& candidates = scratch.candidates;
  int32_t prefix_len = p.record.prefix_lens[b];
  int num_nodes = p.record.num_nodes;
  IdLoad anchor = p.anchors.fetch(b);
  SPECFAST_NO_UNROLL
  for (int node = 1 + team.rank(); node < num_nodes; node += team.size()) {
    IdLoad given_load = p.selected_index.fetch(b * p.selected_index_stride + node - 1);
    IdLoad token_load = p.draft_tokens.fetch(b * p.draft_tokens_stride + node - 1);
    int64_t given = p.selected_index.value(given_load);
    bool inside = given >= 0 && given < p.lists.num_candidates;
    scratch.candidate_of[node] = inside ? static_cast<int32_t>(given) : -1;
    write_token(team, p.record, b, node, p.draft_tokens.value(token_load));
  }
  load_group_parents(team, p.lists, candidates, b);
  SPECFAST_NO_UNROLL
  for (int i = team.rank(); i < p.lists.num_candidates; i += team.size()) {
    candidates.node_of[i] = kNoNode;
  }
  team.sync_part();
  // Of several nodes with one candidate the first keeps it.
  SPECFAST_NO_UNROLL
  for (int node = 1 + team.rank(); node < num_nodes; node += team.size()) {
    int32_t candidate = scratch.candidate_of[node];
    if (candidate >= 0) team.atomic_min(&candidates.node_of[candidate], node);
  }
  team.sync_part();
  int detached = 0;
  SPECFAST_NO_UNROLL
  for (int node = 1 + team.rank(); node < num_nodes; node += team.size()) {
    int32_t candidate = scratch.candidate_of[node];
    bool placed = candidate >= 0 && candidates.node_of[candidate] == node;
    int32_t parent = placed ? parent_node(p.lists, candidates, candidate, node) : -1;
    detached |= parent < 0;
    place_node(scratch.tree, node, parent);
  }
  // The root is left to the last thread, which has the fewest nodes.
  if (team.rank() == team.size() - 1) {
    place_node(scratch.tree, 0, -1);
    write_token(team, p.record, b, 0, p.anchors.value(anchor));
  }
  int32_t status = team.any(detached != 0) ? kBadTree : kStatusOk;
  write_tree(team, p.record, scratch.tree, prefix_len, status, b);
}

inline void build_tree_cpu(const BuildTreeParams& p) {
  SerialTeam team;
  BuildTreeScratch scratch = build_tree_scratch(team, p);
  for (int b = 0; b < p.record.batch_size; ++b) build_tree_request(team, p, scratch, b);
}

void build_tree_cuda(const BuildTreeParams& p, CUstream_st* stream);

}  // namespace specfast
