#pragma once

#include "core/row_masses.h"
#include "core/tree_links.h"

namespace specfast {

// Links of the drafts under a sampled rule; a chain has none: node i + 1 follows node i.
struct DraftLinks {
  const int32_t* retrieve_next_token;    // [B, N] first child, -1 = leaf; or null: a chain
  const int32_t* retrieve_next_sibling;  // [B, N] -1 = last
  const int32_t* retrieve_index;         // [B, N] verify row of the node, or null: base + node
};

// The drafts that may follow one node, in sibling order.
struct DraftChildren {
  int32_t* tokens = nullptr;   // scratch [N], kNoToken for bad ids
  int32_t* nodes = nullptr;    // scratch [N]
  float* values = nullptr;     // scratch [N], logit of the token
  uint64_t* masses = nullptr;  // scratch [N], for the rule
  int32_t count = 0;
  bool has_token = false;          // one that is no bad id
  int32_t end_status = kStatusOk;  // met after the last of them

  template <class Arena>
  SPECFAST_HD void place(Arena& arena, int32_t num_nodes) {
    tokens = arena.template scratch<int32_t>(num_nodes);
    nodes = arena.template scratch<int32_t>(num_nodes);
    values = arena.template scratch<float>(num_nodes);
    masses = arena.template scratch<uint64_t>(num_nodes);
  }

  SPECFAST_HD Exclusions excluded() const { return {tokens, masses, count}; }
};

// The links of one request, in scratch. kChain: known to be a chain.
template <bool kChain>
struct RequestLinks {
  TreeLinks tree;
  ChainLinks chain;

  SPECFAST_HD explicit RequestLinks(const DraftLinks& links)
      : tree{links.retrieve_next_token, links.retrieve_next_sibling, links.retrieve_index},
        chain{} {}

  SPECFAST_HD bool is_chain() const { return kChain || tree.retrieve_next_token == nullptr; }

  template <class Arena>
  SPECFAST_HD void place(Arena& arena, const AcceptParams& p) {
    if (is_chain()) {
      chain.place(arena, p);
    } else {
      tree.place(arena, p);
    }
  }
  template <class Team>
  SPECFAST_HD void load(Team& team, const AcceptParams& p, int b) {
    if (is_chain()) {
      chain.load(team, p, b);
    } else {
      tree.load(team, p, b);
    }
  }
  SPECFAST_HD RowStep row(int32_t node, const Window& window) const {
    return is_chain() ? chain.row(node, window) : tree.row(node, window);
  }

  // Lists the children of a node among the nodes below `limit`; thread i of the part writes every
  // one whose number is i modulo its size. A barrier follows before others look at them.
  template <class Team>
  SPECFAST_HD void list_children(Team& team, int32_t node, int32_t limit, int32_t num_nodes,
                                 DraftChildren& children) const {
    children.count = 0;
    children.has_token = false;
    children.end_status = kStatusOk;
    int32_t writer = 0;  // count % team.size()
    int32_t previous = node;
    int32_t next = is_chain() ? node + 1 : tree.nodes[node].first_child;
    while (next != -1 && next < limit) {
      if (next <= previous) {
        children.end_status = kBadTree;
        return;
      }
      int32_t token = is_chain() ? chain.tokens[next] : tree.nodes[next].token;
      children.has_token |= token != kNoToken;
      if (writer == team.rank()) {
        children.tokens[children.count] = token;
        children.nodes[children.count] = next;
      }
      ++children.count;
      writer = writer + 1 == team.size() ? 0 : writer + 1;
      if (is_chain()) return;
      previous = next;
      next = tree.nodes[next].next_sibling;
    }
    // A list that leads out of the tree, or backwards, is malformed.
    if (!is_chain() && next != -1 && (next <= previous || next >= num_nodes)) {
      children.end_status = kBadTree;
    }
  }
};

}  // namespace specfast
