#include <cstdint>
#include <numeric>
#include <vector>

#include "ops/commit_state.h"
#include "torch/tensor_args.h"

namespace specfast {
namespace {

std::string shape_text(const Tensor& tensor) {
  std::string text = "[";
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(tensor.size(i));
  }
  return text + "]";
}

// Dimensions from the third on lie as in a contiguous tensor.
bool has_dense_items(const Tensor& tensor) {
  int64_t expected = 1;
  for (int64_t dim = tensor.dim() - 1; dim >= 2; --dim) {
    if (tensor.size(dim) > 1 && tensor.stride(dim) != expected) return false;
    expected *= tensor.size(dim);
  }
  return true;
}

// Bytes between entries of a dimension, 0 where it has only one.
int64_t stride_bytes(const Tensor& tensor, int64_t dim) {
  int64_t item = static_cast<int64_t>(tensor.element_size());
  return tensor.size(dim) > 1 ? tensor.stride(dim) * item : 0;
}

bool is_like(const Tensor& states, const Tensor& pool) {
  bool like = states.dim() >= 3 && pool.dim() == states.dim() &&
              pool.scalar_type() == states.scalar_type() && pool.size(0) == states.size(0);
  for (int64_t dim = 2; like && dim < states.dim(); ++dim) {
    like = pool.size(dim) == states.size(dim);
  }
  return like;
}

StateBuffer buffer_of(ArgChecks& args, const Tensor& states, const Tensor& pool) {
  args(states, "states");
  args(pool, "pools");
  args.require(is_like(states, pool),
               "expected states [L, R, *item] and pools [L, slots, *item] of one dtype, got " +
                   shape_text(states) + " and " + shape_text(pool));
  args.require(has_dense_items(states) && has_dense_items(pool),
               "expected states and pools with contiguous items, got others");
  StateBuffer buffer{};
  buffer.states = static_cast<const char*>(states.const_data_ptr());
  buffer.pool = static_cast<char*>(pool.mutable_data_ptr());
  buffer.state_layer_stride = stride_bytes(states, 0);
  buffer.state_row_stride = stride_bytes(states, 1);
  buffer.pool_layer_stride = stride_bytes(pool, 0);
  buffer.pool_slot_stride = stride_bytes(pool, 1);
  buffer.item_bytes = static_cast<int64_t>(states.element_size());
  for (int64_t dim = 2; dim < states.dim(); ++dim) buffer.item_bytes *= states.size(dim);
  args.require(buffer.item_bytes > 0 && states.size(0) > 0,
               "expected states of at least one layer and byte, got shape " + shape_text(states));
  args.require(pool.size(1) <= 1 || buffer.pool_slot_stride >= buffer.item_bytes,
               "expected pools whose slots do not overlap, got slots " +
                   std::to_string(buffer.pool_slot_stride) + " bytes apart");
  int64_t word = 16;
  for (int64_t distance : {buffer.state_layer_stride, buffer.state_row_stride,
                           buffer.pool_layer_stride, buffer.pool_slot_stride, buffer.item_bytes,
                           static_cast<int64_t>(reinterpret_cast<uintptr_t>(buffer.states) % 16),
                           static_cast<int64_t>(reinterpret_cast<uintptr_t>(buffer.pool) % 16)}) {
    word = std::gcd(word, distance);
  }
  buffer.word_bytes = static_cast<int32_t>(word);
  buffer.tiles_per_item =
      static_cast<int32_t>(ceil_div<int64_t>(buffer.item_bytes, kStateTileBytes));
  return buffer;
}

template <Device device>
void commit_state(const std::vector<Tensor>& states, const std::vector<Tensor>& pools,
                  const Tensor& accept_index, const Tensor& commit_lens, const Tensor& slots,
                  const Tensor& status, bool accumulate_status) {
  ArgChecks args("commit_state", accept_index);
  args.require(states.size() == pools.size(), "expected as many pools as states, got " +
                                                  std::to_string(pools.size()) + " and " +
                                                  std::to_string(states.size()));
  args.require_range("the number of states", static_cast<int64_t>(states.size()), 1,
                     kMaxStateBuffers);
  CommitStateParams p{};
  auto path = args(accept_index, "accept_index").dtype(kInt32).shape({"B", "S"}).rows();
  args.require_range("the path width S of accept_index", args["S"], 1, INT32_MAX);
  args.require_range("the number of requests B", args["B"], 0, INT32_MAX);
  p.batch_size = static_cast<int32_t>(args["B"]);
  p.path_width = static_cast<int32_t>(args["S"]);
  p.accept_index = path.data<int32_t>();
  p.accept_index_stride = path.row_stride();
  p.commit_lens =
      args(commit_lens, "commit_lens").dtype(kInt32).shape({"B"}).contiguous().data<int32_t>();
  p.slots = args(slots, "state_slots").dtype(kIds).shape({"B"}).contiguous().ids();
  p.status = args(status, "status").dtype(kInt32).shape({"B"}).contiguous().mutable_data<int32_t>();
  p.accumulate_status = accumulate_status;

  std::vector<StateBuffer> buffers;
  for (size_t i = 0; i < states.size(); ++i) {
    StateBuffer buffer = buffer_of(args, states[i], pools[i]);
    args.require(states[i].size(1) == states[0].size(1) && pools[i].size(1) == pools[0].size(1),
                 "expected the same rows R and slots in all states and pools, got " +
                     shape_text(states[i]) + " and " + shape_text(pools[i]));
    buffer.first_tile = p.num_tiles;
    p.num_tiles += states[i].size(0) * buffer.tiles_per_item;
    buffers.push_back(buffer);
  }
  p.num_rows = states[0].size(1);
  p.num_slots = pools[0].size(1);
  p.num_buffers = static_cast<int32_t>(buffers.size());
  p.buffers = buffers.data();
  if constexpr (device == Device::kCpu) {
    commit_state_cpu(p);
  } else {
    torch::stable::accelerator::DeviceGuard guard(accept_index.get_device_index());
    commit_state_cuda(p, current_stream(accept_index));
  }
}

}  // namespace
}  // namespace specfast

STABLE_TORCH_LIBRARY_FRAGMENT(specfast, m) {
  m.def(
      "commit_state(Tensor[] states, Tensor(a!)[] pools, Tensor accept_index, Tensor commit_lens, "
      "Tensor state_slots, Tensor(b!) status, bool accumulate_status) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(specfast, CPU, m) {
  using namespace specfast;
  m.impl("commit_state", TORCH_BOX(&commit_state<Device::kCpu>));
}

#ifdef SPECFAST_HAS_CUDA
STABLE_TORCH_LIBRARY_IMPL(specfast, CUDA, m) {
  using namespace specfast;
  m.impl("commit_state", TORCH_BOX(&commit_state<Device::kCuda>));
}
#endif
