#pragma once

#include "core/status.h"
#include "core/tree_mask.h"

namespace specfast {

// What every tree op writes: TreeRecord of python/specfast/records.py. All tensors are dense and
// written whole (a mask of mode kFull: as far as the batch reaches); none needs a pre-fill.
struct TreeRecord {
  int32_t batch_size;          // B
  int32_t num_nodes;           // 1 <= N <= kMaxTreeNodes, B * N < 2^31
  const int32_t* prefix_lens;  // [B], read; outside [0, 2^31 - N): taken as 0, kBadParam

  IdSpan draft_tokens;             // [B, N]; an id that its type cannot hold becomes kNoToken
  int32_t* positions;              // [B, N] prefix_len + depth
  int32_t* parents;                // [B, N]
  int32_t* retrieve_index;         // [B, N] b * N + node
  int32_t* retrieve_next_token;    // [B, N] first child, -1 = leaf
  int32_t* retrieve_next_sibling;  // [B, N] -1 = last
  void* mask;
  MaskMode mask_mode;
  int64_t mask_capacity;  // bytes, kFull only; requests that do not fit: no mask, kBadParam
  int32_t* status;        // [B]
};

struct Prefix {
  int32_t length;
  int32_t status;
};

SPECFAST_HD Prefix checked_prefix(const TreeRecord& record, int32_t length) {
  if (length < 0 || length > INT32_MAX - record.num_nodes) return {0, kBadParam};
  return {length, kStatusOk};
}

// Where the mask of request b begins: N * (prefix_lens before b, summed) + N * N * b.
template <class Team>
SPECFAST_HD int64_t full_mask_begin(Team& team, const TreeRecord& record, int b) {
  int64_t before = 0;
  SPECFAST_NO_UNROLL
  for (int i = team.rank(); i < b; i += team.size()) {
    before += checked_prefix(record, record.prefix_lens[i]).length;
  }
  int64_t num_nodes = record.num_nodes;
  return num_nodes * (team.sum(before) + num_nodes * b);
}

// The parts share the rows. False if the mask does not fit.
template <class Team>
SPECFAST_HD bool write_mask(Team& team, const TreeRecord& record, const TreeScratch& tree,
                            int32_t prefix_len, int b) {
  int num_nodes = record.num_nodes;
  int first_row = 0;
  int last_row = num_nodes;
  if (team.parts() > 1) {
    first_row = num_nodes * team.part() / team.parts();
    last_row = num_nodes * (team.part() + 1) / team.parts();
  }
  if (record.mask_mode == MaskMode::kBits) {
    uint32_t* mask = static_cast<uint32_t*>(record.mask) +
                     static_cast<int64_t>(b * num_nodes) * ceil_div(num_nodes, 32);
    write_mask_bits(team, tree, num_nodes, first_row, last_row, mask);
    return true;
  }
  uint8_t* mask = static_cast<uint8_t*>(record.mask);
  if (record.mask_mode == MaskMode::kQlen) {
    mask += static_cast<int64_t>(b) * num_nodes * num_nodes;
    write_mask_bytes(team, tree, num_nodes, 0, first_row, last_row, mask);
    return true;
  }
  int64_t begin = full_mask_begin(team, record, b);
  int64_t bytes = num_nodes * (static_cast<int64_t>(prefix_len) + num_nodes);
  if (begin + bytes > record.mask_capacity) return false;
  write_mask_bytes(team, tree, num_nodes, prefix_len, first_row, last_row, mask + begin);
  return true;
}

// Apart from the rest of the record, as tokens wait for no tree. Part 0 writes them.
template <class Team>
SPECFAST_HD void write_token(Team& team, const TreeRecord& record, int b, int node, int64_t token) {
  if (team.part() != 0) return;
  bool fits = record.draft_tokens.is_int64 || token == static_cast<int32_t>(token);
  record.draft_tokens.store(b * record.num_nodes + node, fits ? token : kNoToken);
}

// Last step of every tree op: all nodes are placed in `tree` and a barrier has passed. Each part
// holds the whole tree; part 0 writes what is not the mask. prefix_len is prefix_lens[b], read at
// the start of the op so that nothing here waits for it.
template <class Team>
SPECFAST_HD void write_tree(Team& team, const TreeRecord& record, const TreeScratch& tree,
                            int32_t prefix_len, int32_t status, int b) {
  int num_nodes = record.num_nodes;
  SPECFAST_NO_UNROLL
  for (int node = team.rank(); node < num_nodes; node += team.size()) link_node(team, tree, node);
  team.sync_part();

  Prefix prefix = checked_prefix(record, prefix_len);
  status |= prefix.status;
  if (!write_mask(team, record, tree, prefix.length, b)) status |= kBadParam;
  if (team.part() != 0) return;
  if (team.rank() == 0) record.status[b] = status;
  // From the last thread down: the first ones are busy with the mask, which is little in bits.
  SPECFAST_NO_UNROLL
  for (int node = team.size() - 1 - team.rank(); node < num_nodes; node += team.size()) {
    int at = b * num_nodes + node;
    int32_t first_child = tree.nodes[node].first_child;
    record.parents[at] = tree.nodes[node].parent;
    record.retrieve_index[at] = at;
    record.retrieve_next_token[at] = first_child == kNoNode ? -1 : first_child;
    record.retrieve_next_sibling[at] = next_sibling(tree, node);
    record.positions[at] = prefix.length + depth_of(tree, node);
  }
}

}  // namespace specfast
