#pragma once

#include "core/types.h"

namespace specfast {

constexpr int kMaxTreeNodes = 1024;

// "None" where the smallest node wins: above every node.
constexpr int32_t kNoNode = INT32_MAX;

// The tree of one request while it is built. A parent is an earlier node, so paths to the root
// decrease. A detached node has no parent: nothing leads to it, but it is laid out as if it hung
// under the root.
struct TreeScratch {
  int32_t* parents;      // [N] -1 for the root and for detached nodes
  int32_t* first_child;  // [N] kNoNode = none
  int32_t* last_child;   // [N] negated, 0 = none, because a team knows only the atomic minimum

  // Paths in steps of 32 nodes, a "block": any row of the mask, and any depth, is found in at most
  // 32 + N / 32 steps however deep the tree is.
  uint32_t* block_paths;  // [N] the node and its ancestors within its block, bit = node % 32
  int32_t* block_exits;   // [N] nearest ancestor in an earlier block, -1 in the first block
};

template <class Arena>
SPECFAST_HD TreeScratch tree_scratch(Arena& arena, int num_nodes) {
  TreeScratch scratch;
  scratch.parents = arena.template scratch<int32_t>(num_nodes);
  scratch.first_child = arena.template scratch<int32_t>(num_nodes);
  scratch.last_child = arena.template scratch<int32_t>(num_nodes);
  scratch.block_paths = arena.template scratch<uint32_t>(num_nodes);
  scratch.block_exits = arena.template scratch<int32_t>(num_nodes);
  return scratch;
}

// First step of a tree; parent in [0, node), or -1.
SPECFAST_HD void place_node(const TreeScratch& tree, int node, int32_t parent) {
  tree.parents[node] = parent;
  tree.first_child[node] = kNoNode;
  tree.last_child[node] = 0;
}

// Second step, once all nodes are placed.
template <class Team>
SPECFAST_HD void link_node(Team& team, const TreeScratch& tree, int node) {
  int32_t parent = tree.parents[node];
  if (parent >= 0) {
    team.atomic_min(&tree.first_child[parent], node);
    team.atomic_min(&tree.last_child[parent], -node);
  }
  int block = node / 32 * 32;
  uint32_t path = 0;
  int above = node;
  while (above >= block) {
    path |= 1u << (above - block);
    above = above == 0 ? -1 : max_of(tree.parents[above], 0);
  }
  tree.block_paths[node] = path;
  tree.block_exits[node] = above;
}

// What follows is read once all nodes are linked.

SPECFAST_HD int32_t next_sibling(const TreeScratch& tree, int node) {
  int32_t parent = tree.parents[node];
  if (parent < 0 || tree.last_child[parent] == -node) return -1;
  // Siblings mostly stand side by side.
  int next = node + 1;
  while (tree.parents[next] != parent) ++next;
  return next;
}

SPECFAST_HD int depth_of(const TreeScratch& tree, int node) {
  int num_on_path = 0;
  for (int above = node; above >= 0; above = tree.block_exits[above]) {
    num_on_path += popcount(tree.block_paths[above]);
  }
  return num_on_path - 1;
}

// Word `word` of the node's mask row: bit c stands for node 32 * word + c on its path.
SPECFAST_HD uint32_t path_word(const TreeScratch& tree, int node, int word) {
  int above = node;
  while (above / 32 > word) above = tree.block_exits[above];
  return above / 32 == word ? tree.block_paths[above] : 0;
}

}  // namespace specfast
