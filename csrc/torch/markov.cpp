#include "ops/sample_markov_block.h"
#include "torch/accept_args.h"
#include "torch/sampling_args.h"

namespace specfast {
namespace {

constexpr int64_t kMaxRank = 1024;
constexpr int64_t kMaxSteps = int64_t{1} << 16;  // what the random counter has room for

const std::initializer_list<ScalarType> kWideFloats = {ScalarType::Float, ScalarType::BFloat16};

void check_weights(ArgChecks& args, const Tensor& w1, const Tensor& w2, MarkovBlockParams& p) {
  p.w1 = args(w1, "w1").dtype(kWideFloats).shape({"E", "r"}).contiguous().data<void>();
  p.w2 = args(w2, "w2").dtype(kWideFloats).shape({"V", "r"}).contiguous().data<void>();
  args.require(w1.scalar_type() == w2.scalar_type(),
               "expected w1 and w2 of one dtype, got two of them");
  p.weights_type = float_type(w1);
  args.require(p.weights_type == FloatType::kBFloat16 || p.logits_type == FloatType::kFloat32,
               "expected w1 and w2 of dtype bfloat16 with logits of dtype bfloat16, got float32");
  args.require_range("the rank r of w1", args["r"], 1, kMaxRank);
  args.require_range("the number of rows E of w1", args["E"], 1, INT32_MAX - 1);
  p.rank = static_cast<int32_t>(args["r"]);
  p.num_embeddings = static_cast<int32_t>(args["E"]);
}

void check_head(ArgChecks& args, const std::string& kind, const OptionalTensor& projection,
                const OptionalTensor& hidden_rows, MarkovBlockParams& p) {
  args.require(kind == "vanilla" || kind == "gated" || kind == "rnn",
               "expected kind \"vanilla\", \"gated\" or \"rnn\", got \"" + kind + "\"");
  bool vanilla = kind == "vanilla";
  args.require(projection.has_value() != vanilla && hidden_rows.has_value() != vanilla,
               "expected projection and hidden_rows with kind \"gated\" and \"rnn\" and no other, "
               "got kind \"" +
                   kind + "\" " + (vanilla ? "with" : "without") + " one of them");
  p.head.kind = vanilla           ? MarkovKind::kVanilla
                : kind == "gated" ? MarkovKind::kGated
                                  : MarkovKind::kRnn;
  args.size("outputs", p.head.outputs() * args["r"]);
  args.size("inputs", p.head.inputs() * args["r"]);
  auto rows = args(projection, "projection").dtype(kWideFloats).shape({"outputs", "inputs"}).rows();
  p.head.projection = rows.data<void>();
  p.head.projection_stride = rows.row_stride();
  args.require(vanilla || float_type(*projection) == p.weights_type,
               "expected projection of the dtype of w1, got another");
  p.head.hidden_rows = args(hidden_rows, "hidden_rows")
                           .dtype(kFloat32)
                           .shape({"B", "G", "outputs"})
                           .contiguous()
                           .data<float>();
}

template <Device device>
void sample_markov_block(const Tensor& logits, const Tensor& w1, const Tensor& w2,
                         const Tensor& anchors, const Tensor& prefix_lens,
                         const OptionalTensor& d2t, const Tensor& temperature, const Tensor& seeds,
                         const OptionalTensor& top_k, const OptionalTensor& top_p,
                         const OptionalTensor& min_p, const Tensor& tokens, const Tensor& records,
                         const Tensor& status, const OptionalTensor& workspace, std::string kind,
                         const OptionalTensor& projection, const OptionalTensor& hidden_rows) {
  ArgChecks args("sample_markov_block", logits);
  MarkovBlockParams p{};
  p.logits = args(logits, "logits")
                 .dtype(kWideFloats)
                 .shape({"B", "G", "V"})
                 .own_rows()
                 .mutable_data<void>();
  p.logits_type = float_type(logits);
  p.request_stride = logits.stride(0);
  p.step_stride = logits.stride(1);
  args.require_range("the number of requests B", args["B"], 0, kMaxRequests);
  args.require_range("the number of steps G", args["G"], 1, kMaxSteps);
  p.batch_size = static_cast<int32_t>(args["B"]);
  p.num_steps = static_cast<int32_t>(args["G"]);
  p.vocab_size = checked_vocab_size(args, std::nullopt, "the number of columns V of logits",
                                    kMaxSampledVocabSize);
  check_weights(args, w1, w2, p);
  check_head(args, kind, projection, hidden_rows, p);
  p.anchors = args(anchors, "anchors").dtype(kIds).shape({"B"}).contiguous().ids();
  p.prefix_lens =
      args(prefix_lens, "prefix_lens").dtype(kInt32).shape({"B"}).contiguous().data<int32_t>();
  p.d2t = args(d2t, "d2t").dtype(kInt64).shape({"V"}).contiguous().data<int64_t>();
  OptionalTensor none;
  p.sampling = checked_sampling(
      args,
      {temperature, seeds, top_k, top_p, min_p, none, none, none, none, none, none, none, none},
      p.vocab_size);
  p.tokens = args(tokens, "out.tokens")
                 .dtype(kInt32)
                 .shape({"B", "G"})
                 .contiguous()
                 .mutable_data<int32_t>();
  args.size("B * G", args["B"] * args["G"]);
  p.records = args(records, "out.records.packed")
                  .dtype(kInt32)
                  .shape({"B * G", "8"})
                  .contiguous()
                  .aligned(kRecordAlignment)
                  .mutable_data<RowRecord>();
  p.status =
      args(status, "out.status").dtype(kInt32).shape({"B"}).contiguous().mutable_data<int32_t>();
  args.size("words", kMarkovWorkspaceWords);
  p.workspace = args(workspace, "workspace")
                    .dtype(kInt64)
                    .shape({"words"})
                    .contiguous()
                    .mutable_data<uint64_t>();
  if constexpr (device == Device::kCpu) {
    sample_markov_block_cpu(p);
  } else {
    args.require(p.workspace != nullptr, "expected workspace on CUDA, got None");
    torch::stable::accelerator::DeviceGuard guard(logits.get_device_index());
    sample_markov_block_cuda(p, current_stream(logits));
  }
}

}  // namespace
}  // namespace specfast

STABLE_TORCH_LIBRARY_FRAGMENT(specfast, m) {
  m.def(
      "sample_markov_block(Tensor(a!) logits, Tensor w1, Tensor w2, Tensor anchors, "
      "Tensor prefix_lens, Tensor? d2t, Tensor temperature, Tensor seeds, Tensor? top_k, "
      "Tensor? top_p, Tensor? min_p, Tensor(b!) tokens, Tensor(c!) records, Tensor(d!) status, "
      "Tensor(e!)? workspace, str kind, Tensor? projection, Tensor? hidden_rows) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(specfast, CPU, m) {
  using namespace specfast;
  m.impl("sample_markov_block", TORCH_BOX(&sample_markov_block<Device::kCpu>));
}

#ifdef SPECFAST_HAS_CUDA
STABLE_TORCH_LIBRARY_IMPL(specfast, CUDA, m) {
  using namespace specfast;
  m.impl("sample_markov_block", TORCH_BOX(&sample_markov_block<Device::kCuda>));
}
#endif
