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
  SelectScratch select;
  TreeScratch tree;
};

template <class Arena>
SPECFAST_HD SelectAndBuildTreeScratch
select_and_build_tree_scratch(Arena& arena, const SelectAndBuildTreeParams& p) {
  return {select_scratch(arena, p.lists, p.record.num_nodes),
          tree_scratch(arena, p.record.num_nodes)};
}

template <class Team>
SPECFAST_HD void select_and_build_tree_request(Team& team, const SelectAndBuildTreeParams& p,
                                               const SelectAndBuildTreeScratch& scratch, int b) {
  const CandidateScratch& candidates = scratch.select.candidates;
  int32_t prefix_len = p.record.prefix_lens[b];
  int num_nodes = p.record.num_nodes;
  select_candidates(team, p.lists, scratch.select, num_nodes, b);
  team.sync_part();
  bool detached = place_candidates(team, p.lists, candidates, scratch.tree, num_nodes);
  int32_t status = detached ? kBadTree : kStatusOk;
  write_tree(team, p.record, scratch.tree, prefix_len, status, b, [&](int node) {
    return node == 0 ? p.anchors[b] : p.tokens[b * p.tokens_stride + candidates.candidate_of[node]];
  });
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
