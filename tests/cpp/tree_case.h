#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "ops/build_tree.h"
#include "ops/select_and_build_tree.h"
#include "ops/select_draft_tokens.h"
#include "ops/tree_from_parents.h"

namespace specfast::testing {

struct TreeSize {
  int batch, topk, depth, nodes;
};

// The storage of one call of each tree op over random candidates, sound or not.
class TreeCase {
 public:
  TreeCase(TreeSize size, unsigned seed, bool unsound, MaskMode mode = MaskMode::kBits)
      : B(size.batch), N(size.nodes), topk_(size.topk), mode_(mode) {
    std::mt19937 rng(seed);
    auto pick = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(rng);
    };
    candidates_ = topk_ + (size.depth - 1) * topk_ * topk_;
    int groups = candidates_ / topk_;
    for (int b = 0; b < B; ++b) {
      std::vector<float> row;
      for (int group = 0; group < groups; ++group) {
        // A parent of the level above, whose groups are (level - 1) * topk + 1 and on.
        int level = group == 0 ? 0 : (group - 1) / topk_ + 1;
        int first = level <= 1 ? 0 : topk_ * ((level - 2) * topk_ + 1);
        int parent =
            group == 0 ? -1 : pick(first, first + (level <= 1 ? topk_ : topk_ * topk_) - 1);
        float above = parent < 0 ? 0.0f : row[parent];
        for (int i = 0; i < topk_; ++i) {
          float score = above - static_cast<float>(pick(0, 8)) / 4;
          if (unsound && pick(0, 3) == 0) score = pick(0, 1) == 0 ? NAN : 2.0f;
          row.push_back(score);
        }
        if (unsound && pick(0, 4) == 0) parent = pick(-2, candidates_ + 2);
        parent_list_.push_back(parent);
      }
      scores_.insert(scores_.end(), row.begin(), row.end());
      for (int i = 0; i < candidates_; ++i) tokens_.push_back(pick(0, 999));
      anchors_.push_back(pick(0, 999));
      prefix_lens_.push_back(unsound && pick(0, 3) == 0 ? pick(-3, -1) : pick(0, 40));
      verify_lens_.push_back(unsound ? pick(-1, N + 1) : pick(0, N));
      for (int node = 0; node < N; ++node) {
        parents_.push_back(unsound && pick(0, 3) == 0 ? pick(-2, N) : pick(0, max_of(node - 1, 0)));
        drafts_.push_back(pick(0, 999));
        // Ascending without a gap is closed for the lists of one level only: orphans are common.
        if (node > 0) selected_.push_back(unsound ? pick(-1, candidates_) : node - 1);
      }
    }
    selected_out.assign(B * (N - 1), -77);
    nodes.assign(kNodeFields * B * N, -77);
    status.assign(B, -77);
    mask_bytes_ = mode == MaskMode::kBits ? B * N * ceil_div(N, 32) * 4 : B * N * N;
    if (mode == MaskMode::kFull) mask_bytes_ = B * N * (N + 25);  // room for some of them
    mask.assign(ceil_div<int64_t>(mask_bytes_, 4), 0x55555555);
  }

  // The parameters over this storage, or over a copy of it elsewhere: place(v) is where the first
  // element of vector v lies.
  template <class Place>
  SelectDraftTokensParams select(Place place) {
    SelectDraftTokensParams p{};
    p.lists = lists(place);
    p.batch_size = B;
    p.num_nodes = N;
    p.selected_index = place(selected_out);
    p.status = place(status);
    return p;
  }
  template <class Place>
  BuildTreeParams build(Place place) {
    BuildTreeParams p{};
    p.lists = lists(place);
    p.selected_index = {place(selected_), false};
    p.selected_index_stride = N - 1;
    p.anchors = {place(anchors_), false};
    p.draft_tokens = {place(drafts_), false};
    p.draft_tokens_stride = N;
    p.record = record(place);
    return p;
  }
  template <class Place>
  SelectAndBuildTreeParams select_and_build(Place place) {
    SelectAndBuildTreeParams p{};
    p.lists = lists(place);
    p.anchors = {place(anchors_), false};
    p.tokens = {place(tokens_), false};
    p.tokens_stride = candidates_;
    p.record = record(place);
    return p;
  }
  template <class Place>
  TreeFromParentsParams from_parents(Place place) {
    TreeFromParentsParams p{};
    p.draft_tokens = {place(drafts_), false};
    p.draft_tokens_stride = N;
    p.parents = {place(parents_), false};
    p.parents_stride = N;
    p.verify_lens = place(verify_lens_);
    p.record = record(place);
    return p;
  }

  // Everything a call writes, in one vector.
  std::vector<int32_t> written() const {
    std::vector<int32_t> all = selected_out;
    for (const auto* part : {&nodes, &mask, &status}) {
      all.insert(all.end(), part->begin(), part->end());
    }
    return all;
  }

  const int B, N;
  std::vector<int32_t> selected_out, nodes, mask, status;

 private:
  static constexpr int kNodeFields = 6;

  template <class Place>
  CandidateLists lists(Place place) {
    return {topk_,          candidates_, {place(parent_list_), false}, candidates_ / topk_,
            place(scores_), candidates_};
  }
  template <class Place>
  TreeRecord record(Place place) {
    int32_t* fields = place(nodes);
    auto field = [&](int i) { return fields + i * B * N; };
    return {B,
            N,
            place(prefix_lens_),
            {field(0), false},
            field(1),
            field(2),
            field(3),
            field(4),
            field(5),
            place(mask),
            mode_,
            mask_bytes_,
            place(status)};
  }

  int topk_, candidates_;
  MaskMode mode_;
  int64_t mask_bytes_;
  std::vector<float> scores_;
  std::vector<int32_t> tokens_, parent_list_, anchors_, prefix_lens_, verify_lens_;
  std::vector<int32_t> parents_, drafts_, selected_;
};

// The storage itself.
constexpr auto kInPlace = [](auto& values) { return values.data(); };

}  // namespace specfast::testing
