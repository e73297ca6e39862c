// Sampled accept: trees without q, chains with the proposal as records or dense probabilities.
// The target samples at T = 0.6 from rows whose planted token is then nearly sure, the proposal is
// the same logits at T = 1, so paths are about those of the greedy benchmarks; the rows visited are
// counted from the CPU body's records.

#include "accept_workload.cuh"
#include "core/launch.cuh"
#include "ops/accept_block.h"
#include "ops/accept_rejection.h"
#include "ops/accept_target_only.h"
#include "ops/sample_rows.h"

namespace specfast::bench {
namespace {

constexpr int kTreeDepth = 6;
constexpr float kTemperature = 0.6f;

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

bool is_tree(const Point& point) { return contains(point.variant, "tree"); }

DraftTree make_drafts(Random& random, const Point& point) {
  return is_tree(point) ? draft_tree(random, point.nodes, kTreeDepth) : draft_chain(point.nodes);
}

__global__ void fill_probs_kernel(const BFloat16* logits, const RowRecord* records, float* probs) {
  int64_t row = blockIdx.x;
  RowRecord record = records[row];
  Weights weights{record.max, Weights::scale2_of(record.scale)};
  float factor = inverse_mass(record.mass);
  for (int id = threadIdx.x; id < LogitPool::kVocab; id += blockDim.x) {
    int64_t at = row * LogitPool::kVocab + id;
    probs[at] = weights.weight(to_float(logits[at])) * factor;
  }
}

class SampledAccept : public AcceptWorkload {
 public:
  explicit SampledAccept(const Point& point)
      : AcceptWorkload(point, is_tree(point) ? kTreeDepth + 1 : point.nodes, make_drafts),
        is_tree_(is_tree(point)),
        filtered_(contains(point.variant, "top-k")),
        has_proposal_(contains(point.variant, "q ")),
        dense_(contains(point.variant, "dense")),
        at_once_(contains(point.variant, "at once")),
        temperature_(1, batch_),
        q_temperature_(1, batch_),
        top_p_(1, batch_),
        top_k_(1, batch_),
        seeds_(1, batch_) {
    for (SetArray<int32_t>* links : {&next_token_, &next_sibling_}) {
      *links = SetArray<int32_t>(sets_, batch_ * nodes_);
    }
    for (int set = 0; set < sets_; ++set) {
      for (int request = 0; request < batch_; ++request) {
        int64_t first = static_cast<int64_t>(request) * nodes_;
        tree(set, request).link(next_token_.host(set) + first, next_sibling_.host(set) + first);
      }
    }
    next_token_.upload();
    next_sibling_.upload();
    for (int request = 0; request < batch_; ++request) {
      temperature_.host(0)[request] = kTemperature;
      q_temperature_.host(0)[request] = 1.0f;
      top_p_.host(0)[request] = 0.9f;
      top_k_.host(0)[request] = 50;
      seeds_.host(0)[request] = request * 7919;
    }
    temperature_.upload();
    q_temperature_.upload();
    top_p_.upload();
    top_k_.upload();
    seeds_.upload();
    if (has_proposal_) make_proposal();
    if (at_once_) {
      size_t rows = static_cast<size_t>(batch_) * nodes_;
      SPECFAST_CUDA_CHECK(cudaMalloc(&workspace_, rows * sizeof(StoredRow)));
      SPECFAST_CUDA_CHECK(cudaMemset(workspace_, 0, rows * sizeof(StoredRow)));
    }
  }
  ~SampledAccept() override {
    cudaFree(workspace_);
    for (auto& [host, device] : probs_) {
      free(host);
      cudaFree(device);
    }
  }

  void launch(int set, CUstream_st* stream) override {
    run_cuda(params(Side::kDevice, set), stream);
  }
  void check(int set) override {
    run_cpu(params(Side::kHost, set));
    expect_equal_fields(set);
  }
  Traffic traffic() override {
    Traffic traffic = AcceptWorkload::traffic();
    double row_bytes = LogitPool::kRowBytes;
    traffic.bytes -= traffic.rows_mean * batch_ * row_bytes;
    traffic.rows_mean = mean_accept_len();
    if (at_once_) traffic.rows_mean = traffic.rows_max = nodes_;
    if (has_proposal_) row_bytes *= dense_ ? 3 : 2;
    traffic.bytes += traffic.rows_mean * batch_ * row_bytes;
    return traffic;
  }

 protected:
  virtual void run_cuda(const SampledAcceptParams& p, CUstream_st* stream) = 0;
  virtual void run_cpu(const SampledAcceptParams& p) = 0;

 private:
  // Records of q, by the op that drafters use, and where asked for its dense probabilities.
  void make_proposal() {
    int rows = batch_ * nodes_;
    records_ = SetArray<RowRecord>(sets_, rows);
    request_of_row_ = SetArray<int32_t>(1, rows);
    for (int row = 0; row < rows; ++row) request_of_row_.host(0)[row] = row / nodes_;
    request_of_row_.upload();
    SetArray<int32_t> status(1, rows);
    for (int set = 0; set < sets_; ++set) {
      SampleRowsParams p{};
      p.num_rows = rows;
      p.batch_size = batch_;
      p.vocab_size = LogitPool::kVocab;
      p.rows = target_rows(Side::kDevice, set);
      p.sampling.temperature = q_temperature_.on(Side::kDevice, 0);
      p.sampling.seeds = seeds_.on(Side::kDevice, 0);
      p.request_of_row = request_of_row_.on(Side::kDevice, 0);
      p.prefix_lens = accept_params(Side::kDevice, set).prefix_lens;
      p.records = records_.on(Side::kDevice, set);
      p.status = status.on(Side::kDevice, 0);
      sample_rows_cuda(p, nullptr);
      SPECFAST_CUDA_CHECK(cudaMemcpy(records_.host(set), p.records, rows * sizeof(RowRecord),
                                     cudaMemcpyDeviceToHost));
      // By its coin a draft off the planned path may be accepted.
      fetch_all_rows(set);
      if (dense_) make_probs(set, rows);
    }
  }
  void make_probs(int set, int rows) {
    size_t row_bytes = LogitPool::kVocab * sizeof(float);
    float* device = nullptr;
    SPECFAST_CUDA_CHECK(cudaMalloc(&device, rows * row_bytes));
    float* host = static_cast<float*>(calloc(rows, row_bytes));
    probs_.emplace_back(host, device);
    specfast::launch(fill_probs_kernel, {dim3(rows), dim3(256)}, nullptr,
                     static_cast<const BFloat16*>(target_rows(Side::kDevice, set).logits),
                     records_.on(Side::kDevice, set), device);
    SPECFAST_CUDA_CHECK(cudaMemcpy(host, device, rows * row_bytes, cudaMemcpyDeviceToHost));
  }

  SampledAcceptParams params(Side side, int set) {
    SampledAcceptParams p{};
    p.accept = accept_params(side, set);
    p.rows = target_rows(side, set);
    if (is_tree_) p.links = {next_token_.on(side, set), next_sibling_.on(side, set), nullptr};
    p.sampling.temperature = temperature_.on(side, 0);
    p.sampling.seeds = seeds_.on(side, 0);
    if (filtered_) {
      p.sampling.top_k = top_k_.on(side, 0);
      p.sampling.top_p = top_p_.on(side, 0);
    }
    p.threshold_single = 1.0f;
    p.threshold_acc = 1.0f;
    // The CPU body reads the rows as it comes to them: both ways have one result.
    if (side == Side::kDevice) {
      static_assert(sizeof(StoredRow) == sizeof(RowOutcome));
      p.stored_rows = static_cast<StoredRow*>(workspace_);
      p.outcomes = static_cast<RowOutcome*>(workspace_);
    }
    if (!has_proposal_) return p;
    p.proposal.rows_per_request = nodes_;
    p.proposal.num_rows = batch_ * nodes_;
    p.proposal.vocab_size = LogitPool::kVocab;
    if (dense_) {
      auto& [host, device] = probs_[set];
      p.proposal.probs = side == Side::kHost ? host : device;
      p.proposal.probs_stride = LogitPool::kVocab;
    } else {
      p.proposal.logits = p.rows.logits;
      p.proposal.logits_type = p.rows.logits_type;
      p.proposal.logits_stride = p.rows.logits_stride;
      p.proposal.records = records_.on(side, set);
    }
    return p;
  }

  bool is_tree_, filtered_, has_proposal_, dense_, at_once_;
  void* workspace_ = nullptr;
  SetArray<float> temperature_, q_temperature_, top_p_;
  SetArray<int32_t> top_k_, next_token_, next_sibling_, request_of_row_;
  SetArray<int64_t> seeds_;
  SetArray<RowRecord> records_;
  std::vector<std::pair<float*, float*>> probs_;
};

class TargetOnly : public SampledAccept {
 public:
  using SampledAccept::SampledAccept;

 protected:
  void run_cuda(const SampledAcceptParams& p, CUstream_st* stream) override {
    accept_target_only_cuda(p, stream);
  }
  void run_cpu(const SampledAcceptParams& p) override { accept_target_only_cpu(p); }
};

class Rejection : public SampledAccept {
 public:
  using SampledAccept::SampledAccept;

 protected:
  void run_cuda(const SampledAcceptParams& p, CUstream_st* stream) override {
    accept_rejection_cuda(p, stream);
  }
  void run_cpu(const SampledAcceptParams& p) override { accept_rejection_cpu(p); }
};

class Block : public SampledAccept {
 public:
  using SampledAccept::SampledAccept;

 protected:
  void run_cuda(const SampledAcceptParams& p, CUstream_st* stream) override {
    accept_block_cuda(p, stream);
  }
  void run_cpu(const SampledAcceptParams& p) override { accept_block_cpu(p); }
};

Point point(const char* variant, int batch, int nodes, double aim_us) {
  return {variant, batch, nodes, LogitPool::kVocab, "bf16", aim_us};
}

Registrar target_only(benchmark<TargetOnly>(
    "accept_target_only",
    {point("tree, T, warm", 1, 64, 14), point("tree, T, cold", 1, 64, 0),
     point("tree, T, cold", 8, 64, 0), point("tree, T, cold", 64, 64, 40),
     point("tree, T, cold", 256, 64, 110), point("tree, T top-k top-p, warm", 1, 64, 30),
     point("tree, T top-k top-p, cold", 64, 64, 60), point("tree, T top-k top-p, cold", 256, 64, 0),
     point("tree, T top-k top-p, cold", 8, 16, 50), point("chain, T, warm", 1, 8, 18),
     point("chain, T, cold", 8, 8, 0), point("chain, T, cold", 64, 8, 45),
     point("chain rows at once, T, warm", 1, 8, 18), point("chain rows at once, T, cold", 8, 8, 0),
     point("chain rows at once, T top-k top-p, cold", 8, 8, 0)}));
Registrar rejection(benchmark<Rejection>(
    "accept_rejection",
    {point("chain, T, q dense, warm", 1, 8, 18), point("chain, T, q dense, cold", 64, 8, 60),
     point("chain, T, q record, warm", 1, 8, 18), point("chain, T, q record, cold", 64, 8, 45),
     point("chain, T top-k top-p, q dense, cold", 64, 8, 110),
     point("chain, T, q dense, cold", 8, 8, 0),
     point("chain rows at once, T, q dense, warm", 1, 8, 18),
     point("chain rows at once, T, q dense, cold", 8, 8, 0),
     point("chain rows at once, T, q dense, cold", 64, 8, 60),
     point("chain rows at once, T, q record, warm", 1, 8, 18),
     point("chain rows at once, T, q record, cold", 64, 8, 45)}));
Registrar block(benchmark<Block>("accept_block",
                                 {point("chain, T, q dense, warm", 1, 8, 18),
                                  point("chain, T, q dense, cold", 8, 8, 0),
                                  point("chain, T, q dense, cold", 64, 8, 150),
                                  point("chain rows at once, T, q dense, warm", 1, 8, 18),
                                  point("chain rows at once, T, q dense, cold", 8, 8, 0),
                                  point("chain rows at once, T, q dense, cold", 64, 8, 150)}));

}  // namespace
}  // namespace specfast::bench
