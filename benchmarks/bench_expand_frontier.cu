// A level of EAGLE-2's expansion: 8 children of each of 8 nodes per request, and the best 8 of
// them. What it reads are the logits, once.

#include "logit_pool.cuh"
#include "ops/expand_frontier.h"
#include "random.h"
#include "set_array.cuh"
#include "workload.h"

namespace specfast::bench {
namespace {

constexpr int kTopk = 8;

// Several times the L2 cache.
int sets_for(int rows) {
  constexpr double kColdBytes = 256e6;
  return max_of(4, static_cast<int>(kColdBytes / (rows * LogitPool::kRowBytes)));
}

class ExpandFrontier : public Workload {
 public:
  explicit ExpandFrontier(const Point& point)
      : batch_(point.batch),
        nodes_(point.nodes),
        sets_(sets_for(batch_ * nodes_)),
        node_scores_(sets_, batch_ * nodes_),
        candidate_tokens_(sets_, batch_ * nodes_ * kTopk),
        parent_list_(sets_, batch_ * kTopk),
        parents_(sets_, batch_ * kTopk),
        tokens_(sets_, batch_ * kTopk),
        status_(sets_, batch_ * nodes_),
        candidate_scores_(sets_, batch_ * nodes_ * kTopk),
        scores_(sets_, batch_ * kTopk) {
    for (int set = 0; set < sets_; ++set) {
      Random random(set);
      for (int row = 0; row < batch_ * nodes_; ++row) {
        node_scores_.host(set)[row] = -4 * random.uniform();
        LogitPool::shared().fetch(first_row(set) + row);
      }
    }
    node_scores_.upload();
  }

  int sets() const override { return sets_; }
  void launch(int set, CUstream_st* stream) override {
    expand_frontier_cuda(params(Side::kDevice, set), stream);
  }
  void check(int set) override {
    expand_frontier_cpu(params(Side::kHost, set));
    candidate_tokens_.expect_equal(set, "candidate_tokens");
    candidate_scores_.expect_equal(set, "candidate_scores");
    parent_list_.expect_equal(set, "parent_list");
    parents_.expect_equal(set, "parents");
    tokens_.expect_equal(set, "tokens");
    scores_.expect_equal(set, "scores");
    status_.expect_equal(set, "status");
  }
  Traffic traffic() override {
    return {batch_ * nodes_ * LogitPool::kRowBytes + 2 * candidate_tokens_.bytes(), 0, 0};
  }

 private:
  int64_t first_row(int set) const { return LogitPool::window_begin(set, sets_, batch_ * nodes_); }

  ExpandFrontierParams params(Side side, int set) {
    const LogitPool& pool = LogitPool::shared();
    ExpandFrontierParams p{};
    p.batch_size = batch_;
    p.num_nodes = nodes_;
    p.topk = kTopk;
    p.vocab_size = LogitPool::kVocab;
    p.logits = side == Side::kHost ? pool.host(first_row(set)) : pool.device(first_row(set));
    p.logits_type = FloatType::kBFloat16;
    p.logits_request_stride = int64_t{LogitPool::kVocab} * nodes_;
    p.logits_row_stride = LogitPool::kVocab;
    p.node_scores = node_scores_.on(side, set);
    p.first_candidate = kTopk;
    p.candidate_tokens = candidate_tokens_.on(side, set);
    p.candidate_tokens_stride = nodes_ * kTopk;
    p.candidate_scores = candidate_scores_.on(side, set);
    p.candidate_scores_stride = nodes_ * kTopk;
    p.parent_list = parent_list_.on(side, set);
    p.parent_list_stride = kTopk;
    p.parents = parents_.on(side, set);
    p.tokens = tokens_.on(side, set);
    p.scores = scores_.on(side, set);
    p.status = status_.on(side, set);
    return p;
  }

  int batch_;
  int nodes_;
  int sets_;
  SetArray<float> node_scores_;
  SetArray<int32_t> candidate_tokens_, parent_list_, parents_, tokens_, status_;
  SetArray<float> candidate_scores_, scores_;
};

Registrar expand_frontier(benchmark<ExpandFrontier>(
    "expand_frontier", {{"k = 8, cold", 1, 1, LogitPool::kVocab, "bf16"},
                        {"k = 8, cold", 1, 8, LogitPool::kVocab, "bf16"},
                        {"k = 8, cold", 8, 8, LogitPool::kVocab, "bf16"},
                        {"k = 8, cold", 64, 8, LogitPool::kVocab, "bf16", 55}}));

}  // namespace
}  // namespace specfast::bench
