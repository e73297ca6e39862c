#pragma once

#include <string>

#include "core/draft_links.h"
#include "core/sampling_params.h"
#include "torch/tensor_args.h"

namespace specfast {

constexpr int64_t kMaxSampledVocabSize = int64_t{1} << 20;  // sums of masses stay below 2^64
constexpr int64_t kRecordAlignment = 16;                    // of RowRecords, which go in two loads

// SamplingRules in python/specfast/sampling.py, without the coins.
struct SamplingInputs {
  const Tensor& temperature;
  const Tensor& seeds;
  const OptionalTensor& top_k;
  const OptionalTensor& top_p;
  const OptionalTensor& min_p;
  const OptionalTensor& repetition_penalty;
  const OptionalTensor& presence_penalty;
  const OptionalTensor& frequency_penalty;
  const OptionalTensor& edit_indptr;
  const OptionalTensor& edit_ids;
  const OptionalTensor& edit_counts;
  const OptionalTensor& edit_biases;
  const OptionalTensor& token_bitmask;
};

// Proposal in the same file.
struct ProposalInputs {
  const OptionalTensor& logits;
  const OptionalTensor& records;
  const OptionalTensor& probs;
  const OptionalTensor& sparse_ids;
  const OptionalTensor& sparse_values;
  const OptionalTensor& row_of_node;
  const OptionalTensor& d2t;
};

// The links of a tree; all absent for a chain.
struct LinkInputs {
  const OptionalTensor& retrieve_next_token;
  const OptionalTensor& retrieve_next_sibling;
  const OptionalTensor& retrieve_index;
};

// B and N are known.
inline DraftLinks checked_links(ArgChecks& args, const LinkInputs& in) {
  bool tree = in.retrieve_next_token.has_value();
  args.require(
      tree == in.retrieve_next_sibling.has_value() && (tree || !in.retrieve_index.has_value()),
      "expected retrieve_next_token and retrieve_next_sibling of a tree, or for a chain "
      "no links, got only some of them");
  auto links = [&](const OptionalTensor& tensor, const char* name) {
    return args(tensor, name).dtype(kInt32).shape({"B", "N"}).contiguous().data<int32_t>();
  };
  return {links(in.retrieve_next_token, "retrieve_next_token"),
          links(in.retrieve_next_sibling, "retrieve_next_sibling"),
          links(in.retrieve_index, "retrieve_index")};
}

inline void check_edits(ArgChecks& args, const SamplingInputs& in, SamplingParams& p) {
  bool some = in.edit_indptr.has_value();
  args.require(some == in.edit_ids.has_value() && some == in.edit_counts.has_value() &&
                   (some || !in.edit_biases.has_value()),
               "expected sampling.edits with indptr, ids and counts, got only some of them");
  auto int32 = [&](const OptionalTensor& tensor, const char* name, const char* shape) {
    return args(tensor, name).dtype(kInt32).shape({shape}).contiguous().data<int32_t>();
  };
  args.size("B + 1", args["B"] + 1);
  p.edit_indptr = int32(in.edit_indptr, "sampling.edits.indptr", "B + 1");
  p.edit_ids = int32(in.edit_ids, "sampling.edits.ids", "num_edits");
  p.edit_counts = int32(in.edit_counts, "sampling.edits.counts", "num_edits");
  p.edit_biases = args(in.edit_biases, "sampling.edits.biases")
                      .dtype(kFloat32)
                      .shape({"num_edits"})
                      .contiguous()
                      .data<float>();
  if (!some) return;
  args.require_range("the number of edits", args["num_edits"], 0, INT32_MAX);
  p.num_edits = static_cast<int32_t>(args["num_edits"]);
}

// How each of B requests samples from R rows; B and R are known. No coins.
inline SamplingParams checked_sampling(ArgChecks& args, const SamplingInputs& in,
                                       int32_t vocab_size) {
  auto float32 = [&](const OptionalTensor& tensor, const char* name) {
    return args(tensor, name).dtype(kFloat32).shape({"B"}).contiguous().data<float>();
  };
  SamplingParams p{};
  p.temperature = args(in.temperature, "sampling.temperature")
                      .dtype(kFloat32)
                      .shape({"B"})
                      .contiguous()
                      .data<float>();
  p.seeds =
      args(in.seeds, "sampling.seeds").dtype(kInt64).shape({"B"}).contiguous().data<int64_t>();
  p.top_k =
      args(in.top_k, "sampling.top_k").dtype(kInt32).shape({"B"}).contiguous().data<int32_t>();
  p.top_p = float32(in.top_p, "sampling.top_p");
  p.min_p = float32(in.min_p, "sampling.min_p");
  p.repetition_penalty = float32(in.repetition_penalty, "sampling.repetition_penalty");
  p.presence_penalty = float32(in.presence_penalty, "sampling.presence_penalty");
  p.frequency_penalty = float32(in.frequency_penalty, "sampling.frequency_penalty");
  check_edits(args, in, p);

  auto bitmask =
      args(in.token_bitmask, "sampling.token_bitmask").dtype(kInt32).shape({"R", "W"}).rows();
  p.token_bitmask = bitmask.data<int32_t>();
  p.token_bitmask_stride = bitmask.row_stride();
  if (in.token_bitmask.has_value()) {
    args.require_range("the number of words W of sampling.token_bitmask", args["W"],
                       ceil_div(vocab_size, 32), INT32_MAX);
  }
  return p;
}

// The rows of q; fixes Q and Vq, the columns of logits or probabilities.
inline void check_proposal_rows(ArgChecks& args, const ProposalInputs& in, ProposalParams& p) {
  args.require(in.logits.has_value() == in.records.has_value(),
               std::string("expected proposal.logits together with proposal.records, got ") +
                   (in.logits.has_value() ? "logits" : "records") + " alone");
  args.require(in.sparse_ids.has_value() == in.sparse_values.has_value(),
               std::string("expected proposal.sparse_ids together with proposal.sparse_values, "
                           "got ") +
                   (in.sparse_ids.has_value() ? "sparse_ids" : "sparse_values") + " alone");
  int forms = in.logits.has_value() + in.probs.has_value() + in.sparse_ids.has_value();
  args.require(forms == 1,
               "expected exactly one of proposal.logits, proposal.probs and "
               "proposal.sparse_ids, got " +
                   std::to_string(forms));

  auto logits = args(in.logits, "proposal.logits").dtype(kFloats).shape({"Q", "Vq"}).rows();
  p.logits = logits.data<void>();
  p.logits_stride = logits.row_stride();
  if (in.logits.has_value()) p.logits_type = float_type(*in.logits);
  p.records = args(in.records, "proposal.records.packed")
                  .dtype(kInt32)
                  .shape({"Q", "8"})
                  .contiguous()
                  .aligned(kRecordAlignment)
                  .data<RowRecord>();

  auto probs = args(in.probs, "proposal.probs").dtype(kFloat32).shape({"Q", "Vq"}).rows();
  p.probs = probs.data<float>();
  p.probs_stride = probs.row_stride();

  p.sparse_ids =
      args(in.sparse_ids, "proposal.sparse_ids").dtype(kIds).shape({"Q", "K_q"}).contiguous().ids();
  p.sparse_values = args(in.sparse_values, "proposal.sparse_values")
                        .dtype(kFloat32)
                        .shape({"Q", "K_q"})
                        .contiguous()
                        .data<float>();
  if (in.sparse_ids.has_value()) {
    args.require_range("the number of columns K_q of proposal.sparse_ids", args["K_q"], 1,
                       kMaxSampledVocabSize);
    p.num_sparse = static_cast<int32_t>(args["K_q"]);
  }
  args.require_range("the number of rows Q of the proposal", args["Q"], 0, INT32_MAX);
  p.num_rows = static_cast<int32_t>(args["Q"]);
}

// What q's ids mean: the target's, or the target's through a map.
inline void check_proposal_vocabulary(ArgChecks& args, const ProposalInputs& in,
                                      int32_t target_vocab_size, ProposalParams& p) {
  p.vocab_size = target_vocab_size;
  if (in.sparse_ids.has_value()) {
    args.require(!in.d2t.has_value(),
                 "expected proposal.sparse_ids, which are the target's ids, without proposal.d2t, "
                 "got both");
    return;
  }
  if (in.d2t.has_value()) {
    p.d2t = args(in.d2t, "proposal.d2t").dtype(kInt64).shape({"Vq"}).contiguous().data<int64_t>();
    args.require_range("the draft's vocabulary Vq", args["Vq"], 1, kMaxSampledVocabSize);
    p.vocab_size = static_cast<int32_t>(args["Vq"]);
    return;
  }
  args.require(args["Vq"] == target_vocab_size || args["Vq"] == args["V"],
               "expected proposal over the target's vocabulary (V = " + std::to_string(args["V"]) +
                   " columns, or vocab_size = " + std::to_string(target_vocab_size) +
                   "), or with proposal.d2t, got Vq = " + std::to_string(args["Vq"]) +
                   " columns and no d2t");
}

// The proposal of B requests of N nodes; B, N and the target's V are known.
inline ProposalParams checked_proposal(ArgChecks& args, const ProposalInputs& in,
                                       int32_t target_vocab_size) {
  ProposalParams p{};
  check_proposal_rows(args, in, p);
  check_proposal_vocabulary(args, in, target_vocab_size, p);
  p.row_of_node = args(in.row_of_node, "proposal.row_of_node")
                      .dtype(kInt32)
                      .shape({"B", "N"})
                      .contiguous()
                      .data<int32_t>();
  if (in.row_of_node.has_value()) return p;
  int64_t nodes = args["N"], all = args["B"] * nodes, fewer = args["B"] * (nodes - 1);
  args.require(args["Q"] == all || args["Q"] == fewer,
               "expected proposal of Q = B * N = " + std::to_string(all) +
                   " or Q = B * (N - 1) = " + std::to_string(fewer) +
                   " rows, or with proposal.row_of_node, got Q = " + std::to_string(args["Q"]));
  p.rows_per_request = static_cast<int32_t>(args["Q"] == all ? nodes : nodes - 1);
  return p;
}

constexpr char kSamplingSchema[] =
    "Tensor temperature, Tensor seeds, Tensor? top_k, Tensor? top_p, Tensor? min_p, "
    "Tensor? repetition_penalty, Tensor? presence_penalty, Tensor? frequency_penalty, "
    "Tensor? edit_indptr, Tensor? edit_ids, Tensor? edit_counts, Tensor? edit_biases, "
    "Tensor? token_bitmask";
constexpr char kProposalSchema[] =
    "Tensor? proposal_logits, Tensor? proposal_records, Tensor? proposal_probs, "
    "Tensor? sparse_ids, Tensor? sparse_values, Tensor? row_of_node, Tensor? d2t";

}  // namespace specfast
