#include "ops/accept_chain.h"
#include "ops/accept_tree.h"
#include "torch/tensor_args.h"

namespace specfast {
namespace {

// The tensors that both ops take besides the links of a tree.
struct AcceptInputs {
  const Tensor& draft_tokens;
  const Tensor& prefix_lens;
  const OptionalTensor& target_logits;
  const OptionalTensor& target_predict;
  std::optional<int64_t> vocab_size;  // absent: the width of the logits, or unknown
  const OptionalTensor& qo_indptr;
  const OptionalTensor& verify_lens;
  const OptionalTensor& eos_token_ids;
  const OptionalTensor& stop_token_ids;
  const OptionalTensor& max_tokens_left;
  const OptionalTensor& min_tokens_left;
  const OptionalTensor& ignore_eos;
  const OptionalTensor& out_cache_loc;
  bool accumulate_status;
};

// The record, as AcceptRecord in python/specfast/records.py packs it.
struct AcceptOutputs {
  const Tensor& per_request;  // int32 [8, B], or [9, B] with cap_trim_lens
  const Tensor& per_step;     // int32 [3, B, S]
  const Tensor& predict;      // int32 [R]
  const OptionalTensor& slots;
};

TargetRows checked_rows(ArgChecks& args, const AcceptInputs& in) {
  args.require(in.target_logits.has_value() != in.target_predict.has_value(),
               std::string("expected exactly one of target_logits and target_predict, got ") +
                   (in.target_logits.has_value() ? "both" : "neither"));
  TargetRows rows{};
  auto logits = args(in.target_logits, "target_logits").dtype(kFloats).shape({"R", "V"}).rows();
  rows.logits = logits.data<void>();
  rows.logits_stride = logits.row_stride();
  if (in.target_logits.has_value()) rows.logits_type = float_type(*in.target_logits);
  rows.target_predict =
      args(in.target_predict, "target_predict").dtype(kIds).shape({"R"}).contiguous().ids();
  return rows;
}

int32_t checked_vocab_size(ArgChecks& args, const AcceptInputs& in) {
  constexpr int64_t kMaxVocabSize = int64_t{1} << 30;
  int64_t most = kMaxVocabSize;
  if (in.target_logits.has_value()) {
    most = args["V"];
    args.require_range("the number of columns V of target_logits", most, 1, kMaxVocabSize);
  } else if (!in.vocab_size.has_value()) {
    return INT32_MAX;
  }
  int64_t vocab_size = in.vocab_size.value_or(most);
  args.require_range("vocab_size", vocab_size, 1, most);
  return static_cast<int32_t>(vocab_size);
}

FinishParams checked_finish(ArgChecks& args, const AcceptInputs& in) {
  auto int32 = [&](const OptionalTensor& tensor, const char* name,
                   std::initializer_list<const char*> shape) {
    return args(tensor, name).dtype(kInt32).shape(shape).contiguous().data<int32_t>();
  };
  FinishParams finish{};
  finish.eos_token_ids = int32(in.eos_token_ids, "finish.eos_token_ids", {"E"});
  finish.num_eos = in.eos_token_ids.has_value() ? static_cast<int32_t>(args["E"]) : 0;
  finish.stop_token_ids = int32(in.stop_token_ids, "finish.stop_token_ids", {"B", "K"});
  finish.num_stop = in.stop_token_ids.has_value() ? static_cast<int32_t>(args["K"]) : 0;
  finish.max_tokens_left = int32(in.max_tokens_left, "finish.max_tokens_left", {"B"});
  finish.min_tokens_left = int32(in.min_tokens_left, "finish.min_tokens_left", {"B"});
  finish.ignore_eos = args(in.ignore_eos, "finish.ignore_eos")
                          .dtype(kBytes)
                          .shape({"B"})
                          .contiguous()
                          .data<uint8_t>();
  return finish;
}

void check_record(ArgChecks& args, const AcceptOutputs& out, bool return_trim, AcceptParams& p) {
  int32_t* per_request = args(out.per_request, "out.per_request")
                             .dtype(kInt32)
                             .shape({return_trim ? "9" : "8", "B"})
                             .contiguous()
                             .mutable_data<int32_t>();
  int32_t* per_step = args(out.per_step, "out.per_step")
                          .dtype(kInt32)
                          .shape({"3", "B", "S"})
                          .contiguous()
                          .mutable_data<int32_t>();
  auto request_field = [&](int field) { return per_request + field * args["B"]; };
  auto step_field = [&](int field) { return per_step + field * args["B"] * args["S"]; };
  p.num_correct_drafts = request_field(0);
  p.accept_lens = request_field(1);
  p.commit_lens = request_field(2);
  p.new_seq_lens = request_field(3);
  p.bonus = request_field(4);
  p.next_anchor = request_field(5);
  p.finish_reason = request_field(6);
  p.status = request_field(7);
  p.cap_trim_lens = return_trim ? request_field(8) : nullptr;
  p.accept_index = step_field(0);
  p.out_tokens = step_field(1);
  p.positions = step_field(2);
  p.predict = args(out.predict, "out.predict")
                  .dtype(kInt32)
                  .shape({"R"})
                  .contiguous()
                  .mutable_data<int32_t>();
  p.slots = args(out.slots, "out.slots").dtype(kIds).shape({"B", "S"}).contiguous().mutable_ids();
  p.width = static_cast<int32_t>(args["S"]);
  args.require_range("the path width S of out.per_step", args["S"], 1, args["N"]);
}

void check_call(ArgChecks& args, const AcceptInputs& in, const AcceptOutputs& out, bool return_trim,
                AcceptParams& p, TargetRows& rows) {
  auto drafts = args(in.draft_tokens, "draft_tokens").dtype(kIds).shape({"B", "N"}).rows();
  p.draft_tokens = drafts.ids();
  p.draft_tokens_stride = drafts.row_stride();
  args.require_range("the number of nodes N of draft_tokens", args["N"], 1, kMaxNodes);
  args.require_range("the number of requests B", args["B"], 0, kMaxRequests);
  p.batch_size = static_cast<int32_t>(args["B"]);
  p.num_nodes = static_cast<int32_t>(args["N"]);

  auto int32 = [&](const OptionalTensor& tensor, const char* name, const char* shape) {
    return args(tensor, name).dtype(kInt32).shape({shape}).contiguous().data<int32_t>();
  };
  args.size("B + 1", args["B"] + 1);
  p.qo_indptr = int32(in.qo_indptr, "qo_indptr", "B + 1");
  if (!in.qo_indptr.has_value()) args.size("R", args["B"] * args["N"]);
  p.prefix_lens =
      args(in.prefix_lens, "prefix_lens").dtype(kInt32).shape({"B"}).contiguous().data<int32_t>();
  p.verify_lens = int32(in.verify_lens, "verify_lens", "B");

  rows = checked_rows(args, in);
  p.num_rows = args["R"];
  args.require_range("the number of rows R", p.num_rows, 0, INT32_MAX);
  p.vocab_size = checked_vocab_size(args, in);
  p.finish = checked_finish(args, in);
  p.accumulate_status = in.accumulate_status;
  p.out_cache_loc =
      args(in.out_cache_loc, "out_cache_loc").dtype(kIds).shape({"R"}).contiguous().ids();
  args.require(in.out_cache_loc.has_value() == out.slots.has_value(),
               std::string("expected out.slots exactly when out_cache_loc is given, got ") +
                   (out.slots.has_value() ? "out.slots" : "out_cache_loc") + " alone");
  check_record(args, out, return_trim, p);
}

AcceptTreeParams tree_params(const OptionalTensor& retrieve_next_token,
                             const OptionalTensor& retrieve_next_sibling,
                             const OptionalTensor& retrieve_index, const AcceptInputs& in,
                             const AcceptOutputs& out) {
  ArgChecks args("accept_tree", in.draft_tokens);
  AcceptTreeParams p{};
  check_call(args, in, out, false, p.accept, p.rows);
  auto links = [&](const OptionalTensor& tensor, const char* name) {
    return args(tensor, name).dtype(kInt32).shape({"B", "N"}).contiguous().data<int32_t>();
  };
  p.links.retrieve_next_token = links(retrieve_next_token, "retrieve_next_token");
  p.links.retrieve_next_sibling = links(retrieve_next_sibling, "retrieve_next_sibling");
  p.links.retrieve_index = links(retrieve_index, "retrieve_index");
  return p;
}

AcceptChainParams chain_params(bool return_trim, const AcceptInputs& in, const AcceptOutputs& out) {
  ArgChecks args("accept_chain", in.draft_tokens);
  args.require(!(return_trim && in.qo_indptr.has_value()),
               "expected return_trim without qo_indptr (rows past the cut do not exist in a ragged "
               "batch), got both");
  AcceptChainParams p{};
  check_call(args, in, out, return_trim, p.accept, p.rows);
  args.require(args["S"] == args["N"],
               "expected out.per_step of path width S = N = " + std::to_string(args["N"]) +
                   ", got S = " + std::to_string(args["S"]));
  return p;
}

template <Device device>
void accept_tree(const Tensor& draft_tokens, const Tensor& retrieve_next_token,
                 const Tensor& retrieve_next_sibling, const Tensor& prefix_lens,
                 const OptionalTensor& retrieve_index, const OptionalTensor& target_logits,
                 const OptionalTensor& target_predict, std::optional<int64_t> vocab_size,
                 const OptionalTensor& qo_indptr, const OptionalTensor& verify_lens,
                 const OptionalTensor& eos_token_ids, const OptionalTensor& stop_token_ids,
                 const OptionalTensor& max_tokens_left, const OptionalTensor& min_tokens_left,
                 const OptionalTensor& ignore_eos, const OptionalTensor& out_cache_loc,
                 bool accumulate_status, const Tensor& per_request, const Tensor& per_step,
                 const Tensor& predict, const OptionalTensor& slots) {
  AcceptTreeParams p =
      tree_params(retrieve_next_token, retrieve_next_sibling, retrieve_index,
                  {draft_tokens, prefix_lens, target_logits, target_predict, vocab_size, qo_indptr,
                   verify_lens, eos_token_ids, stop_token_ids, max_tokens_left, min_tokens_left,
                   ignore_eos, out_cache_loc, accumulate_status},
                  {per_request, per_step, predict, slots});
  if constexpr (device == Device::kCpu) {
    accept_tree_cpu(p);
  } else {
    torch::stable::accelerator::DeviceGuard guard(draft_tokens.get_device_index());
    accept_tree_cuda(p, current_stream(draft_tokens));
  }
}

template <Device device>
void accept_chain(const Tensor& draft_tokens, const Tensor& prefix_lens,
                  const OptionalTensor& target_logits, const OptionalTensor& target_predict,
                  std::optional<int64_t> vocab_size, const OptionalTensor& qo_indptr,
                  const OptionalTensor& verify_lens, const OptionalTensor& eos_token_ids,
                  const OptionalTensor& stop_token_ids, const OptionalTensor& max_tokens_left,
                  const OptionalTensor& min_tokens_left, const OptionalTensor& ignore_eos,
                  const OptionalTensor& out_cache_loc, bool accumulate_status, bool return_trim,
                  const Tensor& per_request, const Tensor& per_step, const Tensor& predict,
                  const OptionalTensor& slots) {
  AcceptChainParams p =
      chain_params(return_trim,
                   {draft_tokens, prefix_lens, target_logits, target_predict, vocab_size, qo_indptr,
                    verify_lens, eos_token_ids, stop_token_ids, max_tokens_left, min_tokens_left,
                    ignore_eos, out_cache_loc, accumulate_status},
                   {per_request, per_step, predict, slots});
  if constexpr (device == Device::kCpu) {
    accept_chain_cpu(p);
  } else {
    torch::stable::accelerator::DeviceGuard guard(draft_tokens.get_device_index());
    accept_chain_cuda(p, current_stream(draft_tokens));
  }
}

constexpr char kCommonSchema[] =
    "Tensor? target_logits, Tensor? target_predict, int? vocab_size, Tensor? qo_indptr, "
    "Tensor? verify_lens, Tensor? eos_token_ids, Tensor? stop_token_ids, Tensor? max_tokens_left, "
    "Tensor? min_tokens_left, Tensor? ignore_eos, Tensor? out_cache_loc, bool accumulate_status";
constexpr char kRecordSchema[] =
    "Tensor(a!) per_request, Tensor(b!) per_step, Tensor(c!) predict, Tensor(d!)? slots";

}  // namespace
}  // namespace specfast

STABLE_TORCH_LIBRARY_FRAGMENT(specfast, m) {
  using namespace specfast;
  m.def((std::string("accept_tree(Tensor draft_tokens, Tensor retrieve_next_token, "
                     "Tensor retrieve_next_sibling, Tensor prefix_lens, Tensor? retrieve_index, ") +
         kCommonSchema + ", " + kRecordSchema + ") -> ()")
            .c_str());
  m.def((std::string("accept_chain(Tensor draft_tokens, Tensor prefix_lens, ") + kCommonSchema +
         ", bool return_trim, " + kRecordSchema + ") -> ()")
            .c_str());
}

STABLE_TORCH_LIBRARY_IMPL(specfast, CPU, m) {
  using namespace specfast;
  m.impl("accept_tree", TORCH_BOX(&accept_tree<Device::kCpu>));
  m.impl("accept_chain", TORCH_BOX(&accept_chain<Device::kCpu>));
}

#ifdef SPECFAST_HAS_CUDA
STABLE_TORCH_LIBRARY_IMPL(specfast, CUDA, m) {
  using namespace specfast;
  m.impl("accept_tree", TORCH_BOX(&accept_tree<Device::kCuda>));
  m.impl("accept_chain", TORCH_BOX(&accept_chain<Device::kCuda>));
}
#endif
