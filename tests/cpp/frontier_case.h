#pragma once

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "ops/expand_frontier.h"

namespace specfast::testing {

// Levels of a few requests, with ties, sound or not.
template <class T>
struct FrontierCase {
  struct Size {
    int batch, nodes, topk, vocab;
  };

  FrontierCase(Size size, unsigned seed, bool unsound) : size(size), stride(size.vocab + seed % 9) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    auto pick = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(rng);
    };
    float odd[] = {NAN, INFINITY, -INFINITY, -0.0f};
    int rows = size.batch * size.nodes;
    for (int row = 0; row < rows; ++row) {
      float scale = static_cast<float>(pick(0, 3));  // 0: all equal
      bool empty = unsound && pick(0, 5) == 0;
      for (int i = 0; i < stride; ++i) {
        float value = scale * (seed % 2 == 0 ? normal(rng) : static_cast<float>(pick(-3, 3)));
        if (unsound && pick(0, 5) == 0) value = odd[pick(0, 3)];
        if (empty) value = odd[pick(0, 1) * 2];
        logits.push_back(rounded_to<T>(value));
      }
      node_scores.push_back(static_cast<float>(-pick(0, 40)) / 8);
      if (unsound && pick(0, 5) == 0) node_scores.back() = odd[pick(0, 3)];
    }
    for (int i = 0; i < size.vocab; ++i)
      d2t.push_back(unsound ? pick(-1, 1) * (int64_t{1} << 62) : 3 * i);
    candidate_tokens.assign(rows * size.topk, -77);
    candidate_scores.assign(rows * size.topk, -77.0f);
    for (auto* numbers : {&parent_list, &parents, &tokens}) {
      numbers->assign(size.batch * size.topk, -77);
    }
    scores.assign(size.batch * size.topk, -77.0f);
    status.assign(rows, -77);
  }

  template <class Place>
  ExpandFrontierParams params(Place place) const {
    ExpandFrontierParams p{};
    p.batch_size = size.batch;
    p.num_nodes = size.nodes;
    p.topk = size.topk;
    p.vocab_size = size.vocab;
    p.logits = place(logits);
    p.logits_type = sizeof(T) == 4                ? FloatType::kFloat32
                    : std::is_same_v<T, BFloat16> ? FloatType::kBFloat16
                                                  : FloatType::kFloat16;
    p.logits_request_stride = int64_t{stride} * size.nodes;
    p.logits_row_stride = stride;
    p.node_scores = place(node_scores);
    p.d2t = place(d2t);
    p.first_candidate = 11;
    p.candidate_tokens = place(candidate_tokens);
    p.candidate_tokens_stride = size.nodes * size.topk;
    p.candidate_scores = place(candidate_scores);
    p.candidate_scores_stride = size.nodes * size.topk;
    p.parent_list = place(parent_list);
    p.parent_list_stride = size.topk;
    p.parents = place(parents);
    p.tokens = place(tokens);
    p.scores = place(scores);
    p.status = place(status);
    return p;
  }
  ExpandFrontierParams params() {
    return params([](const auto& values) {
      using Value = typename std::decay_t<decltype(values)>::value_type;
      return const_cast<Value*>(values.data());
    });
  }

  // Calls use(vector) for everything that the call writes.
  template <class Use>
  void for_each_output(Use use) {
    for (auto* numbers : {&candidate_tokens, &parent_list, &parents, &tokens, &status}) {
      use(*numbers);
    }
    for (auto* floats : {&candidate_scores, &scores}) use(*floats);
  }
  // Every bit of it.
  std::vector<int32_t> written() {
    std::vector<int32_t> all;
    for_each_output([&](const auto& values) {
      size_t before = all.size();
      all.resize(before + values.size());
      memcpy(all.data() + before, values.data(), values.size() * sizeof(int32_t));
    });
    return all;
  }

  Size size;
  int stride;
  std::vector<T> logits;
  std::vector<float> node_scores;
  std::vector<int64_t> d2t;
  std::vector<int32_t> candidate_tokens, parent_list, parents, tokens, status;
  std::vector<float> candidate_scores, scores;
};

}  // namespace specfast::testing
