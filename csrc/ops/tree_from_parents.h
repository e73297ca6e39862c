#pragma once

#include "core/team.h"
#include "core/tree_record.h"

struct CUstream_st;

namespace specfast {

// The verify tree of any parent array in which parents come before their children: n-gram trees,
// static and dynamic trees. A node whose parent is not an earlier node is detached and its request
// flagged kBadTree; nodes from verify_lens on are padding: detached, not flagged.
struct TreeFromParentsParams {
  IdView draft_tokens;          // [B, N] column 0 is the anchor
  int64_t draft_tokens_stride;  // elements between rows
  IdView parents;               // [B, N] column 0 is not read
  int64_t parents_stride;       // elements between rows
  const int32_t* verify_lens;   // [B] nodes of each request, 0 = padded slot; clamped into [0, N]
                                // and flagged kBadParam; null: N
  TreeRecord record;
};

template <class Arena>
SPECFAST_HD TreeScratch tree_from_parents_scratch(Arena& arena, const TreeFromParentsParams& p) {
  return tree_scratch(arena, p.record.num_nodes);
}

template <class Team>
SPECFAST_HD void tree_from_parents_request(Team& team, const TreeFromParentsParams& p,
                                           const TreeScratch& tree, int b) {
  int32_t prefix_len = p.record.prefix_lens[b];
  int num_nodes = p.record.num_nodes;
  int32_t verify_len = p.verify_lens == nullptr ? num_nodes : p.verify_lens[b];
  int32_t status = verify_len < 0 || verify_len > num_nodes ? kBadParam : kStatusOk;
  bool detached = false;
  SPECFAST_NO_UNROLL
  for (int node = team.rank(); node < num_nodes; node += team.size()) {
    int64_t token = p.draft_tokens[b * p.draft_tokens_stride + node];
    int64_t parent = -1;
    if (node > 0 && node < verify_len) {
      parent = p.parents[b * p.parents_stride + node];
      bool earlier = parent >= 0 && parent < node;
      detached |= !earlier;
      if (!earlier) parent = -1;
    }
    place_node(tree, node, static_cast<int32_t>(parent));
    write_token(team, p.record, b, node, token);
  }
  if (team.any(detached)) status |= kBadTree;
  write_tree(team, p.record, tree, prefix_len, status, b);
}

inline void tree_from_parents_cpu(const TreeFromParentsParams& p) {
  SerialTeam team;
  TreeScratch tree = tree_from_parents_scratch(team, p);
  for (int b = 0; b < p.record.batch_size; ++b) tree_from_parents_request(team, p, tree, b);
}

void tree_from_parents_cuda(const TreeFromParentsParams& p, CUstream_st* stream);

}  // namespace specfast
