#pragma once

#include "core/draft_links.h"
#include "core/row_distribution.h"

namespace specfast {

// Log-probabilities of the emitted tokens, for whoever asks.
struct LogprobParams {
  float* logprobs;  // [B, S] natural logarithm, 0 where nothing is emitted; or null
  bool processed;   // of the filtered distribution; else of softmax(logits) as they come
};

// What every sampled accept takes.
struct SampledAcceptParams {
  AcceptParams accept;
  TargetRows rows;  // logits
  DraftLinks links;
  SamplingParams sampling;
  ProposalParams proposal;  // rules with q
  float threshold_single;   // target-only, in [0, 1]; both 1: lossless
  float threshold_acc;
  LogprobParams logprobs;
  // [B, N] workspace of the block rule, or null: rows are read one after the other. With it all
  // rows are recorded first, at once. Without edits only: those depend on the path.
  StoredRow* stored_rows;
};

// One request under a sampled rule: its row at hand, its drafts, its random numbers.
// kStored: rows may have been recorded before.
template <class T, bool kEdited, bool kStored>
struct SampledState {
  static constexpr bool kHasEdits = kEdited;

  const SampledAcceptParams& p;
  int b;
  Window window{};
  RequestSampling sampling{};
  RowDistribution<T, kEdited, kStored> row;
  RequestLinks links;
  DraftChildren children{};
  int32_t coin_status = kStatusOk;
  StoredRow* stored = nullptr;  // scratch [N], if rows were recorded

  SPECFAST_HD SampledState(const SampledAcceptParams& params, int request, int32_t groups_to_keep)
      : p(params), b(request), row(params.accept.vocab_size, groups_to_keep), links(params.links) {}

  template <class Arena>
  SPECFAST_HD void place(Arena& arena) {
    row.place(arena, p.accept.width);
    links.place(arena, p.accept);
    children.place(arena, p.accept.num_nodes);
    if (has_stored_rows()) stored = arena.template scratch<StoredRow>(p.accept.num_nodes);
  }

  SPECFAST_HD bool has_stored_rows() const { return kStored && p.stored_rows != nullptr; }

  template <class Team>
  SPECFAST_HD void load(Team& team) {
    row.logits.divide(team);
    window = request_window(p.accept, b);
    sampling = RequestSampling::load(p.sampling, b, p.accept.vocab_size);
    sampling.random.prefix_len = legal_prefix_len(p.accept, b);
    links.load(team, p.accept, b);
    if (has_stored_rows()) {
      const StoredRow* of_request = p.stored_rows + static_cast<int64_t>(b) * p.accept.num_nodes;
      SPECFAST_NO_UNROLL
      for (int i = team.rank(); i < window.verified; i += team.size()) stored[i] = of_request[i];
    }
    if constexpr (kEdited) row.logits.edits.load(team, p.sampling, b, p.accept.vocab_size);
    team.sync_part();  // links and edits are loaded
  }

  SPECFAST_HD const T* logits_of(int32_t index) const {
    return static_cast<const T*>(p.rows.logits) + (window.base + index) * p.rows.logits_stride;
  }

  // Opens verify row `index` of the request, in two halves or at once. The second half is a barrier
  // of the part.
  template <class Team>
  SPECFAST_HD void begin_open(const Team& team, int32_t index) {
    const T* logits = logits_of(index);
    if constexpr (kStored) {
      if (has_stored_rows()) {
        row.restore(stored[index].record, stored[index].status, logits);
        return;
      }
    }
    const int32_t* bitmask = p.sampling.token_bitmask;
    if (bitmask != nullptr) bitmask += (window.base + index) * p.sampling.token_bitmask_stride;
    row.begin_open(team, logits, bitmask);
  }
  template <class Team>
  SPECFAST_HD void finish_open(Team& team) {
    if (row.is_restored()) {
      team.sync_part();  // children are listed before they are looked at
    } else {
      row.finish_open(team, sampling);
    }
  }
  template <class Team>
  SPECFAST_HD void open(Team& team, int32_t index) {
    begin_open(team, index);
    finish_open(team);
  }

  // Lists the children of a node below `limit`, and what the opened row says of their tokens. A
  // barrier follows before they are looked at.
  template <class Team>
  SPECFAST_HD void list_children(Team& team, int32_t node, int32_t limit) {
    links.list_children(team, node, limit, window.num_nodes, children);
    SPECFAST_NO_UNROLL
    for (int32_t i = team.rank(); i < children.count; i += team.size()) {
      int32_t token = children.tokens[i];
      children.values[i] = token == kNoToken ? -INFINITY : row.logits.value(token);
    }
  }

  SPECFAST_HD Fraction accept_coin(int32_t node, int32_t lane, int32_t column) {
    if (p.sampling.accept_coins == nullptr) {
      return Fraction::coin(sampling.random.words(kAcceptCoin, node, lane).word[0]);
    }
    int64_t at = static_cast<int64_t>(b) * p.accept.num_nodes + column;
    GivenCoin coin = GivenCoin::of(p.sampling.accept_coins[at]);
    coin_status |= coin.status;
    return coin.value;
  }

  // Where in [0, total) the last draw of the round falls.
  SPECFAST_HD uint64_t final_target(int32_t node, uint64_t total) {
    if (p.sampling.final_coins == nullptr) {
      return scaled_draw(sampling.random.bits(kFinalDraw, node, 0), total);
    }
    GivenCoin coin = GivenCoin::of(p.sampling.final_coins[b]);
    coin_status |= coin.status;
    return fraction_of(coin.value, total);
  }

  // A draft was accepted: later rows of this request see its token.
  template <class Team>
  SPECFAST_HD void append(Team& team, int32_t token) {
    if constexpr (kEdited) {
      team.sync_part();  // the row has been looked at without it
      row.logits.edits.append(team, token);
      team.sync_part();  // written before the next row looks at it
    }
  }

  // The first child that carries the only token of a point mass, -1 if none.
  SPECFAST_HD int32_t child_with(int32_t token, int32_t* status) const {
    for (int32_t i = 0; i < children.count; ++i) {
      if (children.tokens[i] == token) return i;
      if (children.tokens[i] == kNoToken) *status |= kBadToken;
    }
    *status |= children.end_status;
    return -1;
  }
};

}  // namespace specfast
