#include "ops/accept_block.h"
#include "ops/accept_rejection.h"
#include "ops/accept_target_only.h"
#include "torch/accept_args.h"
#include "torch/sampling_args.h"

namespace specfast {
namespace {

struct CoinInputs {
  const OptionalTensor& accept;
  const OptionalTensor& final;
};

void check_links(ArgChecks& args, const LinkInputs& in, bool return_trim, DraftLinks& p) {
  p = checked_links(args, in);
  bool tree = in.retrieve_next_token.has_value();
  args.require(!(tree && return_trim), "expected return_trim of a chain, got the links of a tree");
  if (!tree) check_chain_width(args);
}

// What all sampled accept ops check alike.
void check_sampled_accept(ArgChecks& args, const AcceptInputs& in, const Tensor& target_logits,
                          const SamplingInputs& sampling, const CoinInputs& coins, bool return_trim,
                          const AcceptOutputs& out, const OptionalTensor& logprobs,
                          bool processed_logprobs, SampledAcceptParams& p) {
  check_trim(args, in, return_trim);
  check_batch(args, in, p.accept);
  p.rows = checked_logits(args, target_logits, "target_logits");
  p.accept.vocab_size = checked_vocab_size(
      args, in.vocab_size, "the number of columns V of target_logits", kMaxSampledVocabSize);
  check_tail(args, in, out, return_trim, p.accept);
  p.sampling = checked_sampling(args, sampling, p.accept.vocab_size);
  p.sampling.accept_coins = args(coins.accept, "sampling.coins.accept")
                                .dtype(kFloat32)
                                .shape({"B", "N"})
                                .contiguous()
                                .data<float>();
  p.sampling.final_coins = args(coins.final, "sampling.coins.final")
                               .dtype(kFloat32)
                               .shape({"B"})
                               .contiguous()
                               .data<float>();
  p.logprobs.logprobs = args(logprobs, "out.logprobs")
                            .dtype(kFloat32)
                            .shape({"B", "S"})
                            .contiguous()
                            .mutable_data<float>();
  p.logprobs.processed = processed_logprobs;
  p.threshold_single = 1.0f;
  p.threshold_acc = 1.0f;
}

// Every rule has rows of its own in it.
template <class Row>
Row* checked_workspace(ArgChecks& args, const OptionalTensor& workspace) {
  static_assert(sizeof(Row) == 12 * sizeof(int32_t));
  return args(workspace, "workspace")
      .dtype(kInt32)
      .shape({"B", "N", "12"})
      .contiguous()
      .aligned(kRecordAlignment)
      .mutable_data<Row>();
}

template <Device device>
void accept_target_only(
    const Tensor& draft_tokens, const Tensor& prefix_lens, const Tensor& target_logits,
    const OptionalTensor& retrieve_next_token, const OptionalTensor& retrieve_next_sibling,
    const OptionalTensor& retrieve_index, std::optional<int64_t> vocab_size,
    const OptionalTensor& qo_indptr, const OptionalTensor& verify_lens,
    const OptionalTensor& eos_token_ids, const OptionalTensor& stop_token_ids,
    const OptionalTensor& max_tokens_left, const OptionalTensor& min_tokens_left,
    const OptionalTensor& ignore_eos, const OptionalTensor& out_cache_loc, bool accumulate_status,
    const Tensor& temperature, const Tensor& seeds, const OptionalTensor& top_k,
    const OptionalTensor& top_p, const OptionalTensor& min_p,
    const OptionalTensor& repetition_penalty, const OptionalTensor& presence_penalty,
    const OptionalTensor& frequency_penalty, const OptionalTensor& edit_indptr,
    const OptionalTensor& edit_ids, const OptionalTensor& edit_counts,
    const OptionalTensor& edit_biases, const OptionalTensor& token_bitmask,
    const OptionalTensor& accept_coins, const OptionalTensor& final_coins, double threshold_single,
    double threshold_acc, bool return_trim, bool processed_logprobs, const Tensor& per_request,
    const Tensor& per_step, const Tensor& predict, const OptionalTensor& slots,
    const OptionalTensor& logprobs, const OptionalTensor& workspace) {
  ArgChecks args("accept_target_only", draft_tokens);
  SampledAcceptParams p{};
  check_sampled_accept(
      args,
      {draft_tokens, prefix_lens, vocab_size, qo_indptr, verify_lens, eos_token_ids, stop_token_ids,
       max_tokens_left, min_tokens_left, ignore_eos, out_cache_loc, accumulate_status},
      target_logits,
      {temperature, seeds, top_k, top_p, min_p, repetition_penalty, presence_penalty,
       frequency_penalty, edit_indptr, edit_ids, edit_counts, edit_biases, token_bitmask},
      {accept_coins, final_coins}, return_trim, {per_request, per_step, predict, slots}, logprobs,
      processed_logprobs, p);
  check_links(args, {retrieve_next_token, retrieve_next_sibling, retrieve_index}, return_trim,
              p.links);
  p.outcomes = checked_workspace<RowOutcome>(args, workspace);
  args.require_fraction("threshold_single", threshold_single);
  args.require_fraction("threshold_acc", threshold_acc);
  p.threshold_single = static_cast<float>(threshold_single);
  p.threshold_acc = static_cast<float>(threshold_acc);
  if constexpr (device == Device::kCpu) {
    accept_target_only_cpu(p);
  } else {
    torch::stable::accelerator::DeviceGuard guard(draft_tokens.get_device_index());
    accept_target_only_cuda(p, current_stream(draft_tokens));
  }
}

template <Device device>
void accept_rejection(const Tensor& draft_tokens, const Tensor& prefix_lens,
                      const Tensor& target_logits, const OptionalTensor& retrieve_next_token,
                      const OptionalTensor& retrieve_next_sibling,
                      const OptionalTensor& retrieve_index, const OptionalTensor& proposal_logits,
                      const OptionalTensor& proposal_records, const OptionalTensor& proposal_probs,
                      const OptionalTensor& sparse_ids, const OptionalTensor& sparse_values,
                      const OptionalTensor& row_of_node, const OptionalTensor& d2t,
                      std::optional<int64_t> vocab_size, const OptionalTensor& qo_indptr,
                      const OptionalTensor& verify_lens, const OptionalTensor& eos_token_ids,
                      const OptionalTensor& stop_token_ids, const OptionalTensor& max_tokens_left,
                      const OptionalTensor& min_tokens_left, const OptionalTensor& ignore_eos,
                      const OptionalTensor& out_cache_loc, bool accumulate_status,
                      const Tensor& temperature, const Tensor& seeds, const OptionalTensor& top_k,
                      const OptionalTensor& top_p, const OptionalTensor& min_p,
                      const OptionalTensor& repetition_penalty,
                      const OptionalTensor& presence_penalty,
                      const OptionalTensor& frequency_penalty, const OptionalTensor& edit_indptr,
                      const OptionalTensor& edit_ids, const OptionalTensor& edit_counts,
                      const OptionalTensor& edit_biases, const OptionalTensor& token_bitmask,
                      const OptionalTensor& accept_coins, const OptionalTensor& final_coins,
                      bool return_trim, bool processed_logprobs, const Tensor& per_request,
                      const Tensor& per_step, const Tensor& predict, const OptionalTensor& slots,
                      const OptionalTensor& logprobs, const OptionalTensor& workspace) {
  ArgChecks args("accept_rejection", draft_tokens);
  SampledAcceptParams p{};
  check_sampled_accept(
      args,
      {draft_tokens, prefix_lens, vocab_size, qo_indptr, verify_lens, eos_token_ids, stop_token_ids,
       max_tokens_left, min_tokens_left, ignore_eos, out_cache_loc, accumulate_status},
      target_logits,
      {temperature, seeds, top_k, top_p, min_p, repetition_penalty, presence_penalty,
       frequency_penalty, edit_indptr, edit_ids, edit_counts, edit_biases, token_bitmask},
      {accept_coins, final_coins}, return_trim, {per_request, per_step, predict, slots}, logprobs,
      processed_logprobs, p);
  check_links(args, {retrieve_next_token, retrieve_next_sibling, retrieve_index}, return_trim,
              p.links);
  p.outcomes = checked_workspace<RowOutcome>(args, workspace);
  p.proposal = checked_proposal(args,
                                {proposal_logits, proposal_records, proposal_probs, sparse_ids,
                                 sparse_values, row_of_node, d2t},
                                p.accept.vocab_size);
  if constexpr (device == Device::kCpu) {
    accept_rejection_cpu(p);
  } else {
    torch::stable::accelerator::DeviceGuard guard(draft_tokens.get_device_index());
    accept_rejection_cuda(p, current_stream(draft_tokens));
  }
}

template <Device device>
void accept_block(const Tensor& draft_tokens, const Tensor& prefix_lens,
                  const Tensor& target_logits, const OptionalTensor& proposal_logits,
                  const OptionalTensor& proposal_records, const OptionalTensor& proposal_probs,
                  const OptionalTensor& sparse_ids, const OptionalTensor& sparse_values,
                  const OptionalTensor& row_of_node, const OptionalTensor& d2t,
                  std::optional<int64_t> vocab_size, const OptionalTensor& qo_indptr,
                  const OptionalTensor& verify_lens, const OptionalTensor& eos_token_ids,
                  const OptionalTensor& stop_token_ids, const OptionalTensor& max_tokens_left,
                  const OptionalTensor& min_tokens_left, const OptionalTensor& ignore_eos,
                  const OptionalTensor& out_cache_loc, bool accumulate_status,
                  const Tensor& temperature, const Tensor& seeds, const OptionalTensor& top_k,
                  const OptionalTensor& top_p, const OptionalTensor& min_p,
                  const OptionalTensor& repetition_penalty, const OptionalTensor& presence_penalty,
                  const OptionalTensor& frequency_penalty, const OptionalTensor& edit_indptr,
                  const OptionalTensor& edit_ids, const OptionalTensor& edit_counts,
                  const OptionalTensor& edit_biases, const OptionalTensor& token_bitmask,
                  const OptionalTensor& accept_coins, const OptionalTensor& final_coins,
                  bool processed_logprobs, const Tensor& per_request, const Tensor& per_step,
                  const Tensor& predict, const OptionalTensor& slots,
                  const OptionalTensor& logprobs, const OptionalTensor& workspace) {
  ArgChecks args("accept_block", draft_tokens);
  SampledAcceptParams p{};
  check_sampled_accept(
      args,
      {draft_tokens, prefix_lens, vocab_size, qo_indptr, verify_lens, eos_token_ids, stop_token_ids,
       max_tokens_left, min_tokens_left, ignore_eos, out_cache_loc, accumulate_status},
      target_logits,
      {temperature, seeds, top_k, top_p, min_p, repetition_penalty, presence_penalty,
       frequency_penalty, edit_indptr, edit_ids, edit_counts, edit_biases, token_bitmask},
      {accept_coins, final_coins}, false, {per_request, per_step, predict, slots}, logprobs,
      processed_logprobs, p);
  check_chain_width(args);
  p.stored_rows = checked_workspace<StoredRow>(args, workspace);
  p.proposal = checked_proposal(args,
                                {proposal_logits, proposal_records, proposal_probs, sparse_ids,
                                 sparse_values, row_of_node, d2t},
                                p.accept.vocab_size);
  if constexpr (device == Device::kCpu) {
    accept_block_cpu(p);
  } else {
    torch::stable::accelerator::DeviceGuard guard(draft_tokens.get_device_index());
    accept_block_cuda(p, current_stream(draft_tokens));
  }
}

constexpr char kRowsSchema[] = "Tensor draft_tokens, Tensor prefix_lens, Tensor target_logits, ";
constexpr char kLinksSchema[] =
    "Tensor? retrieve_next_token, Tensor? retrieve_next_sibling, Tensor? retrieve_index, ";

std::string schema(const char* op, const std::string& rule_inputs, const char* rule_numbers) {
  return std::string(op) + "(" + kRowsSchema + rule_inputs + kAcceptSchema + ", " +
         kSamplingSchema + ", Tensor? accept_coins, Tensor? final_coins, " + rule_numbers +
         "bool processed_logprobs, " + kRecordSchema + ", Tensor(e!)? logprobs, " +
         "Tensor(f!)? workspace) -> ()";
}

}  // namespace
}  // namespace specfast

STABLE_TORCH_LIBRARY_FRAGMENT(specfast, m) {
  using namespace specfast;
  std::string links = kLinksSchema, proposal = std::string(kProposalSchema) + ", ";
  m.def(schema("accept_target_only", links,
               "float threshold_single, float threshold_acc, bool return_trim, ")
            .c_str());
  m.def(schema("accept_rejection", links + proposal, "bool return_trim, ").c_str());
  m.def(schema("accept_block", proposal, "").c_str());
}

STABLE_TORCH_LIBRARY_IMPL(specfast, CPU, m) {
  using namespace specfast;
  m.impl("accept_target_only", TORCH_BOX(&accept_target_only<Device::kCpu>));
  m.impl("accept_rejection", TORCH_BOX(&accept_rejection<Device::kCpu>));
  m.impl("accept_block", TORCH_BOX(&accept_block<Device::kCpu>));
}

#ifdef SPECFAST_HAS_CUDA
STABLE_TORCH_LIBRARY_IMPL(specfast, CUDA, m) {
  using namespace specfast;
  m.impl("accept_target_only", TORCH_BOX(&accept_target_only<Device::kCuda>));
  m.impl("accept_rejection", TORCH_BOX(&accept_rejection<Device::kCuda>));
  m.impl("accept_block", TORCH_BOX(&accept_block<Device::kCuda>));
}
#endif
