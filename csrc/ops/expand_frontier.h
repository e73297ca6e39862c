#pragma once

#include "core/best_tokens.h"
#include "core/logprob.h"
#include "core/row_tiles.h"

struct CUstream_st;

namespace specfast {

// One level of EAGLE-2's expansion: the k likeliest children of each of n nodes, then the k best of
// these n k candidates. A candidate's score is its parent's plus its log-probability at T = 1.
// Order, both times: value descending, then id or number ascending.
struct ExpandFrontierParams {
  int32_t batch_size;  // B
  int32_t num_nodes;   // n in [1, k]
  int32_t topk;        // k in [1, BestTokens::kMost], at most vocab_size
  int32_t vocab_size;

  const void* logits;  // [B, n, >= vocab_size]
  FloatType logits_type;
  int64_t logits_request_stride;  // elements
  int64_t logits_row_stride;
  const float* node_scores;  // [B, n], or null: 0
  const int64_t* d2t;        // [>= vocab_size] target id minus id, or null: 0
  int32_t first_candidate;   // number of this level's first candidate within the tree

  int32_t* candidate_tokens;  // [B, n k] ids of the target, children of one node best first
  int64_t candidate_tokens_stride;
  float* candidate_scores;  // [B, n k]
  int64_t candidate_scores_stride;
  int32_t* parent_list;  // [B, k] numbers of the k best, best first
  int64_t parent_list_stride;
  int32_t* parents;  // [B, k] the node that each of them is a child of
  int32_t* tokens;   // [B, k]
  float* scores;     // [B, k]
  int32_t* status;   // [B, n]
};

// The children of one node, by a team. The row is read once; what has a place among the best is
// looked up again.
template <class T>
struct FrontierRow {
  const ExpandFrontierParams& p;
  int64_t r;  // b * n + node
  RowTiles<T> tiles;
  Exchange exchange;
  BestTokens best;

  SPECFAST_HD FrontierRow(const ExpandFrontierParams& params, int64_t index)
      : p(params), r(index), tiles(params.vocab_size), best(params.topk) {}

  template <class Arena>
  SPECFAST_HD void place(Arena& arena, int parts) {
    exchange.place(arena);
    best.place(arena);
    tiles.place(arena, parts);
  }

  template <class Team>
  SPECFAST_HD void run(Team& team) {
    team.arrive();
    place(team, team.parts());
    int64_t b = r / p.num_nodes;
    int64_t node = r - b * p.num_nodes;
    tiles.open(team, static_cast<const T*>(p.logits) + b * p.logits_request_stride +
                         node * p.logits_row_stride);
    KeyFlag of_thread = tiles.sum_up(team);
    best.begin(team, of_thread.key);
    KeyFlag of_part = team.max_key(of_thread.key, of_thread.flag, team.size());
    uint64_t words[1] = {of_part.key | (of_part.flag ? 1u : 0u)};
    const uint64_t* answers = exchange.all_gather(team, words, [&] {
      tiles.for_each_high_group(
          team, best.lowest(),
          [&](int32_t id, const float (&values)[kGroupIds]) { best.list(team, id, values); });
    });
    KeyFlag of_row = team.largest(answers, team.parts());
    int64_t mine = static_cast<int64_t>(tiles.mass(team, ranked_value(of_row.key)));
    uint64_t mass = static_cast<uint64_t>(team.sum(mine));  // a barrier: the lists are whole
    best.finish(team, exchange, tiles, mass);
    if (team.part() == 0) write(team, b, node, of_row);
  }

 private:
  template <class Team>
  SPECFAST_HD void write(Team& team, int64_t b, int64_t node, KeyFlag of_row) const {
    int32_t* tokens = p.candidate_tokens + b * p.candidate_tokens_stride + node * p.topk;
    float* scores = p.candidate_scores + b * p.candidate_scores_stride + node * p.topk;
    float above = p.node_scores != nullptr ? p.node_scores[r] : 0.0f;
    float largest = ranked_value(of_row.key);
    uint64_t mass = best.sum_of_words(team);
    best.for_each(team, [&](int32_t place, uint64_t key) {
      int32_t id = argmax_id(key);
      float log = log_probability(ranked_value(key), largest, 1.0f, mass);
      // At an infinite maximum the lowest id has all the mass.
      if (largest == INFINITY) log = place == 0 ? 0.0f : -INFINITY;
      float score = above + log;
      scores[place] = score == score ? score : -INFINITY;
      uint64_t target = static_cast<uint64_t>(id);
      if (p.d2t != nullptr) target += static_cast<uint64_t>(p.d2t[id]);
      tokens[place] = target <= INT32_MAX ? static_cast<int32_t>(target) : kNoToken;
    });
    int32_t unusable = of_row.key == 0 ? kEmptySupport : kStatusOk;
    if (team.rank() == 0) p.status[r] = of_row.flag ? kNanLogits : unusable;
  }
};

// The next frontier of one request, by the threads of one part, once its candidates are written.
struct FrontierChoice {
  const ExpandFrontierParams& p;
  int64_t b;
  uint64_t* keys = nullptr;  // scratch [n k]

  template <class Arena>
  SPECFAST_HD void place(Arena& arena) {
    keys = arena.template scratch<uint64_t>(p.num_nodes * p.topk);
  }

  template <class Team>
  SPECFAST_HD void run(Team& team) {
    place(team);
    int32_t count = p.num_nodes * p.topk;
    const float* scores = p.candidate_scores + b * p.candidate_scores_stride;
    SPECFAST_NO_UNROLL
    for (int32_t i = team.rank(); i < count; i += team.size()) {
      keys[i] = ranking_key(scores[i], i);
    }
    team.sync_part();  // keys are written
    SPECFAST_NO_UNROLL
    for (int32_t i = team.rank(); i < count; i += team.size()) {
      int32_t place = rank_among(keys, count, keys[i]);
      if (place >= p.topk) continue;
      int64_t at = b * p.topk + place;
      p.parent_list[b * p.parent_list_stride + place] = p.first_candidate + i;
      p.parents[at] = i / p.topk;
      p.tokens[at] = p.candidate_tokens[b * p.candidate_tokens_stride + i];
      p.scores[at] = scores[i];
    }
  }
};

// Calls run(T{}) with the type of the logits.
template <class Run>
void with_frontier_type(const ExpandFrontierParams& p, Run run) {
  if (p.logits_type == FloatType::kFloat32) return run(float{});
  if (p.logits_type == FloatType::kBFloat16) return run(BFloat16{});
  run(Float16{});
}

void expand_frontier_cpu(const ExpandFrontierParams& p);
void expand_frontier_cuda(const ExpandFrontierParams& p, CUstream_st* stream);

}  // namespace specfast
