// The tree ops on EAGLE-2 drafts: k = 4 and depth 5 up to 16 nodes, k = 8 and depth 6 up to 64,
// k = 32 and depth 8 beyond. Masks are bits unless the variant says "qlen" or "full".

#include <algorithm>

#include "draft_trees.h"
#include "ops/build_tree.h"
#include "ops/select_and_build_tree.h"
#include "ops/select_draft_tokens.h"
#include "ops/tree_from_parents.h"
#include "tree_workload.cuh"

namespace specfast::bench {
namespace {

class SelectDraftTokens : public TreeWorkload {
 public:
  explicit SelectDraftTokens(const Point& point)
      : TreeWorkload(point), selected_(sets_, batch_ * (nodes_ - 1)), status_(sets_, batch_) {}
  void launch(int set, CUstream_st* stream) override {
    select_draft_tokens_cuda(params(Side::kDevice, set), stream);
  }
  void check(int set) override {
    select_draft_tokens_cpu(params(Side::kHost, set));
    selected_.expect_equal(set, "selected_index");
    status_.expect_equal(set, "status");
  }
  Traffic traffic() override { return {input_bytes() + selected_.bytes(), 0, 0}; }

 private:
  SelectDraftTokensParams params(Side side, int set) {
    return {lists(side, set), batch_, nodes_, selected_.on(side, set), status_.on(side, set)};
  }
  SetArray<int32_t> selected_, status_;
};

class SelectAndBuildTree : public TreeWorkload {
 public:
  using TreeWorkload::TreeWorkload;
  void launch(int set, CUstream_st* stream) override {
    select_and_build_tree_cuda(params(Side::kDevice, set), stream);
  }
  void check(int set) override {
    select_and_build_tree_cpu(params(Side::kHost, set));
    expect_equal_records(set);
  }
  Traffic traffic() override {
    double tokens = 8.0 * batch_ * nodes_;
    return {input_bytes() + tokens + record_bytes(), 0, 0};
  }

 private:
  SelectAndBuildTreeParams params(Side side, int set) {
    return {lists(side, set),
            {anchors_.on(side, set), true},
            {tokens_.on(side, set), true},
            candidates_,
            record(side, set)};
  }
};

class BuildTree : public TreeWorkload {
 public:
  explicit BuildTree(const Point& point)
      : TreeWorkload(point), selected_(sets_, batch_ * (nodes_ - 1)), status_(sets_, batch_) {
    for (int set = 0; set < sets_; ++set) {
      select_draft_tokens_cpu(
          {lists(Side::kHost, set), batch_, nodes_, selected_.host(set), status_.host(set)});
    }
    selected_.upload();
  }
  void launch(int set, CUstream_st* stream) override {
    build_tree_cuda(params(Side::kDevice, set), stream);
  }
  void check(int set) override {
    build_tree_cpu(params(Side::kHost, set));
    expect_equal_records(set);
  }
  Traffic traffic() override {
    double tokens = 8.0 * batch_ * nodes_;
    double parents = 8.0 * batch_ * candidates_ / expansion_.topk;
    return {selected_.bytes() + parents + tokens + record_bytes(), 0, 0};
  }

 private:
  BuildTreeParams params(Side side, int set) {
    BuildTreeParams p{};
    p.lists = lists(side, set);
    p.selected_index = {selected_.on(side, set), false};
    p.selected_index_stride = nodes_ - 1;
    p.anchors = {anchors_.on(side, set), true};
    p.draft_tokens = {tokens_.on(side, set), true};
    p.draft_tokens_stride = candidates_;
    p.record = record(side, set);
    return p;
  }
  SetArray<int32_t> selected_, status_;
};

class TreeFromParents : public TreeWorkload {
 public:
  explicit TreeFromParents(const Point& point)
      : TreeWorkload(point), given_parents_(sets_, batch_ * nodes_) {
    constexpr int kDepth = 6;
    for (int set = 0; set < sets_; ++set) {
      Random random(set);
      for (int b = 0; b < batch_; ++b) {
        DraftTree tree = draft_tree(random, nodes_, kDepth);
        std::copy(tree.parents.begin(), tree.parents.end(), given_parents_.host(set) + b * nodes_);
      }
    }
    given_parents_.upload();
  }
  void launch(int set, CUstream_st* stream) override {
    tree_from_parents_cuda(params(Side::kDevice, set), stream);
  }
  void check(int set) override {
    tree_from_parents_cpu(params(Side::kHost, set));
    expect_equal_records(set);
  }
  Traffic traffic() override {
    double tokens = 8.0 * batch_ * nodes_;
    return {tokens + given_parents_.bytes() + record_bytes(), 0, 0};
  }

 private:
  TreeFromParentsParams params(Side side, int set) {
    TreeFromParentsParams p{};
    p.draft_tokens = {tokens_.on(side, set), true};
    p.draft_tokens_stride = nodes_;
    p.parents = {given_parents_.on(side, set), false};
    p.parents_stride = nodes_;
    p.record = record(side, set);
    return p;
  }
  SetArray<int32_t> given_parents_;
};

std::vector<Point> points_of_eagle_trees() {
  std::vector<Point> points;
  for (int nodes : {16, 64}) {
    for (int batch : {1, 8, 64, 256}) points.push_back({"", batch, nodes});
  }
  points.push_back({"", 64, 256});
  return points;
}

std::vector<Point> fused_points() {
  std::vector<Point> points = points_of_eagle_trees();
  for (Point& point : points) {
    if (point.batch == 64 && point.nodes == 64) point.aim_us = 4;
  }
  return points;
}

std::vector<Point> built_points() {
  std::vector<Point> points = points_of_eagle_trees();
  for (int batch : {1, 64}) {
    points.push_back({"qlen", batch, 64});
    points.push_back({"full, prefix 8192", batch, 64});
  }
  points.push_back({"", 1, 1024});
  return points;
}

Registrar select_draft_tokens(benchmark<SelectDraftTokens>("select_draft_tokens",
                                                           points_of_eagle_trees()));
Registrar select_and_build(benchmark<SelectAndBuildTree>("select_and_build_tree", fused_points()));
Registrar build(benchmark<BuildTree>("build_tree", built_points()));
Registrar from_parents(benchmark<TreeFromParents>("tree_from_parents", built_points()));

}  // namespace
}  // namespace specfast::bench
