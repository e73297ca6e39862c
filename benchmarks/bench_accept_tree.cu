// Greedy accept of trees of depth 6, from logits and from given predictions.

#include "accept_workload.cuh"
#include "ops/accept_tree.h"

namespace specfast::bench {
namespace {

constexpr int kDepth = 6;

class AcceptTree : public AcceptWorkload {
 public:
  explicit AcceptTree(const Point& point)
      : AcceptWorkload(point, kDepth + 1,
                       [](Random& random, const Point& point) {
                         return draft_tree(random, point.nodes, kDepth);
                       }),
        next_token_(sets_, batch_ * nodes_),
        next_sibling_(sets_, batch_ * nodes_) {
    for (int set = 0; set < sets_; ++set) {
      for (int request = 0; request < batch_; ++request) {
        int64_t first = static_cast<int64_t>(request) * nodes_;
        tree(set, request).link(next_token_.host(set) + first, next_sibling_.host(set) + first);
      }
    }
    next_token_.upload();
    next_sibling_.upload();
  }

  void launch(int set, CUstream_st* stream) override {
    accept_tree_cuda(params(Side::kDevice, set), stream);
  }
  void check(int set) override {
    accept_tree_cpu(params(Side::kHost, set));
    expect_equal_records(set);
  }
  Traffic traffic() override {
    Traffic traffic = AcceptWorkload::traffic();
    traffic.bytes += next_token_.bytes() + next_sibling_.bytes();
    return traffic;
  }

 private:
  AcceptTreeParams params(Side side, int set) {
    AcceptTreeParams p{};
    p.accept = accept_params(side, set);
    p.rows = target_rows(side, set);
    p.links.retrieve_next_token = next_token_.on(side, set);
    p.links.retrieve_next_sibling = next_sibling_.on(side, set);
    return p;
  }

  SetArray<int32_t> next_token_, next_sibling_;
};

std::vector<Point> points() {
  std::vector<Point> points;
  auto from_logits = [&](const char* warmth, int batch, int nodes, double aim_us) {
    points.push_back({std::string("greedy, logits, ") + warmth, batch, nodes, LogitPool::kVocab,
                      "bf16", aim_us});
  };
  from_logits("warm", 1, 64, 10);
  from_logits("warm", 8, 64, 0);
  from_logits("cold", 1, 64, 0);
  from_logits("cold", 8, 64, 18);
  from_logits("cold", 64, 64, 40);
  from_logits("cold", 256, 64, 100);
  from_logits("warm", 1, 16, 0);
  for (int batch : {1, 8, 64, 256}) from_logits("cold", batch, 16, 0);
  for (int nodes : {64, 16}) {
    for (int batch : {1, 8, 64, 256}) {
      points.push_back({"greedy, target_predict", batch, nodes, LogitPool::kVocab});
    }
  }
  return points;
}

Registrar accept_tree(benchmark<AcceptTree>("accept_tree", points()));

}  // namespace
}  // namespace specfast::bench
