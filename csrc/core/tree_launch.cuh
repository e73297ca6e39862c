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

// Grid of a tree kernel for SplitTeam, blockIdx.x = request. One CTA makes a tree of usual size;
// a mask of many bytes is shared by several, each of which makes the tree for itself.
inline LaunchShape tree_launch_shape(const TreeRecord& record, int64_t items, size_t shared_bytes) {
  constexpr int64_t kMaskBytesPerCta = 32 << 10;
  constexpr int64_t kFullCard = 2 * 132;  // CTAs
  const int64_t num_nodes = record.num_nodes;
  int64_t mask_bytes = num_nodes * num_nodes;
  if (record.mask_mode == MaskMode::kBits) {
    mask_bytes = num_nodes * ceil_div<int64_t>(num_nodes, 32) * 4;
    items = max_of(items, mask_bytes / 4);
  } else {
    if (record.mask_mode == MaskMode::kFull) mask_bytes = record.mask_capacity / record.batch_size;
    items = max_of(items, mask_bytes / kWindowBytes);
  }
  int64_t most = clamp_to<int64_t>(kFullCard / record.batch_size, 1, num_nodes);
  int64_t parts = clamp_to<int64_t>(mask_bytes / kMaskBytesPerCta, 1, most);
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(record.batch_size), static_cast<unsigned>(parts));
  shape.block = dim3(static_cast<unsigned>(tree_threads(items)));
  shape.shared_bytes = shared_bytes;
  return shape;
}

}  // namespace specfast
