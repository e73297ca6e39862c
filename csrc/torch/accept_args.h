#pragma once

#include <string>

#include "core/accept_params.h"
#include "torch/tensor_args.h"

namespace specfast {

// The tensors that every accept op takes besides rows and links.
struct AcceptInputs {
  const Tensor& draft_tokens;
  const Tensor& prefix_lens;
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

// The trim statistic of a chain.
inline void check_trim(const ArgChecks& args, const AcceptInputs& in, bool return_trim) {
  args.require(!(return_trim && in.qo_indptr.has_value()),
               "expected return_trim without qo_indptr (rows past the cut do not exist in a ragged "
               "batch), got both");
}

// The batch: fixes B and N, and R where the rows are strided.
inline void check_batch(ArgChecks& args, const AcceptInputs& in, AcceptParams& p) {
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
  p.accumulate_status = in.accumulate_status;
}

// Rows of logits: fixes R and V.
inline TargetRows checked_logits(ArgChecks& args, const Tensor& tensor, const char* name) {
  auto logits = args(tensor, name).dtype(kFloats).shape({"R", "V"}).rows();
  TargetRows rows{};
  rows.logits = logits.data<void>();
  rows.logits_stride = logits.row_stride();
  rows.logits_type = float_type(tensor);
  args.require_range("the number of rows R", args["R"], 0, INT32_MAX);
  return rows;
}

// The vocabulary of rows of logits: V, or less.
inline int32_t checked_vocab_size(ArgChecks& args, std::optional<int64_t> vocab_size,
                                  const char* columns, int64_t most) {
  args.require_range(columns, args["V"], 1, most);
  int64_t size = vocab_size.value_or(args["V"]);
  args.require_range("vocab_size", size, 1, args["V"]);
  return static_cast<int32_t>(size);
}

inline FinishParams checked_finish(ArgChecks& args, const AcceptInputs& in) {
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

inline void check_record(ArgChecks& args, const AcceptOutputs& out, bool return_trim,
                         AcceptParams& p) {
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

// What comes after the rows: the tail's rules and the record. R is known.
inline void check_tail(ArgChecks& args, const AcceptInputs& in, const AcceptOutputs& out,
                       bool return_trim, AcceptParams& p) {
  p.num_rows = args["R"];
  p.finish = checked_finish(args, in);
  p.out_cache_loc =
      args(in.out_cache_loc, "out_cache_loc").dtype(kIds).shape({"R"}).contiguous().ids();
  args.require(in.out_cache_loc.has_value() == out.slots.has_value(),
               std::string("expected out.slots exactly when out_cache_loc is given, got ") +
                   (out.slots.has_value() ? "out.slots" : "out_cache_loc") + " alone");
  check_record(args, out, return_trim, p);
}

// A chain's path may take all its rows.
inline void check_chain_width(const ArgChecks& args) {
  args.require(args["S"] == args["N"],
               "expected out.per_step of path width S = N = " + std::to_string(args["N"]) +
                   ", got S = " + std::to_string(args["S"]));
}

constexpr char kAcceptSchema[] =
    "int? vocab_size, Tensor? qo_indptr, Tensor? verify_lens, Tensor? eos_token_ids, "
    "Tensor? stop_token_ids, Tensor? max_tokens_left, Tensor? min_tokens_left, Tensor? ignore_eos, "
    "Tensor? out_cache_loc, bool accumulate_status";
constexpr char kRecordSchema[] =
    "Tensor(a!) per_request, Tensor(b!) per_step, Tensor(c!) predict, Tensor(d!)? slots";

}  // namespace specfast
