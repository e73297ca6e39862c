#include "ops/merge_row_stats.h"
#include "ops/row_stats.h"
#include "torch/accept_args.h"
#include "torch/sampling_args.h"

namespace specfast {
namespace {

const OptionalTensor kAbsent;

// How requests sample where the vocabulary is in shards: without edits, bitmask and coins.
struct ShardSamplingInputs {
  const Tensor& temperature;
  const Tensor& seeds;
  const OptionalTensor& top_k;
  const OptionalTensor& top_p;
  const OptionalTensor& min_p;
};

SamplingParams checked_shard_sampling(ArgChecks& args, const ShardSamplingInputs& in,
                                      int32_t vocab_size) {
  return checked_sampling(args,
                          {in.temperature, in.seeds, in.top_k, in.top_p, in.min_p, kAbsent, kAbsent,
                           kAbsent, kAbsent, kAbsent, kAbsent, kAbsent, kAbsent},
                          vocab_size);
}

int32_t checked_whole_vocab_size(const ArgChecks& args, int64_t vocab_size) {
  args.require_range("vocab_size", vocab_size, 1, kMaxSampledVocabSize);
  return static_cast<int32_t>(vocab_size);
}

// The number of words W of the records is known.
ShardRecord checked_record(const ArgChecks& args, const std::string& name, int64_t max_candidates,
                           int64_t max_top_k) {
  args.require_range("max_candidates", max_candidates, 0, kMaxNodes - 1);
  args.require_range("max_top_k", max_top_k, 0, RowCandidates::kMost);
  ShardRecord record{static_cast<int32_t>(max_candidates), static_cast<int32_t>(max_top_k)};
  args.require(args["W"] == record.words(),
               "expected " + name + " of W = 3 + max_candidates + max_top_k = " +
                   std::to_string(record.words()) + " words, got W = " + std::to_string(args["W"]));
  return record;
}

template <Device device>
void row_stats(const Tensor& draft_tokens, const Tensor& prefix_lens, const Tensor& target_logits,
               const OptionalTensor& retrieve_next_token,
               const OptionalTensor& retrieve_next_sibling, const OptionalTensor& qo_indptr,
               const OptionalTensor& verify_lens, int64_t vocab_size, int64_t vocab_offset,
               const Tensor& temperature, const Tensor& seeds, const OptionalTensor& top_k,
               const OptionalTensor& top_p, const OptionalTensor& min_p, int64_t max_candidates,
               int64_t max_top_k, const Tensor& stats) {
  ArgChecks args("row_stats", draft_tokens);
  RowStatsParams p{};
  check_batch(args,
              {draft_tokens, prefix_lens, std::nullopt, qo_indptr, verify_lens, kAbsent, kAbsent,
               kAbsent, kAbsent, kAbsent, kAbsent, false},
              p.accept);
  p.rows = checked_logits(args, target_logits, "target_logits");
  p.accept.num_rows = args["R"];
  p.accept.vocab_size = checked_whole_vocab_size(args, vocab_size);
  args.require_range("vocab_offset", vocab_offset, 0, vocab_size);
  p.vocab_offset = static_cast<int32_t>(vocab_offset);
  p.shard_size = static_cast<int32_t>(min_of(args["V"], vocab_size - vocab_offset));
  p.links = checked_links(args, {retrieve_next_token, retrieve_next_sibling, kAbsent});
  p.sampling =
      checked_shard_sampling(args, {temperature, seeds, top_k, top_p, min_p}, p.accept.vocab_size);
  p.stats = args(stats, "out.packed")
                .dtype(kInt64)
                .shape({"R", "W"})
                .contiguous()
                .mutable_data<uint64_t>();
  p.record = checked_record(args, "out.packed", max_candidates, max_top_k);
  if constexpr (device == Device::kCpu) {
    row_stats_cpu(p);
  } else {
    torch::stable::accelerator::DeviceGuard guard(draft_tokens.get_device_index());
    row_stats_cuda(p, current_stream(draft_tokens));
  }
}

template <Device device>
void merge_row_stats(const Tensor& stats, const Tensor& prefix_lens,
                     const OptionalTensor& qo_indptr, const OptionalTensor& verify_lens,
                     int64_t vocab_size, const Tensor& temperature, const Tensor& seeds,
                     const OptionalTensor& top_k, const OptionalTensor& top_p,
                     const OptionalTensor& min_p, int64_t max_candidates, int64_t max_top_k,
                     double threshold_single, double threshold_acc, const Tensor& target_predict,
                     const Tensor& status) {
  ArgChecks args("merge_row_stats", stats);
  MergeRowStatsParams p{};
  p.stats = args(stats, "stats.packed")
                .dtype(kInt64)
                .shape({"G", "R", "W"})
                .contiguous()
                .data<uint64_t>();
  args.require_range("the number of shards G", args["G"], 1, kMaxShards);
  args.require_range("the number of rows R", args["R"], 0, INT32_MAX);
  p.num_shards = static_cast<int32_t>(args["G"]);
  p.accept.num_rows = args["R"];
  p.record = checked_record(args, "stats.packed", max_candidates, max_top_k);
  auto int32 = [&](const OptionalTensor& tensor, const char* name, const char* shape) {
    return args(tensor, name).dtype(kInt32).shape({shape}).contiguous().data<int32_t>();
  };
  p.accept.prefix_lens = int32(prefix_lens, "prefix_lens", "B");
  args.require_range("the number of requests B", args["B"], 0, kMaxRequests);
  args.size("B + 1", args["B"] + 1);
  p.accept.batch_size = static_cast<int32_t>(args["B"]);
  p.accept.qo_indptr = int32(qo_indptr, "qo_indptr", "B + 1");
  p.accept.verify_lens = int32(verify_lens, "verify_lens", "B");
  int64_t requests = max_of<int64_t>(args["B"], 1);
  args.require(
      qo_indptr.has_value() || (args["R"] % requests == 0 && (args["B"] > 0 || args["R"] == 0)),
      "expected qo_indptr, or as many rows for each request, got R = " + std::to_string(args["R"]) +
          " rows of B = " + std::to_string(args["B"]) + " requests");
  if (!qo_indptr.has_value()) {
    args.require_range("the number of rows per request R / B", args["R"] / requests, 0, kMaxNodes);
  }
  p.accept.num_nodes =
      static_cast<int32_t>(qo_indptr.has_value() ? kMaxNodes : args["R"] / requests);
  p.accept.vocab_size = checked_whole_vocab_size(args, vocab_size);
  p.sampling =
      checked_shard_sampling(args, {temperature, seeds, top_k, top_p, min_p}, p.accept.vocab_size);
  args.require_fraction("threshold_single", threshold_single);
  args.require_fraction("threshold_acc", threshold_acc);
  p.threshold_single = static_cast<float>(threshold_single);
  p.threshold_acc = static_cast<float>(threshold_acc);
  auto per_row = [&](const Tensor& tensor, const char* name) {
    return args(tensor, name).dtype(kInt32).shape({"R"}).contiguous().mutable_data<int32_t>();
  };
  p.target_predict = per_row(target_predict, "out.target_predict");
  p.status = per_row(status, "out.status");
  if constexpr (device == Device::kCpu) {
    merge_row_stats_cpu(p);
  } else {
    torch::stable::accelerator::DeviceGuard guard(stats.get_device_index());
    merge_row_stats_cuda(p, current_stream(stats));
  }
}

constexpr char kShardSamplingSchema[] =
    "Tensor temperature, Tensor seeds, Tensor? top_k, Tensor? top_p, Tensor? min_p, "
    "int max_candidates, int max_top_k, ";

}  // namespace
}  // namespace specfast

STABLE_TORCH_LIBRARY_FRAGMENT(specfast, m) {
  using namespace specfast;
  m.def((std::string("row_stats(Tensor draft_tokens, Tensor prefix_lens, Tensor target_logits, "
                     "Tensor? retrieve_next_token, Tensor? retrieve_next_sibling, "
                     "Tensor? qo_indptr, Tensor? verify_lens, int vocab_size, int vocab_offset, ") +
         kShardSamplingSchema + "Tensor(a!) stats) -> ()")
            .c_str());
  m.def((std::string("merge_row_stats(Tensor stats, Tensor prefix_lens, Tensor? qo_indptr, "
                     "Tensor? verify_lens, int vocab_size, ") +
         kShardSamplingSchema +
         "float threshold_single, float threshold_acc, Tensor(a!) target_predict, "
         "Tensor(b!) status) -> ()")
            .c_str());
}

STABLE_TORCH_LIBRARY_IMPL(specfast, CPU, m) {
  using namespace specfast;
  m.impl("row_stats", TORCH_BOX(&row_stats<Device::kCpu>));
  m.impl("merge_row_stats", TORCH_BOX(&merge_row_stats<Device::kCpu>));
}

#ifdef SPECFAST_HAS_CUDA
STABLE_TORCH_LIBRARY_IMPL(specfast, CUDA, m) {
  using namespace specfast;
  m.impl("row_stats", TORCH_BOX(&row_stats<Device::kCuda>));
  m.impl("merge_row_stats", TORCH_BOX(&merge_row_stats<Device::kCuda>));
}
#endif
