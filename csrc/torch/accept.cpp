#include "ops/accept_chain.h"
#include "ops/accept_tree.h"
#include "torch/accept_args.h"

namespace specfast {
namespace {

// Logits or predictions; fixes R, and the vocabulary.
void check_rows(ArgChecks& args, const OptionalTensor& target_logits,
                const OptionalTensor& target_predict, std::optional<int64_t> vocab_size,
                AcceptParams& p, TargetRows& rows) {
  constexpr int64_t kMaxVocabSize = int64_t{1} << 30;
  args.require(target_logits.has_value() != target_predict.has_value(),
               std::string("expected exactly one of target_logits and target_predict, got ") +
                   (target_logits.has_value() ? "both" : "neither"));
  if (target_logits.has_value()) {
    rows = checked_logits(args, *target_logits, "target_logits");
    p.vocab_size = checked_vocab_size(args, vocab_size, "the number of columns V of target_logits",
                                      kMaxVocabSize);
    return;
  }
  rows.target_predict =
      args(target_predict, "target_predict").dtype(kIds).shape({"R"}).contiguous().ids();
  args.require_range("the number of rows R", args["R"], 0, INT32_MAX);
  p.vocab_size = INT32_MAX;
  if (!vocab_size.has_value()) return;
  args.require_range("vocab_size", *vocab_size, 1, kMaxVocabSize);
  p.vocab_size = static_cast<int32_t>(*vocab_size);
}

AcceptTreeParams tree_params(const OptionalTensor& retrieve_next_token,
                             const OptionalTensor& retrieve_next_sibling,
                             const OptionalTensor& retrieve_index,
                             const OptionalTensor& target_logits,
                             const OptionalTensor& target_predict, const AcceptInputs& in,
                             const AcceptOutputs& out) {
  ArgChecks args("accept_tree", in.draft_tokens);
  AcceptTreeParams p{};
  check_batch(args, in, p.accept);
  check_rows(args, target_logits, target_predict, in.vocab_size, p.accept, p.rows);
  check_tail(args, in, out, false, p.accept);
  auto links = [&](const OptionalTensor& tensor, const char* name) {
    return args(tensor, name).dtype(kInt32).shape({"B", "N"}).contiguous().data<int32_t>();
  };
  p.links.retrieve_next_token = links(retrieve_next_token, "retrieve_next_token");
  p.links.retrieve_next_sibling = links(retrieve_next_sibling, "retrieve_next_sibling");
  p.links.retrieve_index = links(retrieve_index, "retrieve_index");
  return p;
}

AcceptChainParams chain_params(bool return_trim, const OptionalTensor& target_logits,
                               const OptionalTensor& target_predict, const AcceptInputs& in,
                               const AcceptOutputs& out) {
  ArgChecks args("accept_chain", in.draft_tokens);
  check_trim(args, in, return_trim);
  AcceptChainParams p{};
  check_batch(args, in, p.accept);
  check_rows(args, target_logits, target_predict, in.vocab_size, p.accept, p.rows);
  check_tail(args, in, out, return_trim, p.accept);
  check_chain_width(args);
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
  AcceptTreeParams p = tree_params(
      retrieve_next_token, retrieve_next_sibling, retrieve_index, target_logits, target_predict,
      {draft_tokens, prefix_lens, vocab_size, qo_indptr, verify_lens, eos_token_ids, stop_token_ids,
       max_tokens_left, min_tokens_left, ignore_eos, out_cache_loc, accumulate_status},
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
  AcceptChainParams p = chain_params(
      return_trim, target_logits, target_predict,
      {draft_tokens, prefix_lens, vocab_size, qo_indptr, verify_lens, eos_token_ids, stop_token_ids,
       max_tokens_left, min_tokens_left, ignore_eos, out_cache_loc, accumulate_status},
      {per_request, per_step, predict, slots});
  if constexpr (device == Device::kCpu) {
    accept_chain_cpu(p);
  } else {
    torch::stable::accelerator::DeviceGuard guard(draft_tokens.get_device_index());
    accept_chain_cuda(p, current_stream(draft_tokens));
  }
}

constexpr char kRowsSchema[] = "Tensor? target_logits, Tensor? target_predict";

}  // namespace
}  // namespace specfast

STABLE_TORCH_LIBRARY_FRAGMENT(specfast, m) {
  using namespace specfast;
  m.def((std::string("accept_tree(Tensor draft_tokens, Tensor retrieve_next_token, "
                     "Tensor retrieve_next_sibling, Tensor prefix_lens, Tensor? retrieve_index, ") +
         kRowsSchema + ", " + kAcceptSchema + ", " + kRecordSchema + ") -> ()")
            .c_str());
  m.def((std::string("accept_chain(Tensor draft_tokens, Tensor prefix_lens, ") + kRowsSchema +
         ", " + kAcceptSchema + ", bool return_trim, " + kRecordSchema + ") -> ()")
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
