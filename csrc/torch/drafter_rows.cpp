#include "ops/fused_add_rms_norm.h"
#include "ops/gather_eagle_inputs.h"
#include "ops/grouped_dynamic_conv.h"
#include "ops/silu_and_mul.h"
#include "torch/rows_args.h"

// Ops of a drafter's layers that take whole rows.

namespace specfast {
namespace {

// Of one row.
constexpr int64_t kMaxWidth = 1 << 24;

float checked_eps(const ArgChecks& args, double eps) {
  args.require(eps >= 0.0 && eps <= 1.0, "expected eps in [0, 1], got " + std::to_string(eps));
  return static_cast<float>(eps);
}

template <Device device>
void fused_add_rms_norm(const Tensor& x, const OptionalTensor& residual, const Tensor& weight,
                        double eps, const Tensor& out, const OptionalTensor& sum) {
  ArgChecks args("fused_add_rms_norm", x);
  FusedAddRmsNormParams p{};
  p.type = float_type(x);
  auto in = args(x, "x").dtype(kFloats).shape({"R", "W"}).rows();
  p.x = in.data<void>();
  p.x_stride = in.row_stride();
  auto of_type = [&](const auto& tensor, const char* name) {
    return args(tensor, name).dtype({x.scalar_type()});
  };
  auto other = of_type(residual, "residual").shape({"R", "W"}).rows();
  p.residual = other.template data<void>();
  p.residual_stride = other.row_stride();
  p.weight = of_type(weight, "weight").shape({"W"}).contiguous().template data<void>();
  p.eps = checked_eps(args, eps);
  auto result = of_type(out, "out").shape({"R", "W"}).own_rows();
  p.out = result.template mutable_data<void>();
  p.out_stride = result.row_stride();
  auto total = of_type(sum, "sum").shape({"R", "W"}).own_rows();
  p.sum = total.template mutable_data<void>();
  p.sum_stride = total.row_stride();
  args.require(residual.has_value() == sum.has_value(),
               "expected residual and sum, or neither, got one of them");
  p.num_rows = int32_size(args, "the number of rows R", "R", 0);
  p.width = int32_size(args, "the width W", "W", 1, kMaxWidth);
  p.has_wide_rows = p.width % kWidePiece == 0 && has_wide_rows(x) && has_wide_rows(residual) &&
                    has_wide_rows(weight) && has_wide_rows(out) && has_wide_rows(sum);
  if constexpr (device == Device::kCpu) {
    fused_add_rms_norm_cpu(p);
  } else {
    torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
    fused_add_rms_norm_cuda(p, current_stream(x));
  }
}

template <Device device>
void silu_and_mul(const Tensor& x, const Tensor& out) {
  ArgChecks args("silu_and_mul", x);
  SiluAndMulParams p{};
  p.type = float_type(x);
  auto in = args(x, "x").dtype(kFloats).shape({"R", "columns"}).rows();
  p.x = in.data<void>();
  p.x_stride = in.row_stride();
  args.require(args["columns"] % 2 == 0,
               "expected x of an even number of columns, got " + std::to_string(args["columns"]));
  args.size("W", args["columns"] / 2);
  auto result = args(out, "out").dtype({x.scalar_type()}).shape({"R", "W"}).own_rows();
  p.out = result.mutable_data<void>();
  p.out_stride = result.row_stride();
  p.num_rows = int32_size(args, "the number of rows R", "R", 0);
  p.width = int32_size(args, "the width W", "W", 1, kMaxWidth);
  p.has_wide_rows = p.width % kWidePiece == 0 && has_wide_rows(x) && has_wide_rows(out);
  if constexpr (device == Device::kCpu) {
    silu_and_mul_cpu(p);
  } else {
    torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
    silu_and_mul_cuda(p, current_stream(x));
  }
}

void check_nodes(ArgChecks& args, const Tensor& tokens, const OptionalTensor& d2t,
                 const OptionalTensor& parents, GatherEagleInputsParams& p) {
  auto ids = args(tokens, "tokens").dtype(kIds).shape({"B", "n"}).rows();
  p.tokens = ids.ids();
  p.tokens_stride = ids.row_stride();
  p.d2t = args(d2t, "d2t").dtype(kInt64).shape({"Vq"}).contiguous().data<int64_t>();
  p.num_draft_tokens = d2t.has_value() ? args["Vq"] : 0;
  auto rows = args(parents, "parents").dtype(kIds).shape({"B", "n"}).rows();
  p.parents = rows.ids();
  p.parents_stride = rows.row_stride();
}

template <Device device>
void gather_eagle_inputs(const Tensor& tokens, const Tensor& embedding, const Tensor& features,
                         const OptionalTensor& parents, const OptionalTensor& d2t,
                         const OptionalTensor& embedding_norm_weight,
                         const OptionalTensor& features_norm_weight, double eps, const Tensor& out,
                         const OptionalTensor& gathered) {
  ArgChecks args("gather_eagle_inputs", tokens);
  GatherEagleInputsParams p{};
  check_nodes(args, tokens, d2t, parents, p);
  p.type = float_type(features);
  auto rows = args(features, "features").dtype(kFloats);
  if (parents.has_value()) {
    rows.shape({"B", "m", "W"}).rows();
  } else {
    rows.shape({"B", "n", "W"}).rows();
    args.size("m", args["n"]);
  }
  p.features = rows.data<void>();
  p.features_request_stride = features.stride(0);
  p.features_stride = features.stride(1);
  auto of_type = [&](const auto& tensor, const char* name) {
    return args(tensor, name).dtype({features.scalar_type()});
  };
  p.embedding =
      of_type(embedding, "embedding").shape({"V", "W"}).contiguous().template data<void>();
  p.vocab_size = args["V"];
  auto weight = [&](const OptionalTensor& tensor, const char* name) {
    return of_type(tensor, name).shape({"W"}).contiguous().template data<void>();
  };
  p.embedding_norm_weight = weight(embedding_norm_weight, "embedding_norm_weight");
  p.features_norm_weight = weight(features_norm_weight, "features_norm_weight");
  p.eps = checked_eps(args, eps);
  args.size("columns", 2 * args["W"]);
  p.out =
      of_type(out, "out").shape({"B", "n", "columns"}).contiguous().template mutable_data<void>();
  p.gathered = of_type(gathered, "gathered")
                   .shape({"B", "n", "W"})
                   .contiguous()
                   .template mutable_data<void>();
  p.batch_size = int32_size(args, "the number of requests B", "B", 0);
  p.num_nodes = int32_size(args, "the number of nodes n", "n", 1);
  args.require_range("the number of nodes B * n", int64_t{p.batch_size} * p.num_nodes, 0,
                     INT32_MAX);
  p.num_features = int32_size(args, "the number of feature rows m", "m", 0);
  p.width = int32_size(args, "the width W", "W", 1, kMaxWidth);
  p.has_wide_rows = p.width % kWidePiece == 0 && has_wide_rows(features) &&
                    has_wide_rows(embedding) && has_wide_rows(embedding_norm_weight) &&
                    has_wide_rows(features_norm_weight) && has_wide_rows(out) &&
                    has_wide_rows(gathered);
  if constexpr (device == Device::kCpu) {
    gather_eagle_inputs_cpu(p);
  } else {
    torch::stable::accelerator::DeviceGuard guard(tokens.get_device_index());
    gather_eagle_inputs_cuda(p, current_stream(tokens));
  }
}

template <Device device>
void grouped_dynamic_conv(const Tensor& x, const Tensor& base, const Tensor& dynamic,
                          const Tensor& out) {
  ArgChecks args("grouped_dynamic_conv", x);
  GroupedDynamicConvParams p{};
  p.type = float_type(x);
  p.x = args(x, "x").dtype(kFloats).shape({"B", "n", "C"}).rows().data<void>();
  p.x_request_stride = x.stride(0);
  p.x_stride = x.stride(1);
  auto of_type = [&](const Tensor& tensor, const char* name) {
    return args(tensor, name).dtype({x.scalar_type()});
  };
  p.base = of_type(base, "base").shape({"K", "C"}).contiguous().template data<void>();
  p.dynamic =
      of_type(dynamic, "dynamic").shape({"B", "n", "K", "groups"}).rows().template data<void>();
  p.dynamic_request_stride = dynamic.stride(0);
  p.dynamic_stride = dynamic.stride(1);
  p.dynamic_tap_stride = dynamic.stride(2);
  p.out = of_type(out, "out").shape({"B", "n", "C"}).contiguous().template mutable_data<void>();
  p.batch_size = int32_size(args, "the number of blocks B", "B", 0);
  p.num_rows = int32_size(args, "the number of rows n", "n", 0);
  args.require_range("the number of rows B * n", int64_t{p.batch_size} * p.num_rows, 0, INT32_MAX);
  p.width = int32_size(args, "the width C", "C", 1, kMaxWidth);
  p.num_taps = int32_size(args, "the number of taps K", "K", 1);
  int32_t groups = int32_size(args, "the number of groups", "groups", 1);
  args.require(p.width % groups == 0,
               "expected dynamic of a number of groups that divides C=" + std::to_string(p.width) +
                   ", got " + std::to_string(groups));
  p.group_size = p.width / groups;
  p.has_wide_rows = p.width % kWidePiece == 0 && p.group_size % kWidePiece == 0 &&
                    has_wide_rows(x) && has_wide_rows(base) && has_wide_rows(out);
  if constexpr (device == Device::kCpu) {
    grouped_dynamic_conv_cpu(p);
  } else {
    torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
    grouped_dynamic_conv_cuda(p, current_stream(x));
  }
}

}  // namespace
}  // namespace specfast

STABLE_TORCH_LIBRARY_FRAGMENT(specfast, m) {
  m.def(
      "fused_add_rms_norm(Tensor x, Tensor? residual, Tensor weight, float eps, Tensor(a!) out, "
      "Tensor(b!)? sum) -> ()");
  m.def("silu_and_mul(Tensor x, Tensor(a!) out) -> ()");
  m.def(
      "gather_eagle_inputs(Tensor tokens, Tensor embedding, Tensor features, Tensor? parents, "
      "Tensor? d2t, Tensor? embedding_norm_weight, Tensor? features_norm_weight, float eps, "
      "Tensor(a!) out, Tensor(b!)? gathered) -> ()");
  m.def("grouped_dynamic_conv(Tensor x, Tensor base, Tensor dynamic, Tensor(a!) out) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(specfast, CPU, m) {
  using namespace specfast;
  m.impl("fused_add_rms_norm", TORCH_BOX(&fused_add_rms_norm<Device::kCpu>));
  m.impl("silu_and_mul", TORCH_BOX(&silu_and_mul<Device::kCpu>));
  m.impl("gather_eagle_inputs", TORCH_BOX(&gather_eagle_inputs<Device::kCpu>));
  m.impl("grouped_dynamic_conv", TORCH_BOX(&grouped_dynamic_conv<Device::kCpu>));
}

#ifdef SPECFAST_HAS_CUDA
STABLE_TORCH_LIBRARY_IMPL(specfast, CUDA, m) {
  using namespace specfast;
  m.impl("fused_add_rms_norm", TORCH_BOX(&fused_add_rms_norm<Device::kCuda>));
  m.impl("silu_and_mul", TORCH_BOX(&silu_and_mul<Device::kCuda>));
  m.impl("gather_eagle_inputs", TORCH_BOX(&gather_eagle_inputs<Device::kCuda>));
  m.impl("grouped_dynamic_conv", TORCH_BOX(&grouped_dynamic_conv<Device::kCuda>));
}
#endif
