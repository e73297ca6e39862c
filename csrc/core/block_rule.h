#pragma once

#include "core/residual_weights.h"
#include "core/sampled_walk.h"

namespace specfast {

// Keeps the longest prefix of a chain that its own coin confirms; see docs/numerics.md, "Block".
// `ratio` is r of the article: the joint likelihood ratio of the drafts so far, capped at 1.
struct BlockRule {
  static constexpr bool kStepwise = false;     // decides on the whole chain
  static constexpr bool kStoresRows = true;    // most rows are needed, so all can be read at once
  static constexpr bool kPartsChains = false;  // has much less to do on chains
  static constexpr bool kIsLight = false;      // so little state that an SM has room for many CTAs

  // One draft as its row and q know it.
  struct Draft {
    int32_t token;
    float value;
    float q;
    bool is_bad;

    SPECFAST_HD static Draft of(int32_t token, float value, const ProposalRow& row) {
      Draft draft{token, value, 0.0f, false};
      draft.q = row.base(token, &draft.is_bad) * row.factor();
      return draft;
    }
  };
  Draft* all_drafts = nullptr;  // scratch [N], if rows were recorded

  SPECFAST_HD explicit BlockRule(const SampledAcceptParams&) {}

  template <class Arena>
  SPECFAST_HD void place(Arena& arena, const SampledAcceptParams& p) {
    if (p.stored_rows != nullptr) all_drafts = arena.template scratch<Draft>(p.accept.num_nodes);
  }

  template <class Team, class State>
  SPECFAST_HD void walk(Team& team, State& s, Path& path, float* logprobs) {
    const int32_t* tokens = s.links.chain.tokens;
    int32_t last = s.window.verified - 1;
    int32_t drafts = 0;
    while (drafts < last && tokens[drafts + 1] != kNoToken) ++drafts;

    if (s.has_stored_rows()) look_at_all(team, s, drafts);

    ProposalRow q(s.p.proposal);
    float ratio = 1.0f;
    float kept_ratio = 1.0f;
    int32_t kept = 0;
    int32_t opened = -1;
    int32_t i = 0;
    for (; i < drafts && ratio > 0.0f; ++i) {
      // What is known of the draft is asked for while the row comes.
      s.begin_open(team, i);
      if (!s.has_stored_rows()) q.open(s.b, i, s.p.accept.num_nodes);
      Draft draft = s.has_stored_rows()
                        ? all_drafts[i]
                        : Draft::of(tokens[i + 1], s.row.logits.value(tokens[i + 1]), q);
      s.finish_open(team, i - 1);
      path.status |= s.row.status;
      opened = i;
      if (s.row.kind == kUnusableRow) {
        drafts = i;  // the chain ends here: its last prefix stands for itself
        break;
      }
      if (i > 0 && confirms(team, s, q, i, ratio, draft)) {
        kept = i;
        kept_ratio = ratio;
      }
      if (logprobs != nullptr) note_logprob(team, s, logprobs, i, draft.token);
      ratio = next_ratio(s, ratio, draft, &path.status);
      s.append(team, draft.token);
    }
    bool all = i == drafts && ratio > 0.0f;
    if (all && drafts > 0) {
      Fraction coin = s.accept_coin(drafts - 1, 0, drafts - 1);
      all = coin.value() < static_cast<double>(ratio);
    }
    if (all) kept = drafts;

    // The row may be open, but its edits have seen the draft after it.
    if constexpr (State::kEdited) s.row.logits.edits.truncate_path(kept);
    if (opened != kept) {
      s.open(team, kept);
      path.status |= s.row.status;
    }
    // A bad id is met once all drafts before it are kept, by a row that could go on.
    if (all && drafts < last && s.row.kind != kUnusableRow) path.status |= kBadToken;
    Drawn next = finish(team, s, q, kept, all, kept_ratio);
    path.status |= next.status;
    if (logprobs != nullptr) note_logprob(team, s, logprobs, kept, next.token);
    for (int32_t row = team.rank(); row <= kept; row += team.size()) {
      path.rows[row] = row;
      path.tokens[row] = row < kept ? tokens[row + 1] : next.token;
    }
    path.length = kept + 1;
    path.last_node = kept;
  }

 private:
  template <class Team, class State>
  SPECFAST_HD void look_at_all(Team& team, const State& s, int32_t drafts) {
    ProposalRow q(s.p.proposal);
    SPECFAST_NO_UNROLL
    for (int32_t i = team.rank(); i < drafts; i += team.size()) {
      int32_t token = s.links.chain.tokens[i + 1];
      q.open(s.b, i, s.p.accept.num_nodes);
      all_drafts[i] = Draft::of(token, to_float(s.logits_of(i)[token]), q);
    }
    team.sync_part();  // written before any is looked at
  }

  template <class Team, class State>
  SPECFAST_HD static void note_logprob(Team& team, State& s, float* logprobs, int32_t at,
                                       int32_t token) {
    float logprob = token_logprob(team, s.row, token, s.p.logprobs.processed, s.sampling.scale);
    if (team.rank() == 0) logprobs[at] = logprob;
  }

  template <class State>
  SPECFAST_HD static auto rest_of(const State& s, const ProposalRow& q, float ratio) {
    return ResidualWeights{s.row.kept, q, ratio, inverse_mass(s.row.mass), q.factor()};
  }

  // Whether the coin of the first `i` drafts is below Z / (Z + 1 - r), where Z is the mass of
  // max(r p - q, 0) in the row at hand. On a point mass q counts as sure of its draft.
  template <class Team, class State>
  SPECFAST_HD static bool confirms(Team& team, State& s, ProposalRow& q, int32_t i, float ratio,
                                   Draft draft) {
    double coin = s.accept_coin(i - 1, 0, i - 1).value();
    double missing = 1.0 - static_cast<double>(ratio);
    auto excess = [&](double z) { return z - coin * (z + missing); };  // grows with z
    if (s.row.kind == kPointMass) {
      return excess(as_share(draft.token == s.row.argmax ? 0 : to_mass(ratio))) > 0.0;
    }
    // Two tokens often decide: Z is at least what they have of it, and at most what they leave of r
    // in min(r p, q). Both to within all roundings of a sum over 2^20 tokens.
    constexpr double kSumError = 1e-5;
    constexpr double kError = 1e-9;
    float p_factor = inverse_mass(s.row.mass);
    float p = s.row.weight_of(draft.token, draft.value) * p_factor;
    uint64_t least = to_mass(residual_of(ratio, p, draft.q));
    double most = static_cast<double>(ratio) - min_of(ratio * p, draft.q);
    if (s.has_stored_rows()) q.open(s.b, i, s.p.accept.num_nodes);
    if (draft.token != s.row.argmax) {
      float p_best = s.row.kept.one(s.row.argmax, s.row.kept.weights.max) * p_factor;
      float q_best = q.base(s.row.argmax) * q.factor();
      least += to_mass(residual_of(ratio, p_best, q_best));
      most -= min_of(ratio * p_best, q_best);
    }
    if (excess(as_share(least)) > kError) return true;
    if (excess(most + kSumError) < -kError) return false;
    double z = as_share(s.row.sum(team, rest_of(s, q, ratio)));
    return coin * (z + missing) < z;
  }
  SPECFAST_HD static double as_share(uint64_t mass) {
    return static_cast<double>(mass) * static_cast<double>(kInverseMassScale);
  }

  template <class State>
  SPECFAST_HD static float next_ratio(const State& s, float ratio, Draft draft, int32_t* status) {
    if (s.row.kind == kPointMass) return draft.token == s.row.argmax ? ratio : 0.0f;
    if (draft.is_bad) *status |= kBadQ;
    if (!(draft.q > 0.0f)) return 0.0f;
    float p = s.row.weight_of(draft.token, draft.value) * inverse_mass(s.row.mass);
    float next = ratio * p / draft.q;
    return next < 1.0f ? next : 1.0f;
  }

  template <class Team, class State>
  SPECFAST_HD static Drawn finish(Team& team, State& s, ProposalRow& q, int32_t kept, bool all,
                                  float ratio) {
    auto target = [&](uint64_t total) { return s.final_target(kept, total); };
    if (all || s.row.kind != kOrdinaryRow) return s.row.draw(team, Exclusions{}, target);
    q.open(s.b, kept, s.p.accept.num_nodes);
    auto rest = rest_of(s, q, ratio);
    uint64_t total = s.row.sum(team, rest);
    if (total == 0) return {s.row.last_kept(team), kZeroResidual};
    return {s.row.find(team, rest, target(total)), kStatusOk};
  }
};

}  // namespace specfast
