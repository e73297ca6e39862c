#include <vector>

#include "ops/inject_context_kv.h"
#include "torch/kv_layout_args.h"
#include "torch/rows_args.h"

namespace specfast {
namespace {

constexpr int64_t kMaxHeadDim = 1024;

struct RowArgs {
  const Tensor& keys_values;
  const OptionalTensor& accept_index;
  const Tensor& commit_lens;
  const Tensor& prefix_lens;
};

struct RotationArgs {
  const OptionalTensor& k_norm_weight;
  double eps;
  const Tensor& cos;
  const Tensor& sin;
};

struct PageArgs {
  const Tensor& page_table;
  int64_t page_size;
  const OptionalTensor& page_table_rows;
};

void check_rows(ArgChecks& args, const RowArgs& in, InjectContextKvParams& p) {
  p.commit_lens =
      args(in.commit_lens, "commit_lens").dtype(kInt32).shape({"B"}).contiguous().data<int32_t>();
  p.prefix_lens =
      args(in.prefix_lens, "prefix_lens").dtype(kInt32).shape({"B"}).contiguous().data<int32_t>();
  auto path = args(in.accept_index, "accept_index").dtype(kInt32).shape({"B", "S"}).rows();
  p.accept_index = path.data<int32_t>();
  p.accept_index_stride = path.row_stride();
  bool by_path = in.accept_index.has_value();
  auto rows = args(in.keys_values, "keys_values").dtype(kFloats);
  if (by_path) {
    rows.shape({"R", "L", "2", "H", "D"}).rows();
  } else {
    rows.shape({"B", "S", "L", "2", "H", "D"}).rows();
  }
  p.batch_size = int32_size(args, "the number of requests B", "B", 0);
  p.max_rows = int32_size(args, "the number of rows S", "S", 0);
  p.num_layers = int32_size(args, "the number of layers L", "L", 1, kMaxKvBuffers / 2);
  p.num_heads = int32_size(args, "the number of heads H", "H", 1);
  p.head_dim = int32_size(args, "the head size D", "D", 1, kMaxHeadDim);
  args.require_range("the number of heads S * L * H",
                     int64_t{p.max_rows} * p.num_layers * p.num_heads, 0, INT32_MAX / 2);
  int64_t first = by_path ? 0 : 1;
  p.num_source_rows = by_path ? args["R"] : args["S"];
  p.type = float_type(in.keys_values);
  p.keys_values = in.keys_values.const_data_ptr();
  p.request_stride = by_path ? 0 : in.keys_values.stride(0);
  p.row_stride = in.keys_values.stride(first);
  p.layer_stride = in.keys_values.stride(first + 1);
  p.value_stride = in.keys_values.stride(first + 2);
  p.head_stride = in.keys_values.stride(first + 3);
}

void check_rotation(ArgChecks& args, const RotationArgs& in, InjectContextKvParams& p) {
  p.k_norm_weight = args(in.k_norm_weight, "k_norm_weight")
                        .dtype(kFloat32)
                        .shape({"L", "D"})
                        .contiguous()
                        .data<float>();
  args.require(in.eps >= 0.0 && in.eps <= 1.0,
               "expected eps in [0, 1], got " + std::to_string(in.eps));
  p.eps = static_cast<float>(in.eps);
  auto angles = [&](const Tensor& tensor, const char* name) {
    return args(tensor, name)
        .dtype(kFloat32)
        .shape({"positions", "half"})
        .contiguous()
        .data<float>();
  };
  p.cos = angles(in.cos, "cos");
  p.sin = angles(in.sin, "sin");
  int32_t half = int32_size(args, "the columns of cos", "half", 0, p.head_dim / 2);
  p.rotary_dim = 2 * half;
  p.num_positions = int32_size(args, "the positions of cos", "positions", 0);
}

void check_pages(ArgChecks& args, const PageArgs& in, InjectContextKvParams& p) {
  auto table = args(in.page_table, "page_table").dtype(kIds).shape({"T", "pages"}).rows();
  p.page_table = table.ids();
  p.page_table_stride = table.row_stride();
  p.num_table_rows = args["T"];
  p.num_pages = int32_size(args, "the columns of page_table", "pages", 0);
  args.require_range("page_size", in.page_size, 1, INT32_MAX);
  p.page_size = static_cast<int32_t>(in.page_size);
  p.page_table_rows = args(in.page_table_rows, "page_table_rows")
                          .dtype(kInt32)
                          .shape({"B"})
                          .contiguous()
                          .data<int32_t>();
  args.require(p.page_table_rows != nullptr || p.num_table_rows == p.batch_size,
               "expected page_table of B=" + std::to_string(p.batch_size) +
                   " rows without page_table_rows, got " + std::to_string(p.num_table_rows));
}

template <Device device>
void inject_context_kv(const Tensor& keys_values, const std::vector<Tensor>& buffers,
                       const std::vector<int64_t>& geometry, const Tensor& pieces,
                       int64_t buffer_page_size, int64_t num_slots, const Tensor& prefix_lens,
                       const Tensor& commit_lens, const Tensor& page_table, int64_t page_size,
                       const Tensor& cos, const Tensor& sin, const OptionalTensor& k_norm_weight,
                       double eps, const OptionalTensor& accept_index,
                       const OptionalTensor& page_table_rows, const Tensor& status,
                       bool accumulate_status) {
  ArgChecks args("inject_context_kv", keys_values);
  InjectContextKvParams p{};
  check_rows(args, {keys_values, accept_index, commit_lens, prefix_lens}, p);
  check_rotation(args, {k_norm_weight, eps, cos, sin}, p);
  check_pages(args, {page_table, page_size, page_table_rows}, p);
  args.size("P", 2 * args["L"]);
  CheckedLayout layout =
      checked_layout(args, {buffers, geometry, pieces, buffer_page_size, num_slots});
  args.require(static_cast<int64_t>(buffers.size()) == args["P"],
               "expected a layout of keys and values of L=" + std::to_string(args["L"]) +
                   " layers, got " + std::to_string(buffers.size()) + " buffers");
  for (const Tensor& buffer : buffers) args(buffer, "buffers").dtype({keys_values.scalar_type()});
  p.buffers = layout.buffers.data();
  p.pieces = layout.pieces;
  p.buffer_page_size = layout.page_size;
  p.num_slots = layout.num_slots;
  p.has_wide_rows = p.head_dim % kWidePiece == 0 && p.rotary_dim / 2 % kWidePiece == 0 &&
                    has_wide_rows(keys_values);
  p.status = args(status, "status").dtype(kInt32).shape({"B"}).contiguous().mutable_data<int32_t>();
  p.accumulate_status = accumulate_status;
  if constexpr (device == Device::kCpu) {
    inject_context_kv_cpu(p);
  } else {
    torch::stable::accelerator::DeviceGuard guard(keys_values.get_device_index());
    inject_context_kv_cuda(p, current_stream(keys_values));
  }
}

}  // namespace
}  // namespace specfast

STABLE_TORCH_LIBRARY_FRAGMENT(specfast, m) {
  m.def(
      "inject_context_kv(Tensor keys_values, Tensor(a!)[] buffers, int[] geometry, Tensor pieces, "
      "int buffer_page_size, int num_slots, Tensor prefix_lens, Tensor commit_lens, "
      "Tensor page_table, int page_size, Tensor cos, Tensor sin, Tensor? k_norm_weight, float eps, "
      "Tensor? accept_index, Tensor? page_table_rows, Tensor(b!) status, bool accumulate_status) "
      "-> ()");
}

STABLE_TORCH_LIBRARY_IMPL(specfast, CPU, m) {
  using namespace specfast;
  m.impl("inject_context_kv", TORCH_BOX(&inject_context_kv<Device::kCpu>));
}

#ifdef SPECFAST_HAS_CUDA
STABLE_TORCH_LIBRARY_IMPL(specfast, CUDA, m) {
  using namespace specfast;
  m.impl("inject_context_kv", TORCH_BOX(&inject_context_kv<Device::kCuda>));
}
#endif
