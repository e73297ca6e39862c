#pragma once

#include "core/accept_walk.h"

namespace specfast {

// A node as the walk reads it, in one load.
struct alignas(16) TreeNode {
  int32_t token;
  int32_t first_child;
  int32_t next_sibling;
};

// Links of a tree, and the row of each node. Children and siblings ascend, which bounds every walk,
// and so do the rows of a path; what does not is malformed and ends the search.
struct TreeLinks {
  static constexpr bool kIsChain = false;
  const int32_t* retrieve_next_token;    // [B, N] first child, -1 = leaf
  const int32_t* retrieve_next_sibling;  // [B, N] -1 = last
  const int32_t* retrieve_index;         // [B, N] verify row of the node, or null: base + node

  TreeNode* nodes = nullptr;  // scratch [N]
  int64_t first = 0;          // of this request in the arrays above

  template <class Arena>
  SPECFAST_HD void place(Arena& arena, const AcceptParams& p) {
    nodes = arena.template scratch<TreeNode>(p.num_nodes);
  }
  template <class Team>
  SPECFAST_HD void load(Team& team, const AcceptParams& p, int b) {
    first = static_cast<int64_t>(b) * p.num_nodes;
    SPECFAST_NO_UNROLL
    for (int i = team.rank(); i < p.num_nodes; i += team.size()) {
      nodes[i] = {draft_token(p, b, i), retrieve_next_token[first + i],
                  retrieve_next_sibling[first + i]};
    }
  }

  SPECFAST_HD RowStep row(int32_t node, const Window& window) const {
    if (retrieve_index == nullptr) return {node, kStatusOk};
    int64_t row = retrieve_index[first + node] - window.base;
    if (row >= 0 && row < window.verified) return {static_cast<int32_t>(row), kStatusOk};
    return {node == 0 ? 0 : -1, kBadTree};
  }

  SPECFAST_HD Step child(int32_t node, int32_t token, const Window& window) const {
    int32_t status = kStatusOk;
    int32_t previous = node;
    int32_t next = nodes[node].first_child;
    while (next != -1) {
      if (next <= previous || next >= window.num_nodes) return {-1, status | kBadTree};
      if (next >= window.verified) break;
      TreeNode candidate = nodes[next];
      if (candidate.token == token) return {next, status};
      if (candidate.token == kNoToken) status |= kBadToken;
      previous = next;
      next = candidate.next_sibling;
    }
    return {-1, status};
  }
};

}  // namespace specfast
