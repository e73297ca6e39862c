#include "ops/verify_attention.h"
#include "torch/tensor_args.h"

namespace specfast {
namespace {

struct CacheArgs {
  const Tensor& keys;
  const Tensor& values;
  const OptionalTensor& key_scale;
  const OptionalTensor& value_scale;
  int64_t page_size;
};

// Slots between the pages of a cache.
int64_t check_cache(ArgChecks& args, const Tensor& tensor, const char* name, int64_t page_size,
                    KvCache& cache) {
  const bool paged = tensor.dim() == 4;
  auto arg = args(tensor, name);
  if (paged) {
    arg.shape({"pages", "page_size", "KV heads", "D"}).rows();
  } else {
    arg.shape({"slots", "KV heads", "D"}).rows();
  }
  const int64_t slot_dim = paged ? 1 : 0;
  cache.data = arg.data<void>();
  cache.slot_stride = tensor.stride(slot_dim);
  cache.head_stride = tensor.stride(slot_dim + 1);
  if (!paged || tensor.size(0) <= 1) return page_size;
  const int64_t page_stride = tensor.stride(0);
  if (page_size == 1) {
    cache.slot_stride = page_stride;
    return 1;
  }
  args.require(cache.slot_stride > 0 && page_stride % cache.slot_stride == 0,
               std::string("expected ") + name +
                   " with pages a multiple of its slots apart, got strides " +
                   std::to_string(page_stride) + " and " + std::to_string(cache.slot_stride));
  return page_stride / cache.slot_stride;
}

void check_caches(ArgChecks& args, const CacheArgs& in, VerifyAttentionParams& p) {
  args.require_range("page_size", in.page_size, 1, INT32_MAX);
  args.require(in.keys.dim() == in.values.dim(),
               "expected value_cache with as many dimensions as key_cache, " +
                   std::to_string(in.keys.dim()) + ", got " + std::to_string(in.values.dim()));
  const bool paged = in.keys.dim() == 4;
  if (paged) args.size("page_size", in.page_size);
  p.page_pitch = check_cache(args, in.keys, "key_cache", in.page_size, p.keys);
  int64_t pitch = check_cache(args, in.values, "value_cache", in.page_size, p.values);
  args.require(p.page_pitch == pitch,
               "expected value_cache with pages " + std::to_string(p.page_pitch) +
                   " slots apart, as key_cache has them, got " + std::to_string(pitch));
  const int64_t pages = paged ? args["pages"] : args["slots"] / in.page_size;
  args.require_range("the number of slots that the pages of key_cache span", pages * pitch, 0,
                     INT32_MAX);
  p.num_pages = static_cast<int32_t>(pages);
  p.page_size = static_cast<int32_t>(in.page_size);
  p.num_kv_heads = static_cast<int32_t>(args["KV heads"]);
}

void check_scale(ArgChecks& args, const OptionalTensor& scale, const char* name, KvCache& cache) {
  auto arg = args(scale, name).dtype(kFloat32).contiguous();
  cache.scale_stride = scale->dim() == 1 && scale->size(0) == 1 ? 0 : 1;
  if (cache.scale_stride != 0) arg.shape({"KV heads"});
  cache.scales = arg.data<float>();
}

// Keys and values are both like query, or both float8_e4m3fn with their scales.
void check_cache_types(ArgChecks& args, const Tensor& query, const CacheArgs& in,
                       VerifyAttentionParams& p) {
  const bool scaled = in.key_scale.has_value() || in.value_scale.has_value();
  const bool is_float8 = in.keys.scalar_type() == ScalarType::Float8_e4m3fn;
  if (!scaled && !is_float8) {
    args(in.keys, "key_cache").dtype({query.scalar_type()});
    args(in.values, "value_cache").dtype({query.scalar_type()});
    return;
  }
  args.require(in.key_scale.has_value() && in.value_scale.has_value(),
               std::string("expected key_scale and value_scale with keys and values of "
                           "float8_e4m3fn, got ") +
                   (!scaled                    ? "neither"
                    : in.key_scale.has_value() ? "key_scale alone"
                                               : "value_scale alone"));
  args(in.keys, "key_cache").dtype(kFloat8);
  args(in.values, "value_cache").dtype(kFloat8);
  check_scale(args, in.key_scale, "key_scale", p.keys);
  check_scale(args, in.value_scale, "value_scale", p.values);
}

// Query, out and their sizes.
void check_rows(ArgChecks& args, const Tensor& query, const Tensor& out, VerifyAttentionParams& p) {
  auto rows = args(query, "query").dtype(kFloats).shape({"R", "H", "D"}).rows();
  args.require_range("the number of rows R of query", args["R"], 0, INT32_MAX);
  args.require_range("the number of heads H of query", args["H"], 1, 1024);
  args.require_range("head_dim D of query", args["D"], 1, 1024);
  p.type = float_type(query);
  p.num_rows = static_cast<int32_t>(args["R"]);
  p.num_heads = static_cast<int32_t>(args["H"]);
  p.head_dim = static_cast<int32_t>(args["D"]);
  p.query = rows.data<void>();
  p.query_row_stride = query.stride(0);
  p.query_head_stride = query.stride(1);
  p.out = args(out, "out")
              .dtype({query.scalar_type()})
              .shape({"R", "H", "D"})
              .own_rows()
              .mutable_data<void>();
  p.out_row_stride = out.stride(0);
  p.out_head_stride = out.stride(1);
}

struct RequestArgs {
  const Tensor& page_table;
  const Tensor& prefix_lens;
  const Tensor& qo_indptr;
  const OptionalTensor& page_table_rows;
  const OptionalTensor& verify_lens;
  std::optional<int64_t> max_rows;
};

void check_requests(ArgChecks& args, const RequestArgs& in, VerifyAttentionParams& p) {
  auto int32 = [&](const auto& tensor, const char* name, const char* size) {
    return args(tensor, name).dtype(kInt32).shape({size}).contiguous().template data<int32_t>();
  };
  p.prefix_lens = int32(in.prefix_lens, "prefix_lens", "B");
  args.require_range("the number of requests B", args["B"], 0, kMaxAttentionRequests);
  p.batch_size = static_cast<int32_t>(args["B"]);
  args.size("B + 1", args["B"] + 1);
  p.qo_indptr = int32(in.qo_indptr, "qo_indptr", "B + 1");
  p.verify_lens = int32(in.verify_lens, "verify_lens", "B");
  p.page_table_rows = int32(in.page_table_rows, "page_table_rows", "B");
  if (!in.page_table_rows.has_value()) args.size("T", args["B"]);
  auto table = args(in.page_table, "page_table").dtype(kIds).shape({"T", "num_pages"}).rows();
  args.require_range("the number of rows T of page_table", args["T"], 0, INT32_MAX);
  args.require_range("the number of pages of page_table", args["num_pages"], 0, INT32_MAX);
  p.page_table = table.ids();
  p.page_table_stride = table.row_stride();
  p.num_table_rows = static_cast<int32_t>(args["T"]);
  p.pages_per_row = static_cast<int32_t>(args["num_pages"]);
  args.require_range("max_rows", in.max_rows.value_or(1), 1, kMaxAttentionRows);
  p.max_rows = static_cast<int32_t>(in.max_rows.value_or(kMaxAttentionRows));
}

void check_visibility(ArgChecks& args, const OptionalTensor& mask, bool block_bidirectional,
                      int64_t sliding_window, double scale, VerifyAttentionParams& p) {
  if (mask.has_value()) {
    args.require(!block_bidirectional,
                 "expected block_bidirectional without window_mask, got both");
    const bool bits = mask->scalar_type() == ScalarType::Int;
    auto arg = args(*mask, "window_mask");
    if (bits) {
      arg.shape({"B", "N", "words"}).contiguous();
      p.mask_bits = arg.data<uint32_t>();
      args.require(args["words"] == ceil_div<int64_t>(args["N"], 32),
                   "expected window_mask of ceil(N / 32) = " +
                       std::to_string(ceil_div<int64_t>(args["N"], 32)) + " words, got " +
                       std::to_string(args["words"]));
    } else {
      arg.dtype({ScalarType::Int, ScalarType::Byte, ScalarType::Bool})
          .shape({"B", "N", "N"})
          .contiguous();
      p.mask_bytes = arg.data<uint8_t>();
    }
    args.require_range("the number of nodes N of window_mask", args["N"], 1, kMaxAttentionRows);
    p.mask_nodes = static_cast<int32_t>(args["N"]);
    p.max_rows = min_of(p.max_rows, p.mask_nodes);
  }
  p.block_bidirectional = block_bidirectional;
  args.require_range("sliding_window", sliding_window, 0, INT32_MAX);
  p.sliding_window = static_cast<int32_t>(sliding_window);
  p.scale = static_cast<float>(scale);
  args.require(p.scale > 0 && p.scale <= 3.0e38f,
               "expected a finite scale above 0, got " + std::to_string(scale));
}

template <Device device>
void verify_attention(const Tensor& query, const Tensor& key_cache, const Tensor& value_cache,
                      const Tensor& page_table, const Tensor& prefix_lens, const Tensor& qo_indptr,
                      const OptionalTensor& page_table_rows, const OptionalTensor& verify_lens,
                      const OptionalTensor& window_mask, const OptionalTensor& key_scale,
                      const OptionalTensor& value_scale, int64_t page_size,
                      std::optional<int64_t> max_rows, double scale, int64_t sliding_window,
                      bool block_bidirectional, const Tensor& out,
                      const OptionalTensor& workspace) {
  ArgChecks args("verify_attention", query);
  VerifyAttentionParams p{};
  check_rows(args, query, out, p);
  const CacheArgs caches{key_cache, value_cache, key_scale, value_scale, page_size};
  check_caches(args, caches, p);
  check_cache_types(args, query, caches, p);
  args.require(p.num_kv_heads > 0 && p.num_heads % p.num_kv_heads == 0,
               "expected query with a multiple of the " + std::to_string(p.num_kv_heads) +
                   " heads of key_cache, got " + std::to_string(p.num_heads));
  check_requests(args, {page_table, prefix_lens, qo_indptr, page_table_rows, verify_lens, max_rows},
                 p);
  check_visibility(args, window_mask, block_bidirectional, sliding_window, scale, p);
  auto scratch = args(workspace, "workspace")
                     .dtype(kInt32)
                     .shape({"workspace words"})
                     .contiguous()
                     .aligned(16);
  p.workspace = scratch.mutable_data<void>();
  if (workspace.has_value()) p.workspace_bytes = 4 * workspace->size(0);
  if constexpr (device == Device::kCpu) {
    verify_attention_cpu(p);
  } else {
    torch::stable::accelerator::DeviceGuard guard(query.get_device_index());
    verify_attention_cuda(p, current_stream(query));
  }
}

}  // namespace
}  // namespace specfast

STABLE_TORCH_LIBRARY_FRAGMENT(specfast, m) {
  m.def(
      "verify_attention(Tensor query, Tensor key_cache, Tensor value_cache, Tensor page_table, "
      "Tensor prefix_lens, Tensor qo_indptr, Tensor? page_table_rows, Tensor? verify_lens, "
      "Tensor? window_mask, Tensor? key_scale, Tensor? value_scale, int page_size, int? max_rows, "
      "float scale, int sliding_window, "
      "bool block_bidirectional, Tensor(a!) out, Tensor(b!)? workspace) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(specfast, CPU, m) {
  using namespace specfast;
  m.impl("verify_attention", TORCH_BOX(&verify_attention<Device::kCpu>));
}

#ifdef SPECFAST_HAS_CUDA
STABLE_TORCH_LIBRARY_IMPL(specfast, CUDA, m) {
  using namespace specfast;
  m.impl("verify_attention", TORCH_BOX(&verify_attention<Device::kCuda>));
}
#endif
