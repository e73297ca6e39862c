// Greedy accept of chains of seven drafts, with the tail: what accept_epilogue names.

#include "accept_workload.cuh"
#include "ops/accept_chain.h"

namespace specfast::bench {
namespace {

constexpr int kNodes = 8;  // anchor and seven drafts

class AcceptChain : public AcceptWorkload {
 public:
  explicit AcceptChain(const Point& point)
      : AcceptWorkload(point, kNodes,
                       [](Random&, const Point& point) { return draft_chain(point.nodes); }) {}

  void launch(int set, CUstream_st* stream) override {
    accept_chain_cuda(params(Side::kDevice, set), stream);
  }
  void check(int set) override {
    accept_chain_cpu(params(Side::kHost, set));
    expect_equal_records(set);
  }

 private:
  AcceptChainParams params(Side side, int set) {
    return {accept_params(side, set), target_rows(side, set)};
  }
};

std::vector<Point> points() {
  std::vector<Point> points;
  auto from_logits = [&](const char* warmth, int batch, double aim_us) {
    points.push_back({std::string("greedy, logits, ") + warmth, batch, kNodes, LogitPool::kVocab,
                      "bf16", aim_us});
  };
  from_logits("warm", 1, 5);
  from_logits("warm", 8, 0);
  from_logits("cold", 1, 0);
  from_logits("cold", 8, 0);
  from_logits("cold", 64, 42);
  from_logits("cold", 256, 150);
  for (int batch : {1, 8, 64, 256}) {
    points.push_back({"greedy, target_predict", batch, kNodes, LogitPool::kVocab});
  }
  return points;
}

Registrar accept_chain(benchmark<AcceptChain>("accept_chain", points()));

}  // namespace
}  // namespace specfast::bench
