#pragma once

#include "core/launch.cuh"
#include "core/tree_record.h"

namespace specfast {

// Threads of a tree kernel: one per item of its widest loop, as far as a CTA goes.
inline int tree_threads(int64_t items) {
  constexpr int kFewest = 128;
  constexpr int kMost = 1024;
  return static_cast<int>(clamp_to<int64_t>(ceil_div<int64_t>(items, 32) * 32, kFewest, kMost));
}

// Of one request; of a "full" mask as much as its capacity allows on average.
inline int64_t mask_bytes(const TreeRecord& record) {
  const int64_t num_nodes = record.num_nodes;
  switch (record.mask_mode) {
    case MaskMode::kBits:
      return num_nodes * ceil_div<int64_t>(num_nodes, 32) * sizeof(uint32_t);
    case MaskMode::kQlen:
      return num_nodes * num_nodes;
    default:
      return record.mask_capacity / record.batch_size;
  }
}

// Launch of a tree kernel that begins early, for SplitTeam, blockIdx.x = request. One CTA makes a
// tree of usual size; a mask of many bytes is shared by several, each of which makes the tree for
// itself.
inline LaunchShape tree_launch_shape(const TreeRecord& record, int64_t items, size_t shared_bytes) {
  constexpr int64_t kMaskBytesPerCta = 32 << 10;
  constexpr int64_t kFullCard = 2 * 132;  // CTAs
  const int64_t most_parts = clamp_to<int64_t>(kFullCard / record.batch_size, 1, record.num_nodes);
  const int64_t parts = clamp_to<int64_t>(mask_bytes(record) / kMaskBytesPerCta, 1, most_parts);
  const int64_t store_bytes =
      record.mask_mode == MaskMode::kBits ? sizeof(uint32_t) : sizeof(MaskWindow);
  // Little of a mask is written by the first threads while the last ones write the nodes.
  const int64_t stores = mask_bytes(record) / store_bytes + record.num_nodes;
  const int threads = tree_threads(max_of(items, stores));
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(record.batch_size), static_cast<unsigned>(parts));
  shape.block = dim3(static_cast<unsigned>(threads));
  shape.shared_bytes = shared_bytes;
  shape.begins_early = true;
  return shape;
}

}  // namespace specfast
