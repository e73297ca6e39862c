#pragma once

#include <vector>

#include "core/kv_pieces.h"
#include "torch/tensor_args.h"

namespace specfast {

// What KvLayout has laid out, see python/specfast/kv_layout.py.
struct LayoutArgs {
  const std::vector<Tensor>& buffers;
  const std::vector<int64_t>& geometry;  // per dimension of each buffer: size, stride in bytes
  const Tensor& pieces;
  int64_t page_size;
  std::optional<int64_t> num_slots;  // absent: no buffer is by slot
};

// A layout as an op's parameters have it.
struct CheckedLayout {
  std::vector<void*> buffers;
  const KvPieces* pieces;  // [P]
  int32_t page_size;
  int64_t num_slots;
};

// `pieces` is true of tensors of one geometry only; torch may hand over others in their place, as a
// copy of a strided tensor is dense.
inline void check_geometry(const ArgChecks& args, const LayoutArgs& layout) {
  std::vector<int64_t> found;
  for (const Tensor& buffer : layout.buffers) {
    int64_t item_bytes = static_cast<int64_t>(buffer.element_size());
    for (int64_t dim = 0; dim < buffer.dim(); ++dim) {
      found.push_back(buffer.size(dim));
      found.push_back(buffer.size(dim) > 1 ? buffer.stride(dim) * item_bytes : 0);
    }
  }
  args.require(found == layout.geometry,
               "expected buffers with the shapes and strides of their KvLayout, got others");
}

inline CheckedLayout checked_layout(ArgChecks& args, const LayoutArgs& layout) {
  CheckedLayout out{};
  args.require_range("the number of buffers", static_cast<int64_t>(layout.buffers.size()), 1,
                     kMaxKvBuffers);
  for (const Tensor& buffer : layout.buffers) {
    args(buffer, "buffers");
    out.buffers.push_back(buffer.mutable_data_ptr());
  }
  check_geometry(args, layout);
  static_assert(sizeof(KvPieces) == 9 * sizeof(int64_t));
  out.pieces =
      args(layout.pieces, "pieces").dtype(kInt64).shape({"P", "9"}).contiguous().data<KvPieces>();
  args.require_range("page_size", layout.page_size, 1, INT32_MAX);
  args.require_range("num_slots", layout.num_slots.value_or(0), 0, INT32_MAX);
  out.page_size = static_cast<int32_t>(layout.page_size);
  out.num_slots = layout.num_slots.value_or(0);
  return out;
}

}  // namespace specfast
