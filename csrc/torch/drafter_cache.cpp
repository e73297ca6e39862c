#include "ops/place_draft_rows.h"
#include "ops/rope_append_kv.h"
#include "torch/rows_args.h"

// Ops between a drafter's layers and its paged cache.

namespace specfast {
namespace {

constexpr int64_t kMaxHeadDim = 1024;

struct CacheArgs {
  const Tensor& keys;
  const Tensor& values;
};

struct RotationArgs {
  const Tensor& cos;
  const Tensor& sin;
  const OptionalTensor& q_norm_weight;
  const OptionalTensor& k_norm_weight;
  double eps;
};

void check_rotation(ArgChecks& args, const RotationArgs& in, RopeAppendKvParams& p) {
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
  auto weight = [&](const OptionalTensor& tensor, const char* name) {
    return args(tensor, name).dtype(kFloat32).shape({"D"}).contiguous().data<float>();
  };
  p.q_norm_weight = weight(in.q_norm_weight, "q_norm_weight");
  p.k_norm_weight = weight(in.k_norm_weight, "k_norm_weight");
  args.require(in.eps >= 0.0 && in.eps <= 1.0,
               "expected eps in [0, 1], got " + std::to_string(in.eps));
  p.eps = static_cast<float>(in.eps);
}

void check_caches(ArgChecks& args, const CacheArgs& in, RopeAppendKvParams& p) {
  auto keys = args(in.keys, "key_cache").shape({"slots", "H", "D"}).own_rows();
  auto values = args(in.values, "value_cache").shape({"slots", "H", "D"}).own_rows();
  p.keys = keys.mutable_data<void>();
  p.values = values.mutable_data<void>();
  p.key_slot_stride = in.keys.stride(0);
  p.key_head_stride = in.keys.stride(1);
  p.value_slot_stride = in.values.stride(0);
  p.value_head_stride = in.values.stride(1);
  p.num_slots = args["slots"];
  p.num_kv_heads = int32_size(args, "the number of KV heads H", "H", 1);
  p.head_dim = int32_size(args, "the head size D", "D", 1, kMaxHeadDim);
}

void check_rows(ArgChecks& args, const Tensor& qkv, const Tensor& positions, const Tensor& slots,
                RopeAppendKvParams& p) {
  auto place = [&](const Tensor& tensor, const char* name) {
    return args(tensor, name).dtype(kIds).shape({"B", "n"}).ids();
  };
  p.positions = place(positions, "positions");
  p.positions_request_stride = positions.stride(0);
  p.positions_stride = positions.stride(1);
  p.slots = place(slots, "slots");
  p.slots_request_stride = slots.stride(0);
  p.slots_stride = slots.stride(1);
  p.rows_per_request = int32_size(args, "the rows of a request n", "n", 1);
  args.size("R", args["B"] * args["n"]);
  auto rows = args(qkv, "qkv").dtype(kFloats).shape({"R", "(Hq + 2 H) D"}).rows();
  p.qkv = rows.data<void>();
  p.qkv_stride = rows.row_stride();
}

template <Device device>
void rope_append_kv(const Tensor& qkv, const Tensor& key_cache, const Tensor& value_cache,
                    const Tensor& positions, const Tensor& slots, const Tensor& cos,
                    const Tensor& sin, const OptionalTensor& q_norm_weight,
                    const OptionalTensor& k_norm_weight, double eps, const Tensor& queries) {
  ArgChecks args("rope_append_kv", qkv);
  RopeAppendKvParams p{};
  check_rows(args, qkv, positions, slots, p);
  p.type = float_type(qkv);
  check_caches(args, {key_cache, value_cache}, p);
  auto out = args(queries, "queries").shape({"R", "Hq", "D"}).contiguous();
  p.queries = out.mutable_data<void>();
  for (const auto& [tensor, name] : {std::pair<const Tensor&, const char*>{key_cache, "key_cache"},
                                     {value_cache, "value_cache"},
                                     {queries, "queries"}}) {
    args(tensor, name).dtype({qkv.scalar_type()});
  }
  p.num_heads = int32_size(args, "the number of heads Hq", "Hq", 1);
  args.require(
      args["(Hq + 2 H) D"] == (args["Hq"] + 2 * args["H"]) * args["D"],
      "expected qkv of (Hq + 2 H) D=" + std::to_string((args["Hq"] + 2 * args["H"]) * args["D"]) +
          " columns, got " + std::to_string(args["(Hq + 2 H) D"]));
  args.require_range("the number of heads R * (Hq + H)", args["R"] * (args["Hq"] + args["H"]), 0,
                     INT32_MAX / 2);
  p.num_rows = static_cast<int32_t>(args["R"]);
  check_rotation(args, {cos, sin, q_norm_weight, k_norm_weight, eps}, p);
  p.has_wide_rows = p.head_dim % kWidePiece == 0 && p.rotary_dim / 2 % kWidePiece == 0 &&
                    has_wide_rows(qkv) && has_wide_rows(key_cache) && has_wide_rows(value_cache) &&
                    has_wide_rows(queries);
  if constexpr (device == Device::kCpu) {
    rope_append_kv_cpu(p);
  } else {
    torch::stable::accelerator::DeviceGuard guard(qkv.get_device_index());
    rope_append_kv_cuda(p, current_stream(qkv));
  }
}

template <Device device>
void place_draft_rows(const Tensor& page_table, const Tensor& page_table_rows,
                      const Tensor& prefix_lens, const Tensor& counts, int64_t page_size,
                      int64_t num_pages, int64_t first_scratch_page, const Tensor& pages,
                      const Tensor& positions, const Tensor& slots, const Tensor& row_counts) {
  ArgChecks args("place_draft_rows", page_table);
  PlaceDraftRowsParams p{};
  auto table = args(page_table, "page_table").dtype(kIds).shape({"T", "C"}).rows();
  p.page_table = table.ids();
  p.page_table_stride = table.row_stride();
  auto each = [&](const Tensor& tensor, const char* name) {
    return args(tensor, name).dtype(kInt32).shape({"B"}).contiguous().data<int32_t>();
  };
  p.page_table_rows = each(page_table_rows, "page_table_rows");
  p.prefix_lens = each(prefix_lens, "prefix_lens");
  p.counts = each(counts, "counts");
  p.pages = args(pages, "pages")
                .dtype(kInt32)
                .shape({"B", "columns"})
                .contiguous()
                .mutable_data<int32_t>();
  auto rows = [&](const Tensor& tensor, const char* name) {
    return args(tensor, name).dtype(kInt32).shape({"n", "B"}).contiguous().mutable_data<int32_t>();
  };
  p.positions = rows(positions, "positions");
  p.slots = rows(slots, "slots");
  p.row_counts = rows(row_counts, "row_counts");
  p.batch_size = int32_size(args, "the number of requests B", "B", 0);
  p.num_rows = int32_size(args, "the number of rows n", "n", 0);
  p.num_table_rows = int32_size(args, "the rows of page_table", "T", 0);
  p.num_columns = int32_size(args, "the columns of page_table", "C", 0);
  args.require_range("the columns of pages", args["columns"], args["C"], INT32_MAX);
  p.scratch_pages = static_cast<int32_t>(args["columns"] - args["C"]);
  args.require_range("page_size", page_size, 1, INT32_MAX);
  args.require_range("num_pages", num_pages, 0, INT32_MAX / page_size);
  args.require_range("first_scratch_page", first_scratch_page, 0,
                     num_pages - args["T"] * p.scratch_pages);
  p.page_size = static_cast<int32_t>(page_size);
  p.num_pages = static_cast<int32_t>(num_pages);
  p.first_scratch_page = static_cast<int32_t>(first_scratch_page);
  if constexpr (device == Device::kCpu) {
    place_draft_rows_cpu(p);
  } else {
    torch::stable::accelerator::DeviceGuard guard(page_table.get_device_index());
    place_draft_rows_cuda(p, current_stream(page_table));
  }
}

}  // namespace
}  // namespace specfast

STABLE_TORCH_LIBRARY_FRAGMENT(specfast, m) {
  m.def(
      "rope_append_kv(Tensor qkv, Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor positions, "
      "Tensor slots, Tensor cos, Tensor sin, Tensor? q_norm_weight, Tensor? k_norm_weight, "
      "float eps, Tensor(c!) queries) -> ()");
  m.def(
      "place_draft_rows(Tensor page_table, Tensor page_table_rows, Tensor prefix_lens, "
      "Tensor counts, int page_size, int num_pages, int first_scratch_page, Tensor(a!) pages, "
      "Tensor(b!) positions, Tensor(c!) slots, Tensor(d!) row_counts) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(specfast, CPU, m) {
  using namespace specfast;
  m.impl("rope_append_kv", TORCH_BOX(&rope_append_kv<Device::kCpu>));
  m.impl("place_draft_rows", TORCH_BOX(&place_draft_rows<Device::kCpu>));
}

#ifdef SPECFAST_HAS_CUDA
STABLE_TORCH_LIBRARY_IMPL(specfast, CUDA, m) {
  using namespace specfast;
  m.impl("rope_append_kv", TORCH_BOX(&rope_append_kv<Device::kCuda>));
  m.impl("place_draft_rows", TORCH_BOX(&place_draft_rows<Device::kCuda>));
}
#endif
