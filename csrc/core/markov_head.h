#pragma once

#include "core/low_rank.h"
#include "core/sigmoid.h"
#include "core/team.h"

namespace specfast {

enum class MarkovKind : int32_t { kVanilla, kGated, kRnn };

// What a Markov head makes of the embedding x of the token before a row, before w2 is applied:
//
//   vanilla  x
//   gated    sigmoid(z) x                    z = hidden + projection x,       of r numbers
//   rnn      tanh(o)                         g, c, o = hidden + projection [s, x],  of r numbers
//   each
//            and s becomes sigmoid(g) s + (1 - sigmoid(g)) tanh(c), zeros before the first row
//
// `hidden` is what the row's hidden state has a part in, the bias included: it waits for no token.
struct MarkovHead {
  MarkovKind kind;
  const void* projection;     // gated [r, r], rnn [3 r, 2 r]; of the type of w1
  int64_t projection_stride;  // elements between its rows
  const float* hidden_rows;   // [B, G, r], [B, G, 3 r]

  // Blocks of r numbers that the projection takes, and that it gives.
  SPECFAST_HD int32_t inputs() const { return kind == MarkovKind::kRnn ? 2 : 1; }
  SPECFAST_HD int32_t outputs() const { return kind == MarkovKind::kRnn ? 3 : 1; }
};

// Gated and recurrent heads, for a few rows of one part of a team after the other. Sums are those
// of weighted_sum. What is kept of a row is only touched by the thread that owns the number, the
// same one in every call.
template <class W>
class MarkovMixer {
 public:
  template <class Arena>
  SPECFAST_HD void place(Arena& arena, const MarkovHead& head, int32_t rank, int32_t num_rows) {
    if (head.kind == MarkovKind::kVanilla) return;
    head_ = head;
    rank_ = rank;
    joined_ = arena.template scratch<float>(head.inputs() * rank);
    sums_ = arena.template scratch<float>(head.outputs() * rank);
    if (head.kind == MarkovKind::kRnn) states_ = arena.template scratch<float>(num_rows * rank);
  }

  template <class Team>
  SPECFAST_HD void forget(Team& team, int32_t num_rows) {
    if (states_ == nullptr) return;
    for (int32_t row = 0; row < num_rows; ++row) {
      for (int32_t k = team.rank(); k < rank_; k += team.size()) states_[row * rank_ + k] = 0.0f;
    }
  }

  // Calls put(k, value) for every number k that w2 is applied to, rounded to its type; `step`
  // counts the rows of `hidden_rows`.
  template <class Team, class Put>
  SPECFAST_HD void mix(Team& team, int32_t row, const W* embedding, int64_t step, const Put& put) {
    bool recurs = head_.kind == MarkovKind::kRnn;
    float* x = joined_ + (recurs ? rank_ : 0);
    for (int32_t k = team.rank(); k < rank_; k += team.size()) {
      x[k] = to_float(embedding[k]);
      if (recurs) joined_[k] = states_[row * rank_ + k];
    }
    team.sync_part();  // all that is joined is here
    int32_t inputs = head_.inputs() * rank_;
    int32_t outputs = head_.outputs() * rank_;
    const W* weights = static_cast<const W*>(head_.projection);
    const float* hidden = head_.hidden_rows + step * outputs;
    for (int32_t i = team.rank(); i < outputs; i += team.size()) {
      sums_[i] = hidden[i] + weighted_sum(weights + i * head_.projection_stride, joined_, inputs);
    }
    team.sync_part();  // sums are here; nobody reads what is joined but its owner
    for (int32_t k = team.rank(); k < rank_; k += team.size()) {
      float gate = sigmoid(sums_[k]);
      float mixed = gate * x[k];
      if (recurs) {
        float kept = gate * joined_[k];
        states_[row * rank_ + k] = kept + (1.0f - gate) * tanh_by_sigmoid(sums_[rank_ + k]);
        mixed = tanh_by_sigmoid(sums_[2 * rank_ + k]);
      }
      put(k, rounded_to<W>(mixed));
    }
  }

 private:
  MarkovHead head_{};
  int32_t rank_ = 0;
  float* joined_ = nullptr;  // scratch [inputs, r]: state, embedding
  float* sums_ = nullptr;    // scratch [outputs, r]
  float* states_ = nullptr;  // scratch [num_rows, r]
};

}  // namespace specfast
