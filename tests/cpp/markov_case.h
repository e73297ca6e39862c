#pragma once

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "ops/sample_markov_block.h"

namespace specfast::testing {

// Blocks of a few requests. Weights are small multiples of 1/8 and 1/4, so that every order of a
// sum gives the same bits and tensor cores have to agree with the CPU.
template <class T, class W>
struct MarkovCase {
  struct Size {
    int batch, steps, vocab, rank;
  };

  MarkovCase(Size size, unsigned seed, bool unsound) : size(size) {
    std::mt19937 rng(seed);
    auto pick = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(rng);
    };
    auto choose = [&](std::initializer_list<float> of) {
      return of.begin()[pick(0, static_cast<int>(of.size()) - 1)];
    };
    bool odd = pick(0, 1) == 1;
    step_stride = size.vocab + (odd ? pick(0, 3) : (8 - size.vocab % 8) % 8);
    request_stride = step_stride * size.steps + (odd ? 3 : 0);
    for (int64_t i = 0; i < request_stride * size.batch; ++i) {
      float value = static_cast<float>(pick(-40, 40)) / 8;
      if (unsound && pick(0, 9) == 0) value = choose({NAN, INFINITY, -INFINITY, -0.0f});
      if (unsound && i / step_stride % 5 == 3) value = choose({NAN, -INFINITY, -INFINITY});
      logits.push_back(rounded_to<T>(value));
    }
    num_embeddings = pick(1, 50);
    for (int i = 0; i < num_embeddings * size.rank; ++i) {
      w1.push_back(rounded_to<W>(static_cast<float>(pick(-4, 4)) / 8));
    }
    for (int64_t i = 0; i < int64_t{size.vocab} * size.rank; ++i) {
      w2.push_back(rounded_to<W>(static_cast<float>(static_cast<int>(rng() % 9) - 4) / 4));
    }
    bool mapped = pick(0, 2) > 0;
    for (int i = 0; mapped && i < size.vocab; ++i) {
      d2t.push_back(pick(0, 9) < 8 ? pick(0, num_embeddings - 1) - i : pick(-9, 99));
    }
    for (int b = 0; b < size.batch; ++b) {
      anchors.push_back(pick(0, 9) == 0 ? pick(-2, num_embeddings + 1)
                                        : pick(0, num_embeddings - 1));
      prefix_lens.push_back(pick(unsound ? -1 : 0, 500));
      temperature.push_back(choose({0.0f, 0.0f, 0.3f, 1.0f, 2.0f, unsound ? -1.0f : 1.0f}));
      top_k.push_back(static_cast<int32_t>(choose({0, -1, 1, 2, 20, unsound ? -9.0f : 5.0f})));
      top_p.push_back(choose({1.0f, 1.0f, 0.9f, 0.5f, unsound ? NAN : 0.99f}));
      min_p.push_back(choose({0.0f, 0.0f, 0.1f, 1.0f}));
      seeds.push_back(static_cast<int64_t>(rng()) << 32 | rng());
    }
    filtered = pick(0, 1) == 1;
    greedy = pick(0, 3) == 0;
    if (greedy) temperature.assign(size.batch, 0.0f);
    tokens.assign(size.batch * size.steps, -77);
    records.assign(size.batch * size.steps, RowRecord{-77, -77, -77, -77, 77, -77, -77});
    status.assign(size.batch, -77);
    workspace.assign(kMarkovWorkspaceWords, 0);
  }

  // With a head whose weights are of any value, unlike those that are there already.
  void mix_by(MarkovKind kind, unsigned seed) {
    head.kind = kind;
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    int outputs = head.outputs() * size.rank;
    for (int i = 0; i < outputs * head.inputs() * size.rank; ++i) {
      projection.push_back(rounded_to<W>(normal(rng) / 2));
    }
    for (int i = 0; i < size.batch * size.steps * outputs; ++i) hidden_rows.push_back(normal(rng));
  }

  template <class Place>
  MarkovBlockParams params(Place place) const {
    MarkovBlockParams p{};
    p.batch_size = size.batch;
    p.num_steps = size.steps;
    p.vocab_size = size.vocab;
    p.rank = size.rank;
    p.logits = place(logits);
    p.logits_type = sizeof(T) == 4 ? FloatType::kFloat32 : FloatType::kBFloat16;
    p.request_stride = request_stride;
    p.step_stride = step_stride;
    p.w1 = place(w1);
    p.w2 = place(w2);
    p.weights_type = sizeof(W) == 4 ? FloatType::kFloat32 : FloatType::kBFloat16;
    p.num_embeddings = num_embeddings;
    p.head = head;
    if (head.kind != MarkovKind::kVanilla) {
      p.head.projection = place(projection);
      p.head.projection_stride = head.inputs() * size.rank;
      p.head.hidden_rows = place(hidden_rows);
    }
    p.anchors = {place(anchors), false};
    p.d2t = d2t.empty() ? nullptr : place(d2t);
    p.sampling.temperature = place(temperature);
    p.sampling.seeds = place(seeds);
    if (filtered) {
      p.sampling.top_k = place(top_k);
      p.sampling.top_p = place(top_p);
      p.sampling.min_p = place(min_p);
    }
    p.prefix_lens = place(prefix_lens);
    p.tokens = place(tokens);
    p.records = place(records);
    p.status = place(status);
    p.workspace = place(workspace);
    return p;
  }
  MarkovBlockParams params() {
    return params([](const auto& values) {
      using Value = typename std::decay_t<decltype(values)>::value_type;
      return const_cast<Value*>(values.data());
    });
  }

  // Every bit that the call writes.
  std::vector<int32_t> written() const {
    std::vector<int32_t> all = tokens;
    all.insert(all.end(), status.begin(), status.end());
    auto append = [&](const auto& values) {
      size_t bytes = values.size() * sizeof(values[0]);
      std::vector<int32_t> words((bytes + 3) / 4, 0);
      memcpy(words.data(), values.data(), bytes);
      all.insert(all.end(), words.begin(), words.end());
    };
    append(records);
    append(logits);
    append(workspace);
    return all;
  }

  Size size;
  int64_t request_stride, step_stride;
  int num_embeddings;
  bool filtered, greedy;
  std::vector<T> logits;
  MarkovHead head{};
  std::vector<W> w1, w2, projection;
  std::vector<int64_t> d2t, seeds;
  std::vector<int32_t> anchors, prefix_lens, top_k, tokens, status;
  std::vector<float> temperature, top_p, min_p, hidden_rows;
  std::vector<RowRecord> records;
  std::vector<uint64_t> workspace;
};

}  // namespace specfast::testing
