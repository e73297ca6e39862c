#pragma once

#include "core/types.h"

namespace specfast {

constexpr int kMaxTreeNodes = 1024;

// "None" where the smallest node wins: above every node.
constexpr int32_t kNoNode = INT32_MAX;

// A node of one request's tree while it is built. A parent is an earlier node, so paths to the root
// decrease. A detached node has no parent: nothing leads to it, but it is laid out as if it hung
// under the root.
struct TreeNode {
  int32_t parent;       // -1 for the root and for detached nodes
  int32_t first_child;  // kNoNode = none
  int32_t last_child;   // negated, 0 = none, because a team knows only the atomic minimum

  // Paths in steps of 32 nodes, a "block": any row of the mask, and any depth, is found in at most
  // 32 + N / 32 steps however deep the tree is.
  uint32_t block_path;  // the node and its ancestors within its block, bit = node % 32
  int32_t block_exit;   // nearest ancestor in an earlier block, -1 in the first block
};

// One array of nodes of five words and not five arrays: one address serves all fields of a node,
// and an odd stride spreads a field of neighbouring nodes over the banks as well.
struct TreeScratch {
  TreeNode* nodes;  // [N]
};

template <class Arena>
SPECFAST_HD TreeScratch tree_scratch(Arena& arena, int num_nodes) {
  TreeScratch scratch;
  scratch.nodes = arena.template scratch<TreeNode>(num_nodes);
  return scratch;
}

SPECFAST_HD int block_of(int node) { return node >> 5; }

// First step of a tree; parent in [0, node), or -1.
SPECFAST_HD void place_node(const TreeScratch& tree, int node, int32_t parent) {
  tree.nodes[node].parent = parent;
  tree.nodes[node].first_child = kNoNode;
  tree.nodes[node].last_child = 0;
}

// Second step, once all nodes are placed.
template <class Team>
SPECFAST_HD void link_node(Team& team, const TreeScratch& tree, int node) {
  int32_t above = tree.nodes[node].parent;
  if (above >= 0) {
    team.atomic_min(&tree.nodes[above].first_child, node);
    team.atomic_min(&tree.nodes[above].last_child, -node);
  }
  int block = block_of(node) * 32;
  uint32_t path = 1u << (node - block);
  if (node > 0) above = max_of(above, 0);
  SPECFAST_NO_UNROLL
  while (above >= block) {
    path |= 1u << (above - block);
    above = above == 0 ? -1 : max_of(tree.nodes[above].parent, 0);
  }
  tree.nodes[node].block_path = path;
  tree.nodes[node].block_exit = above;
}

// What follows is read once all nodes are linked.

SPECFAST_HD int32_t next_sibling(const TreeScratch& tree, int node) {
  // Siblings mostly stand side by side; where they do not, reads that do not wait for each other
  // pass over the nodes between.
  constexpr int kStep = 4;
  int32_t parent = tree.nodes[node].parent;
  if (parent < 0) return -1;
  int last = -tree.nodes[parent].last_child;
  if (last == node) return -1;
  int next = last;
  SPECFAST_NO_UNROLL
  for (int first = node + 1; first < next; first += kStep) {
    for (int i = kStep - 1; i >= 0; --i) {
      if (first + i < last && tree.nodes[first + i].parent == parent) next = first + i;
    }
  }
  return next;
}

SPECFAST_HD int depth_of(const TreeScratch& tree, int node) {
  int num_on_path = 0;
  SPECFAST_NO_UNROLL
  for (int above = node; above >= 0; above = tree.nodes[above].block_exit) {
    num_on_path += popcount(tree.nodes[above].block_path);
  }
  return num_on_path - 1;
}

// Word `word` of the node's mask row: bit c stands for node 32 * word + c on its path.
SPECFAST_HD uint32_t path_word(const TreeScratch& tree, int node, int word) {
  int above = node;
  SPECFAST_NO_UNROLL
  while (block_of(above) > word) above = tree.nodes[above].block_exit;
  return block_of(above) == word ? tree.nodes[above].block_path : 0;
}

}  // namespace specfast
