#pragma once

#include "core/draft_links.h"
#include "core/row_distribution.h"

namespace specfast {

// Log-probabilities of the emitted tokens, for whoever asks.
struct LogprobParams {
  float* logprobs;  // [B, S] natural logarithm, 0 where nothing is emitted; or null
  bool processed;   // of the filtered distribution; else of softmax(logits) as they come
};

// What one row of a chain leaves for the team that completes the path; the first row's also says
// how far all of them are (chain_row.h).
struct alignas(16) RowOutcome {
  int32_t token;
  int32_t status;
  float logprob;
  int32_t unused[7];
  uint64_t progress;
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
  // [B, N] workspace of the other rules, or null: with it rows of a chain are read at once. 0
  // before its first launch; each leaves `progress` so. Without edits and cap_trim_lens only.
  RowOutcome* outcomes;
};

// One request under a sampled rule: its row at hand, its drafts, its random numbers.
// kStored: rows may have been recorded before. kChain: no node has two children.
template <class Form, bool kStored, bool kChain = false>
struct SampledState {
  using Element = typename Form::Element;
  static constexpr bool kEdited = Form::kEdited;
  static constexpr bool kIsChain = kChain;

  const SampledAcceptParams& p;
  int b;
  Window window{};
  RequestSampling sampling{};
  RowDistribution<Form, kStored> row;
  RequestLinks<kChain> links;
  DraftChildren children{};
  int32_t coin_status = kStatusOk;
  int32_t drawn_node = -1;
  uint32_t drawn_coin = 0;      // of lane 0
  uint64_t drawn_bits = 0;      // of its last draw, where no other node's follows
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

  // `first`: the row that is opened first, where the rows of nodes are known; -1: not yet.
  template <class Team>
  SPECFAST_HD void load(Team& team, int32_t first = 0) {
    // Of a strided batch every row exists, whether it will be looked at or not.
    bool opens_first = kChain && first >= 0 && p.accept.qo_indptr == nullptr;
    if constexpr (kChain) {
      row.logits.divide(team);
      window.base = static_cast<int64_t>(b) * p.accept.num_nodes;
      if (opens_first) row.logits.open_early(team, logits_of(first));
    }
    // What is small is asked for together: each wait is a trip to memory.
    RequestSampling::Given given = RequestSampling::Given::load(p.sampling, b);
    GivenWindow given_window = GivenWindow::load(p.accept, b);
    int32_t prefix_len = p.accept.prefix_lens[b];
    links.load(team, p.accept, b);
    if constexpr (!kChain) row.logits.divide(team);
    window = request_window(p.accept, b, given_window);
    // The row of a node is its own, unless the caller says where rows are.
    bool is_first_known = links.is_chain() || links.tree.retrieve_index == nullptr;
    bool is_visited = first < min_of(window.verified, p.accept.width);
    if (opens_first) {
      if (!is_visited) row.logits.await_copy();
    } else if (is_first_known && is_visited && first >= 0 && !has_stored_rows()) {
      row.logits.open_early(team, logits_of(first));
    }
    sampling = RequestSampling::of(given, p.accept.vocab_size);
    sampling.random.prefix_len = legal_if_given(p.accept, prefix_len);
    if (has_stored_rows()) {
      const StoredRow* of_request = p.stored_rows + static_cast<int64_t>(b) * p.accept.num_nodes;
      SPECFAST_NO_UNROLL
      for (int i = team.rank(); i < window.verified; i += team.size()) stored[i] = of_request[i];
    }
    if constexpr (kEdited) row.logits.edits.load(team, p.sampling, b, p.accept.vocab_size);
    team.sync_part();  // links and edits are loaded
  }

  SPECFAST_HD const Element* logits_of(int32_t index) const {
    return static_cast<const Element*>(p.rows.logits) +
           (window.base + index) * p.rows.logits_stride;
  }

  // Opens verify row `index` of the request, in two halves or at once. The second half is a barrier
  // of the part.
  template <class Team>
  SPECFAST_HD void begin_open(const Team& team, int32_t index) {
    const Element* logits = logits_of(index);
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
  // Also draws the coin of a node, and lets the rule weigh the children of an ordinary row.
  template <class Team, class Weigh = Nothing>
  SPECFAST_HD void finish_open(Team& team, int32_t coin_node, Weigh weigh = {}) {
    if (row.is_restored()) {
      draw_coin(coin_node);
      team.sync_part();  // children are listed before they are looked at
    } else {
      row.finish_open(team, sampling, [&] { draw_coin(coin_node); }, weigh);
    }
  }
  template <class Team>
  SPECFAST_HD void open(Team& team, int32_t index) {
    begin_open(team, index);
    finish_open(team, index);
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
      bool is_drawn = node == drawn_node && lane == 0;
      return Fraction::coin(is_drawn ? drawn_coin : random_coin(node, lane));
    }
    int64_t at = static_cast<int64_t>(b) * p.accept.num_nodes + column;
    GivenCoin coin = GivenCoin::of(p.sampling.accept_coins[at]);
    coin_status |= coin.status;
    return coin.value;
  }

  SPECFAST_HD uint32_t random_coin(int32_t node, int32_t lane) const {
    return sampling.random.words(kAcceptCoin, node, lane).word[0];
  }
  // Ahead of its use, where threads would wait anyway.
  SPECFAST_HD void draw_coin(int32_t node) {
    drawn_node = node;
    drawn_coin = random_coin(node, 0);
    if constexpr (kChain) drawn_bits = sampling.random.bits(kFinalDraw, node, 0);
  }

  // Where in [0, total) the last draw of the round falls.
  SPECFAST_HD uint64_t final_target(int32_t node, uint64_t total) {
    if (p.sampling.final_coins == nullptr) {
      uint64_t bits = kChain ? drawn_bits : sampling.random.bits(kFinalDraw, node, 0);
      return scaled_draw(bits, total);
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
