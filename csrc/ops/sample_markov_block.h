#pragma once

#include "core/markov_head.h"
#include "core/row_distribution.h"

struct CUstream_st;

namespace specfast {

// Drafts of a block whose logits wait for the token before (the Markov heads of DSpark): step by
// step, logits += W2 * mix(W1[previous token]), in place, and a token is drawn from the sum. What
// mix does, and whether it keeps a state from step to step, says the head.
struct MarkovBlockParams {
  int32_t batch_size;  // B
  int32_t num_steps;   // G >= 1
  int32_t vocab_size;  // V
  int32_t rank;        // r

  void* logits;  // [B, G, V] in: of the backbone; out: what was drawn from, rounded to their type
  FloatType logits_type;   // float32 or bfloat16
  int64_t request_stride;  // elements
  int64_t step_stride;     // elements

  const void* w1;          // [E, r] row of a token
  const void* w2;          // [V, r]
  FloatType weights_type;  // float32, or bfloat16
  int32_t num_embeddings;  // E
  MarkovHead head;
  IdView anchors;              // [B] token before the block; negative: a padded slot
  const int64_t* d2t;          // [V] target id of column i is i + d2t[i]; or null: i
  SamplingParams sampling;     // temperature, filters and seeds
  const int32_t* prefix_lens;  // [B]

  int32_t* tokens;      // [B, G] target ids; -1 in padded slots
  RowRecord* records;   // [B, G]
  int32_t* status;      // [B]
  uint64_t* workspace;  // [kMarkovWorkspaceWords] zeros before and after; unused on a CPU
};

// A batch is served in groups of so many requests at most, a launch each.
constexpr int kMaxMarkovRows = 64;
// Groups of so few tell their maxima from CTA to CTA.
constexpr int kFewMarkovRows = 16;
constexpr int kMarkovWorkspaceWords = 18472;

// How one request of a block samples.
struct MarkovRequest {
  bool padded;
  RequestSampling sampling;

  // Whether a row needs no more than its masses.
  SPECFAST_HD bool is_unfiltered() const {
    return sampling.top_k == 0 && !sampling.has_top_p && sampling.min_mass <= 1;
  }

  SPECFAST_HD static MarkovRequest load(const MarkovBlockParams& p, int32_t b) {
    MarkovRequest out{p.anchors[b] < 0, RequestSampling::load(p.sampling, b, p.vocab_size)};
    out.sampling.random.prefix_len = max_of(p.prefix_lens[b], 0);
    if (p.prefix_lens[b] < 0) out.sampling.status |= kBadParam;
    return out;
  }
};

// What a step gives: the column drawn, the distribution that it came from.
struct MarkovDraw {
  int32_t column;
  RowRecord record;
  int32_t status;

  SPECFAST_HD static MarkovDraw none() {
    return {kNoToken, {0.0f, 0.0f, 0.0f, -1, 0, kNoToken, kUnusableRow}, kStatusOk};
  }

  // A greedy row, of which only the largest key is needed.
  SPECFAST_HD static MarkovDraw greedy(uint64_t key, bool has_nan) {
    int32_t status = has_nan ? kNanLogits : kStatusOk;
    if (key == 0) {
      RowRecord record{0.0f, 0.0f, 0.0f, -1, 0, 0, kUnusableRow};
      return {0, record, has_nan ? kNanLogits : kEmptySupport};
    }
    float value = argmax_value(key);
    int32_t id = argmax_id(key);
    return {id, {0.0f, value, value, id, kUnitMass, id, kPointMass}, status};
  }

  // A row without filters, by its mass and what was drawn.
  SPECFAST_HD static MarkovDraw unfiltered(uint64_t key, bool has_nan, float scale, uint64_t mass,
                                           int32_t column) {
    RowRecord record{scale, argmax_value(key), -INFINITY,   INT32_MAX,
                     mass,  argmax_id(key),    kOrdinaryRow};
    return {column, record, has_nan ? kNanLogits : kStatusOk};
  }

  // Any row, by a team.
  template <class Row, class Team, class T>
  SPECFAST_HD static MarkovDraw of(Row& row, Team& team, const T* logits,
                                   const RequestSampling& sampling, int32_t step) {
    row.begin_open(team, logits, nullptr);
    row.finish_open(team, sampling);
    Drawn drawn = row.draw(team, Exclusions{}, [&](uint64_t total) {
      return scaled_draw(sampling.random.bits(kDraftDraw, step, 0), total);
    });
    return {drawn.token, row.record(sampling.scale), row.status};
  }
};

// The target's id of a column; -1 if it is none that an int32 holds.
SPECFAST_HD int32_t markov_target_id(const MarkovBlockParams& p, int32_t column) {
  if (p.d2t == nullptr || column < 0) return column;
  int64_t id =
      static_cast<int64_t>(static_cast<uint64_t>(column) + static_cast<uint64_t>(p.d2t[column]));
  return id >= 0 && id < INT32_MAX ? static_cast<int32_t>(id) : kNoToken;
}

// Writes what a step gave; `status` is that of all steps so far.
SPECFAST_HD void write_markov_draw(const MarkovBlockParams& p, int32_t b, int32_t step,
                                   const MarkovDraw& draw, int32_t status) {
  int64_t at = static_cast<int64_t>(b) * p.num_steps + step;
  p.tokens[at] = markov_target_id(p, draw.column);
  p.records[at] = draw.record;
  p.status[b] = status;
}

void sample_markov_block_cpu(const MarkovBlockParams& p);
void sample_markov_block_cuda(const MarkovBlockParams& p, CUstream_st* stream);

}  // namespace specfast
