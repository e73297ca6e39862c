#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "logit_pool.cuh"
#include "tree_workload.cuh"

namespace specfast::bench {
namespace {

constexpr int kPrefixLen = 8192;
constexpr double kMostMaskBytes = 256e6;

Expansion expansion_for(int nodes) {
  if (nodes <= 16) return {4, 5};
  if (nodes <= 64) return {8, 6};
  return {32, 8};
}

MaskMode mask_mode_of(const Point& point) {
  if (point.variant.rfind("qlen", 0) == 0) return MaskMode::kQlen;
  if (point.variant.rfind("full", 0) == 0) return MaskMode::kFull;
  return MaskMode::kBits;
}

int64_t mask_bytes_of(const Point& point) {
  int64_t nodes = point.nodes;
  switch (mask_mode_of(point)) {
    case MaskMode::kBits:
      return point.batch * nodes * ceil_div<int64_t>(nodes, 32) * 4;
    case MaskMode::kQlen:
      return point.batch * nodes * nodes;
    default:
      return point.batch * nodes * (kPrefixLen + nodes);
  }
}

}  // namespace

TreeWorkload::TreeWorkload(const Point& point)
    : batch_(point.batch),
      nodes_(point.nodes),
      expansion_(expansion_for(point.nodes)),
      candidates_(expansion_.topk + (expansion_.depth - 1) * expansion_.topk * expansion_.topk),
      sets_(clamp_to(static_cast<int>(kMostMaskBytes / mask_bytes_of(point)), 2, 64)),
      anchors_(sets_, batch_),
      tokens_(sets_, batch_ * candidates_),
      mask_mode_(mask_mode_of(point)),
      mask_bytes_(mask_bytes_of(point)),
      scores_(sets_, batch_ * candidates_),
      parent_list_(sets_, batch_ * candidates_ / expansion_.topk),
      prefix_lens_(sets_, batch_),
      draft_tokens_(sets_, batch_ * nodes_),
      status_(sets_, batch_),
      mask_(sets_, mask_bytes_) {
  for (SetArray<int32_t>* field :
       {&positions_, &parents_, &retrieve_index_, &retrieve_next_token_, &retrieve_next_sibling_}) {
    *field = SetArray<int32_t>(sets_, batch_ * nodes_);
  }
  for (int set = 0; set < sets_; ++set) {
    Random random(set);
    for (int b = 0; b < batch_; ++b) {
      expand(random, scores_.host(set) + b * candidates_,
             parent_list_.host(set) + b * (candidates_ / expansion_.topk));
      anchors_.host(set)[b] = random.below(LogitPool::kVocab);
      // All of a "full" mask is written, so its size is the same in every set.
      prefix_lens_.host(set)[b] = kPrefixLen;
    }
    std::generate_n(tokens_.host(set), batch_ * candidates_,
                    [&] { return random.below(LogitPool::kVocab); });
  }
  for (SetArray<int64_t>* input : {&anchors_, &tokens_, &parent_list_}) input->upload();
  scores_.upload();
  prefix_lens_.upload();
}

// Log scores fall along every path, and each level expands the best of the level above.
void TreeWorkload::expand(Random& random, float* scores, int64_t* parent_list) const {
  const int topk = expansion_.topk;
  parent_list[0] = -1;
  std::vector<int> frontier;
  for (int level = 0, first = 0; level < expansion_.depth; ++level) {
    int groups = level == 0 ? 1 : topk;
    for (int group = 0; group < groups; ++group) {
      float above = 0;
      if (level > 0) {
        parent_list[first / topk + group] = frontier[group];
        above = scores[frontier[group]];
      }
      float* children = scores + first + group * topk;
      for (int i = 0; i < topk; ++i) children[i] = above + std::log(1 - random.uniform()) - 0.05f;
      std::sort(children, children + topk, std::greater<float>());
    }
    frontier.resize(groups * topk);
    std::iota(frontier.begin(), frontier.end(), first);
    std::partial_sort(frontier.begin(), frontier.begin() + topk, frontier.end(),
                      [&](int a, int b) { return scores[a] > scores[b]; });
    first += groups * topk;
  }
}

CandidateLists TreeWorkload::lists(Side side, int set) {
  int groups = candidates_ / expansion_.topk;
  return {expansion_.topk, candidates_,           {parent_list_.on(side, set), true},
          groups,          scores_.on(side, set), candidates_};
}

TreeRecord TreeWorkload::record(Side side, int set) {
  TreeRecord record{};
  record.batch_size = batch_;
  record.num_nodes = nodes_;
  record.prefix_lens = prefix_lens_.on(side, set);
  record.draft_tokens = {draft_tokens_.on(side, set), true};
  record.positions = positions_.on(side, set);
  record.parents = parents_.on(side, set);
  record.retrieve_index = retrieve_index_.on(side, set);
  record.retrieve_next_token = retrieve_next_token_.on(side, set);
  record.retrieve_next_sibling = retrieve_next_sibling_.on(side, set);
  record.mask = mask_.on(side, set);
  record.mask_mode = mask_mode_;
  record.mask_capacity = mask_bytes_;
  record.status = status_.on(side, set);
  return record;
}

void TreeWorkload::expect_equal_records(int set) {
  draft_tokens_.expect_equal(set, "draft_tokens");
  positions_.expect_equal(set, "positions");
  parents_.expect_equal(set, "parents");
  retrieve_index_.expect_equal(set, "retrieve_index");
  retrieve_next_token_.expect_equal(set, "retrieve_next_token");
  retrieve_next_sibling_.expect_equal(set, "retrieve_next_sibling");
  mask_.expect_equal(set, "mask");
  status_.expect_equal(set, "status");
}

double TreeWorkload::record_bytes() const {
  return draft_tokens_.bytes() + 5 * positions_.bytes() + mask_.bytes() + status_.bytes();
}

}  // namespace specfast::bench
