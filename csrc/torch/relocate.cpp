#include <cstdint>
#include <vector>

#include "ops/relocate_kv.h"
#include "torch/kv_layout_args.h"
#include "torch/tensor_args.h"

namespace specfast {
namespace {

struct WindowArgs {
  const Tensor& accept_index;
  const Tensor& commit_lens;
  const OptionalTensor& out_cache_loc;
  const OptionalTensor& qo_indptr;
  std::optional<int64_t> rows_per_request;
};

void check_windows(ArgChecks& args, const LayoutArgs& layout, const WindowArgs& in,
                   std::optional<int64_t> num_rows, RelocateKvParams& p) {
  auto path = args(in.accept_index, "accept_index").dtype(kInt32).shape({"B", "S"}).rows();
  args.require_range("the path width S of accept_index", args["S"], 1, kMaxPathRows);
  args.require_range("the number of requests B", args["B"], 0, INT32_MAX);
  p.accept_index = path.data<int32_t>();
  p.accept_index_stride = path.row_stride();
  p.batch_size = static_cast<int32_t>(args["B"]);
  p.path_width = static_cast<int32_t>(args["S"]);
  p.commit_lens =
      args(in.commit_lens, "commit_lens").dtype(kInt32).shape({"B"}).contiguous().data<int32_t>();

  auto slots = args(in.out_cache_loc, "out_cache_loc").dtype(kIds).shape({"R"}).contiguous();
  args.require(in.out_cache_loc.has_value() || !layout.num_slots.has_value(),
               "expected out_cache_loc, because the layout has buffers by slot, got None");
  if (layout.num_slots.has_value()) p.out_cache_loc = slots.ids();
  if (!in.out_cache_loc.has_value()) args.size("R", num_rows.value_or(0));
  args.require_range("the number of rows R of out_cache_loc", args["R"], 0,
                     num_rows.value_or(INT32_MAX));
  p.num_rows = static_cast<int32_t>(args["R"]);

  args.require(in.qo_indptr.has_value() != in.rows_per_request.has_value(),
               std::string("expected exactly one of rows_per_request and qo_indptr, got ") +
                   (in.qo_indptr.has_value() ? "both" : "neither"));
  args.size("B + 1", args["B"] + 1);
  p.qo_indptr =
      args(in.qo_indptr, "qo_indptr").dtype(kInt32).shape({"B + 1"}).contiguous().data<int32_t>();
  if (in.rows_per_request.has_value()) {
    int64_t most = args["B"] == 0 ? INT32_MAX : args["R"] / args["B"];
    args.require_range("rows_per_request", *in.rows_per_request, 0, most);
    p.rows_per_request = static_cast<int32_t>(*in.rows_per_request);
  }
}

template <Device device>
void relocate_kv(const std::vector<Tensor>& buffers, const std::vector<int64_t>& geometry,
                 const Tensor& pieces, const Tensor& chunks, int64_t page_size,
                 std::optional<int64_t> num_slots, std::optional<int64_t> num_rows,
                 const Tensor& accept_index, const Tensor& commit_lens,
                 const OptionalTensor& out_cache_loc, const OptionalTensor& qo_indptr,
                 std::optional<int64_t> rows_per_request, const Tensor& status,
                 bool accumulate_status) {
  ArgChecks args("relocate_kv", accept_index);
  LayoutArgs layout{buffers, geometry, pieces, page_size, num_slots};
  CheckedLayout checked = checked_layout(args, layout);
  RelocateKvParams p{};
  p.num_buffers = static_cast<int32_t>(checked.buffers.size());
  p.buffers = checked.buffers.data();
  p.pieces = checked.pieces;
  p.page_size = checked.page_size;
  p.num_slots = checked.num_slots;
  p.chunks = args(chunks, "chunks").dtype(kInt32).shape({"C", "2"}).contiguous().data<KvChunk>();
  args.require_range("the number of chunks C", args["C"], 1, kMaxChunks);
  p.num_chunks = static_cast<int32_t>(args["C"]);
  check_windows(args, layout,
                {accept_index, commit_lens, out_cache_loc, qo_indptr, rows_per_request}, num_rows,
                p);
  p.status = args(status, "status").dtype(kInt32).shape({"B"}).contiguous().mutable_data<int32_t>();
  p.accumulate_status = accumulate_status;
  if constexpr (device == Device::kCpu) {
    relocate_kv_cpu(p);
  } else {
    torch::stable::accelerator::DeviceGuard guard(accept_index.get_device_index());
    relocate_kv_cuda(p, current_stream(accept_index));
  }
}

}  // namespace
}  // namespace specfast

STABLE_TORCH_LIBRARY_FRAGMENT(specfast, m) {
  m.def(
      "relocate_kv(Tensor(a!)[] buffers, int[] geometry, Tensor pieces, Tensor chunks, "
      "int page_size, int? num_slots, int? num_rows, Tensor accept_index, Tensor commit_lens, "
      "Tensor? out_cache_loc, Tensor? qo_indptr, int? rows_per_request, Tensor(b!) status, "
      "bool accumulate_status) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(specfast, CPU, m) {
  using namespace specfast;
  m.impl("relocate_kv", TORCH_BOX(&relocate_kv<Device::kCpu>));
}

#ifdef SPECFAST_HAS_CUDA
STABLE_TORCH_LIBRARY_IMPL(specfast, CUDA, m) {
  using namespace specfast;
  m.impl("relocate_kv", TORCH_BOX(&relocate_kv<Device::kCuda>));
}
#endif
