#include "ops/sample_rows.h"

#include "torch/accept_args.h"
#include "torch/sampling_args.h"

namespace specfast {
namespace {

constexpr int64_t kMaxDraws = 1024;
constexpr int64_t kMaxLevel = (int64_t{1} << 16) - 1;  // what the random counter has room for
constexpr int64_t kPurposeDraft = 0;
constexpr int64_t kPurposeFinal = 2;

template <Device device>
void sample_rows(const Tensor& logits, const Tensor& prefix_lens, std::optional<int64_t> vocab_size,
                 const OptionalTensor& request_of_row, const OptionalTensor& slot_of_row,
                 int64_t level, int64_t purpose, const Tensor& temperature, const Tensor& seeds,
                 const OptionalTensor& top_k, const OptionalTensor& top_p,
                 const OptionalTensor& min_p, const OptionalTensor& repetition_penalty,
                 const OptionalTensor& presence_penalty, const OptionalTensor& frequency_penalty,
                 const OptionalTensor& edit_indptr, const OptionalTensor& edit_ids,
                 const OptionalTensor& edit_counts, const OptionalTensor& edit_biases,
                 const OptionalTensor& token_bitmask, const Tensor& tokens, const Tensor& records,
                 const Tensor& status) {
  ArgChecks args("sample_rows", logits);
  SampleRowsParams p{};
  p.rows = checked_logits(args, logits, "logits");
  p.num_rows = static_cast<int32_t>(args["R"]);
  p.vocab_size = checked_vocab_size(args, vocab_size, "the number of columns V of logits",
                                    kMaxSampledVocabSize);
  p.prefix_lens =
      args(prefix_lens, "prefix_lens").dtype(kInt32).shape({"B"}).contiguous().data<int32_t>();
  args.require_range("the number of requests B", args["B"], 0, kMaxRequests);
  p.batch_size = static_cast<int32_t>(args["B"]);
  p.sampling = checked_sampling(
      args,
      {temperature, seeds, top_k, top_p, min_p, repetition_penalty, presence_penalty,
       frequency_penalty, edit_indptr, edit_ids, edit_counts, edit_biases, token_bitmask},
      p.vocab_size);

  auto per_row = [&](const OptionalTensor& tensor, const char* name) {
    return args(tensor, name).dtype(kInt32).shape({"R"}).contiguous().data<int32_t>();
  };
  p.request_of_row = per_row(request_of_row, "request_of_row");
  args.require(
      request_of_row.has_value() || args["R"] == args["B"],
      "expected request_of_row, or one row per request, got R = " + std::to_string(args["R"]) +
          " rows of B = " + std::to_string(args["B"]) + " requests");
  args.require(args["R"] == 0 || args["B"] > 0,
               "expected prefix_lens of the requests of R = " + std::to_string(args["R"]) +
                   " rows, got those of none");
  p.slot_of_row = per_row(slot_of_row, "slot_of_row");
  args.require_range("level", level, 0, kMaxLevel);
  p.node = static_cast<int32_t>(level);
  args.require(purpose == kPurposeDraft || purpose == kPurposeFinal,
               "expected purpose 0 (draft) or 2 (final), got " + std::to_string(purpose));
  p.purpose = static_cast<int32_t>(purpose);

  p.tokens = args(tokens, "out.tokens")
                 .dtype(kInt32)
                 .shape({"R", "K"})
                 .contiguous()
                 .mutable_data<int32_t>();
  args.require_range("num_draws (columns of out.tokens)", args["K"], 0, kMaxDraws);
  p.num_draws = static_cast<int32_t>(args["K"]);
  p.records = args(records, "out.records.packed")
                  .dtype(kInt32)
                  .shape({"R", "8"})
                  .contiguous()
                  .aligned(kRecordAlignment)
                  .mutable_data<RowRecord>();
  p.status =
      args(status, "out.status").dtype(kInt32).shape({"R"}).contiguous().mutable_data<int32_t>();
  if constexpr (device == Device::kCpu) {
    sample_rows_cpu(p);
  } else {
    torch::stable::accelerator::DeviceGuard guard(logits.get_device_index());
    sample_rows_cuda(p, current_stream(logits));
  }
}

}  // namespace
}  // namespace specfast

STABLE_TORCH_LIBRARY_FRAGMENT(specfast, m) {
  using namespace specfast;
  m.def((std::string("sample_rows(Tensor logits, Tensor prefix_lens, int? vocab_size, "
                     "Tensor? request_of_row, Tensor? slot_of_row, int level, int purpose, ") +
         kSamplingSchema + ", Tensor(a!) tokens, Tensor(b!) records, Tensor(c!) status) -> ()")
            .c_str());
}

STABLE_TORCH_LIBRARY_IMPL(specfast, CPU, m) {
  using namespace specfast;
  m.impl("sample_rows", TORCH_BOX(&sample_rows<Device::kCpu>));
}

#ifdef SPECFAST_HAS_CUDA
STABLE_TORCH_LIBRARY_IMPL(specfast, CUDA, m) {
  using namespace specfast;
  m.impl("sample_rows", TORCH_BOX(&sample_rows<Device::kCuda>));
}
#endif
