#include "ops/expand_frontier.h"
#include "torch/accept_args.h"
#include "torch/sampling_args.h"

namespace specfast {
namespace {

constexpr int64_t kMaxNumbered = int64_t{1} << 30;  // candidates of a tree before a level

// ExpandedFrontier of python/specfast/records.py.
struct FrontierOutputs {
  const Tensor& candidate_tokens;
  const Tensor& candidate_scores;
  const Tensor& parent_list;
  const Tensor& parents;
  const Tensor& tokens;
  const Tensor& scores;
  const Tensor& status;
};

void check_outputs(ArgChecks& args, const FrontierOutputs& out, ExpandFrontierParams& p) {
  args.size("n k", args["n"] * args["k"]);
  auto rows = [&](const Tensor& tensor, const char* name, std::initializer_list<ScalarType> dtype,
                  const char* columns, int64_t* stride) {
    TensorArg arg = args(tensor, name).dtype(dtype).shape({"B", columns}).own_rows();
    *stride = arg.row_stride();
    return arg;
  };
  auto packed = [&](const Tensor& tensor, const char* name, std::initializer_list<ScalarType> dtype,
                    const char* columns) {
    return args(tensor, name).dtype(dtype).shape({"B", columns}).contiguous();
  };
  p.candidate_tokens =
      rows(out.candidate_tokens, "out.candidate_tokens", kInt32, "n k", &p.candidate_tokens_stride)
          .mutable_data<int32_t>();
  p.candidate_scores = rows(out.candidate_scores, "out.candidate_scores", kFloat32, "n k",
                            &p.candidate_scores_stride)
                           .mutable_data<float>();
  p.parent_list = rows(out.parent_list, "out.parent_list", kInt32, "k", &p.parent_list_stride)
                      .mutable_data<int32_t>();
  p.parents = packed(out.parents, "out.parents", kInt32, "k").mutable_data<int32_t>();
  p.tokens = packed(out.tokens, "out.tokens", kInt32, "k").mutable_data<int32_t>();
  p.scores = packed(out.scores, "out.scores", kFloat32, "k").mutable_data<float>();
  p.status = packed(out.status, "out.status", kInt32, "n").mutable_data<int32_t>();
}

template <Device device>
void expand_frontier(const Tensor& logits, const OptionalTensor& scores, int64_t topk,
                     int64_t first_candidate, std::optional<int64_t> vocab_size,
                     const OptionalTensor& d2t, const Tensor& out_candidate_tokens,
                     const Tensor& out_candidate_scores, const Tensor& out_parent_list,
                     const Tensor& out_parents, const Tensor& out_tokens, const Tensor& out_scores,
                     const Tensor& out_status) {
  ArgChecks args("expand_frontier", logits);
  ExpandFrontierParams p{};
  p.logits = args(logits, "logits").dtype(kFloats).shape({"B", "n", "V"}).rows().data<void>();
  p.logits_type = float_type(logits);
  p.logits_request_stride = logits.stride(0);
  p.logits_row_stride = logits.stride(1);
  args.require_range("the number of requests B", args["B"], 0, kMaxRequests);
  args.require_range("topk", topk, 1, BestTokens::kMost);
  args.require_range("the number of nodes n of logits", args["n"], 1, topk);
  args.size("k", topk);
  p.batch_size = static_cast<int32_t>(args["B"]);
  p.num_nodes = static_cast<int32_t>(args["n"]);
  p.topk = static_cast<int32_t>(topk);
  p.vocab_size = checked_vocab_size(args, vocab_size, "the number of columns V of logits",
                                    kMaxSampledVocabSize);
  args.require_range("topk, children of a node out of vocab_size tokens,", topk, 1, p.vocab_size);
  args.require_range("first_candidate", first_candidate, 0, kMaxNumbered);
  p.first_candidate = static_cast<int32_t>(first_candidate);
  p.node_scores =
      args(scores, "scores").dtype(kFloat32).shape({"B", "n"}).contiguous().data<float>();
  p.d2t = args(d2t, "d2t").dtype(kInt64).shape({"V"}).contiguous().data<int64_t>();
  check_outputs(args,
                {out_candidate_tokens, out_candidate_scores, out_parent_list, out_parents,
                 out_tokens, out_scores, out_status},
                p);
  if constexpr (device == Device::kCpu) {
    expand_frontier_cpu(p);
  } else {
    torch::stable::accelerator::DeviceGuard guard(logits.get_device_index());
    expand_frontier_cuda(p, current_stream(logits));
  }
}

}  // namespace
}  // namespace specfast

STABLE_TORCH_LIBRARY_FRAGMENT(specfast, m) {
  m.def(
      "expand_frontier(Tensor logits, Tensor? scores, int topk, int first_candidate, "
      "int? vocab_size, Tensor? d2t, Tensor(a!) out_candidate_tokens, "
      "Tensor(b!) out_candidate_scores, Tensor(c!) out_parent_list, Tensor(d!) out_parents, "
      "Tensor(e!) out_tokens, Tensor(f!) out_scores, Tensor(g!) out_status) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(specfast, CPU, m) {
  using namespace specfast;
  m.impl("expand_frontier", TORCH_BOX(&expand_frontier<Device::kCpu>));
}

#ifdef SPECFAST_HAS_CUDA
STABLE_TORCH_LIBRARY_IMPL(specfast, CUDA, m) {
  using namespace specfast;
  m.impl("expand_frontier", TORCH_BOX(&expand_frontier<Device::kCuda>));
}
#endif
