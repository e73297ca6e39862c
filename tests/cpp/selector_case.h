#pragma once

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "ops/walk_selector.h"

namespace specfast::testing {

// Walks of a few requests, sound or not.
template <class W>
struct SelectorCase {
  struct Size {
    int batch, slots, candidates, rank, vocab;
  };

  SelectorCase(Size size, unsigned seed, bool unsound) : size(size) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    auto pick = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(rng);
    };
    int all = size.batch * size.slots * size.candidates;
    for (int i = 0; i < all; ++i) {
      ids.push_back((pick(0, size.vocab - 1) / size.candidates) * size.candidates % size.vocab +
                    i % size.candidates);
      if (unsound && pick(0, 9) == 0) ids.back() = pick(0, 1) == 0 ? -1 : size.vocab;
      if (ids.back() >= size.vocab && !unsound) ids.back() = i % size.candidates;
      unary.push_back(pick(0, 1) == 0 ? normal(rng) : static_cast<float>(pick(-2, 2)));
      float odd[] = {NAN, INFINITY, -INFINITY, -0.0f};
      if (unsound && pick(0, 5) == 0) unary.back() = odd[pick(0, 3)];
    }
    for (int i = 0; i < size.batch * size.slots * size.rank; ++i) keys.push_back(normal(rng));
    for (int i = 0; i < size.vocab * size.rank; ++i) {
      predecessor.push_back(rounded_to<W>(normal(rng) / 4));
      successor.push_back(rounded_to<W>(normal(rng) / 4));
    }
    for (int b = 0; b < size.batch; ++b) {
      anchors.push_back(pick(unsound ? -1 : 0, size.vocab - (unsound ? 0 : 1)));
      prefix_lens.push_back(pick(unsound ? -1 : 0, 500));
      float temperatures[] = {0.0f, 0.3f, 1.0f, 1.0f, 2.0f, unsound ? NAN : 1.0f};
      temperature.push_back(temperatures[pick(0, 5)]);
      top_k.push_back(pick(0, 3));
      seeds.push_back(static_cast<int64_t>(rng()) << 32 | rng());
    }
    tokens.assign(size.batch * size.slots, -77);
    q.assign(all, -77.0f);
    status.assign(size.batch, -77);
  }

  template <class Place>
  WalkSelectorParams params(Place place) const {
    WalkSelectorParams p{};
    p.batch_size = size.batch;
    p.num_slots = size.slots;
    p.num_candidates = size.candidates;
    p.rank = size.rank;
    p.vocab_size = size.vocab;
    p.candidates = {place(ids), false};
    p.unary = place(unary);
    p.keys = place(keys);
    p.predecessor = place(predecessor);
    p.successor = place(successor);
    p.codebook_type = sizeof(W) == 4 ? FloatType::kFloat32 : FloatType::kBFloat16;
    p.anchors = {place(anchors), false};
    p.sampling.temperature = place(temperature);
    p.sampling.seeds = place(seeds);
    p.sampling.top_k = place(top_k);
    p.prefix_lens = place(prefix_lens);
    p.tokens = place(tokens);
    p.q = place(q);
    p.status = place(status);
    return p;
  }
  WalkSelectorParams params() {
    return params([](const auto& values) {
      using Value = typename std::decay_t<decltype(values)>::value_type;
      return const_cast<Value*>(values.data());
    });
  }

  // Every bit that the call writes.
  std::vector<int32_t> written() const {
    std::vector<int32_t> all = tokens;
    all.insert(all.end(), status.begin(), status.end());
    std::vector<int32_t> words(q.size());
    memcpy(words.data(), q.data(), q.size() * sizeof(float));
    all.insert(all.end(), words.begin(), words.end());
    return all;
  }

  Size size;
  std::vector<int32_t> ids, anchors, prefix_lens, top_k, tokens, status;
  std::vector<float> unary, keys, temperature, q;
  std::vector<W> predecessor, successor;
  std::vector<int64_t> seeds;
};

}  // namespace specfast::testing
