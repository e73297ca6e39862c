#pragma once

#include <random>
#include <string>
#include <vector>

#include "core/accept_request.h"
#include "ops/accept_tree.h"

namespace specfast::testing {

// The storage of one accept call, sound or not, with few token ids so that paths are long.
struct AcceptCase {
  AcceptCase(int batch_size, int num_nodes, int vocab, unsigned seed, bool unsound)
      : B(batch_size), N(num_nodes), V(vocab), stride(vocab + 3) {
    std::mt19937 rng(seed);
    auto pick = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(rng);
    };
    int rows = B * N;
    logits.resize(static_cast<size_t>(rows) * stride);
    for (float& value : logits) {
      value = static_cast<float>(pick(-3, 3));
      if (unsound && pick(0, 3) == 0) value = pick(0, 1) == 0 ? NAN : -INFINITY;
    }
    for (int i = 0; i < rows; ++i) {
      draft_tokens.push_back(unsound && pick(0, 5) == 0 ? pick(-2, V + 2) : pick(0, V - 1));
      target_predict.push_back(pick(unsound ? -1 : 0, V - 1));
      out_cache_loc.push_back(pick(0, 1000));
    }
    next_token.assign(rows, -1);
    next_sibling.assign(rows, -1);
    for (int b = 0; b < B; ++b) {
      std::vector<int> last_child(N, -1);
      for (int node = 1; node < N; ++node) {
        int parent = pick(std::max(0, node - 4), node - 1);
        int previous = last_child[parent];
        (previous < 0 ? next_token[b * N + parent] : next_sibling[b * N + previous]) = node;
        last_child[parent] = node;
      }
      verify_lens.push_back(unsound ? pick(-1, N + 2) : pick(0, N));
      prefix_lens.push_back(pick(0, 100));
      stop_token_ids.push_back(pick(-1, V * 2));
      max_tokens_left.push_back(pick(0, N + 2));
      min_tokens_left.push_back(pick(-1, 3));
      ignore_eos.push_back(static_cast<uint8_t>(pick(0, 1)));
    }
    if (unsound) {
      for (int i = 0; i < rows / 4; ++i) next_sibling[pick(0, rows - 1)] = pick(-2, N + 1);
      for (int i = 0; i < rows / 4; ++i) next_token[pick(0, rows - 1)] = pick(-2, N + 1);
    }
    eos_token_ids = {V - 1};
    per_request.assign(9 * B, -77);
    per_step.assign(3 * B * N, -77);
    predict.assign(rows, -77);
    slots.assign(B * N, -77);
  }

  // The parameters over this storage, or over a copy of it elsewhere that `place` points at.
  template <class Place>
  AcceptParams params(Place place) const {
    AcceptParams p{};
    p.batch_size = B;
    p.num_nodes = N;
    p.width = N;
    p.num_rows = B * N;
    p.vocab_size = V;
    p.draft_tokens = {place(draft_tokens), false};
    p.draft_tokens_stride = N;
    p.prefix_lens = place(prefix_lens);
    p.verify_lens = place(verify_lens);
    p.out_cache_loc = {place(out_cache_loc), false};
    p.finish = {place(eos_token_ids),   1,
                place(stop_token_ids),  1,
                place(max_tokens_left), place(min_tokens_left),
                place(ignore_eos)};
    int32_t* numbers = place(per_request);
    int32_t* steps = place(per_step);
    p.num_correct_drafts = numbers;
    p.accept_lens = numbers + B;
    p.commit_lens = numbers + 2 * B;
    p.new_seq_lens = numbers + 3 * B;
    p.bonus = numbers + 4 * B;
    p.next_anchor = numbers + 5 * B;
    p.finish_reason = numbers + 6 * B;
    p.status = numbers + 7 * B;
    p.cap_trim_lens = numbers + 8 * B;
    p.accept_index = steps;
    p.out_tokens = steps + B * N;
    p.positions = steps + 2 * B * N;
    p.predict = place(predict);
    p.slots = {place(slots), false};
    return p;
  }
  AcceptParams params() {
    return params([](const auto& values) {
      using T = typename std::decay_t<decltype(values)>::value_type;
      return const_cast<T*>(values.data());
    });
  }
  TargetRows logit_rows() const { return {logits.data(), FloatType::kFloat32, stride, {}}; }
  TreeLinks tree_links() const { return {next_token.data(), next_sibling.data(), nullptr}; }

  // Everything the call writes, in one vector.
  std::vector<int32_t> record() const {
    std::vector<int32_t> all = per_request;
    for (const auto* part : {&per_step, &predict, &slots}) {
      all.insert(all.end(), part->begin(), part->end());
    }
    return all;
  }

  int B, N, V;
  int stride;
  std::vector<float> logits;
  std::vector<int32_t> draft_tokens, target_predict, out_cache_loc, next_token, next_sibling;
  std::vector<int32_t> verify_lens, prefix_lens;
  std::vector<int32_t> eos_token_ids, stop_token_ids, max_tokens_left, min_tokens_left;
  std::vector<uint8_t> ignore_eos;
  std::vector<int32_t> per_request, per_step, predict, slots;
};

}  // namespace specfast::testing
