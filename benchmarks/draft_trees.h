#pragma once

#include <algorithm>
#include <vector>

#include "random.h"

namespace specfast::bench {

// How often a draft is right: about 1.5 accepted drafts per request at depth 6 and 7.
constexpr float kAcceptRate = 0.61f;

// The shape of one request's drafts and the path that the target will take through them.
struct DraftTree {
  std::vector<int> parents;  // -1 for the root; parents come before their children
  std::vector<int> depths;
  std::vector<int> path;  // root, accepted drafts

  int nodes() const { return static_cast<int>(parents.size()); }
  bool on_path(int node) const { return path[min_of<int>(depths[node], last_depth())] == node; }
  int last_depth() const { return static_cast<int>(path.size()) - 1; }

  void add(int parent) {
    parents.push_back(parent);
    depths.push_back(parent < 0 ? 0 : depths[parent] + 1);
  }

  // Writes first child and next sibling of every node, siblings ascending, -1 = none.
  void link(int32_t* next_token, int32_t* next_sibling) const {
    std::fill_n(next_token, nodes(), -1);
    std::fill_n(next_sibling, nodes(), -1);
    for (int node = nodes() - 1; node > 0; --node) {
      int32_t& first_child = next_token[parents[node]];
      next_sibling[node] = first_child;
      first_child = node;
    }
  }

  // A path whose length is geometric, as quantile `u` in [0, 1) says, to any node of that depth.
  void choose_path(Random& random, float u) {
    int deepest = *std::max_element(depths.begin(), depths.end());
    int length = 0;
    for (float tail = kAcceptRate; length < deepest && u < tail; tail *= kAcceptRate) ++length;
    std::vector<int> ends;
    for (int node = 0; node < nodes(); ++node) {
      if (depths[node] == length) ends.push_back(node);
    }
    path.resize(length + 1);
    int node = ends[random.below(static_cast<int>(ends.size()))];
    for (; node >= 0; node = parents[node]) path[depths[node]] = node;
  }
};

inline DraftTree draft_chain(int nodes) {
  DraftTree tree;
  for (int node = 0; node < nodes; ++node) tree.add(node - 1);
  return tree;
}

// One chain to the full depth, then nodes below any earlier one that is not too deep.
inline DraftTree draft_tree(Random& random, int nodes, int depth) {
  DraftTree tree;
  for (int node = 0; node < nodes; ++node) {
    int parent = node - 1;
    if (node > depth) {
      do {
        parent = random.below(node);
      } while (tree.depths[parent] >= depth);
    }
    tree.add(parent);
  }
  return tree;
}

}  // namespace specfast::bench
