#pragma once

#include "core/proposal.h"
#include "core/sampled_walk.h"

namespace specfast {

// Keeps the longest prefix of a chain that its own coin confirms; see docs/numerics.md, "Block".
// `ratio` is r of the article: the joint likelihood ratio of the drafts so far, capped at 1.
struct BlockRule {
  static constexpr bool kStepwise = false;  // decides row by row

  template <class Arena>
  SPECFAST_HD void place(Arena&, const SampledAcceptParams&) {}

  template <class Team, class State>
  SPECFAST_HD void walk(Team& team, State& s, Path& path, float* logprobs) {
    const int32_t* tokens = s.links.chain.tokens;
    int32_t last = s.window.verified - 1;
    int32_t drafts = 0;
    while (drafts < last && tokens[drafts + 1] != kNoToken) ++drafts;

    ProposalRow q(s.p.proposal);
    float ratio = 1.0f;
    float kept_ratio = 1.0f;
    int32_t kept = 0;
    int32_t opened = -1;
    int32_t i = 0;
    for (; i < drafts && ratio > 0.0f; ++i) {
      open_row(team, s, path, i);
      opened = i;
      if (s.row.kind == kUnusableRow) {
        drafts = i;  // the chain ends here: its last prefix stands for itself
        break;
      }
      q.open(s.b, i, s.p.accept.num_nodes);
      int32_t draft = tokens[i + 1];
      if (i > 0 && confirms(s, i, residual_mass(team, s, q, ratio, draft), ratio)) {
        kept = i;
        kept_ratio = ratio;
      }
      if (logprobs != nullptr) note_logprob(team, s, logprobs, i, draft);
      ratio = next_ratio(s, q, ratio, draft, &path.status);
      s.append(team, draft);
    }
    bool all = i == drafts && ratio > 0.0f;
    if (all && drafts > 0) {
      Fraction coin = s.accept_coin(drafts - 1, 0, drafts - 1);
      all = coin.value() < static_cast<double>(ratio);
    }
    if (all) kept = drafts;

    // The row may be open, but its edits have seen the draft after it.
    if constexpr (State::kHasEdits) s.row.row.edits.truncate_path(kept);
    if (opened != kept) open_row(team, s, path, kept);
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
  SPECFAST_HD static void open_row(Team& team, State& s, Path& path, int32_t row) {
    s.open(team, row);
    path.status |= s.row.status;
  }

  template <class Team, class State>
  SPECFAST_HD static void note_logprob(Team& team, State& s, float* logprobs, int32_t at,
                                       int32_t token) {
    float logprob = token_logprob(team, s.row, token, s.p.logprobs.processed, s.sampling.scale);
    if (team.rank() == 0) logprobs[at] = logprob;
  }

  template <class State>
  SPECFAST_HD static auto rest_of(const State& s, const ProposalRow& q, float ratio) {
    float p_factor = inverse_mass(s.row.mass);
    float q_factor = q.factor();
    return [&s, &q, ratio, p_factor, q_factor](int32_t id, float value) {
      float weight = s.row.weight_of(id, value);
      if (weight == 0.0f) return 0.0f;
      float rest = fmaf(ratio, weight * p_factor, -(q.base(id) * q_factor));
      return rest > 0.0f ? rest : 0.0f;
    };
  }

  // Mass of max(r p - q, 0). On a point mass q counts as sure of its draft.
  template <class Team, class State>
  SPECFAST_HD static uint64_t residual_mass(Team& team, State& s, const ProposalRow& q, float ratio,
                                            int32_t draft) {
    if (s.row.kind == kPointMass) return draft == s.row.argmax ? 0 : to_mass(ratio);
    return s.row.sum(team, rest_of(s, q, ratio));
  }

  // Whether the coin of the first `i` drafts is below Z / (Z + 1 - r).
  template <class State>
  SPECFAST_HD static bool confirms(State& s, int32_t i, uint64_t residual, float ratio) {
    Fraction coin = s.accept_coin(i - 1, 0, i - 1);
    double z = static_cast<double>(residual) * static_cast<double>(kInverseMassScale);
    double whole = z + (1.0 - static_cast<double>(ratio));
    return coin.value() * whole < z;
  }

  template <class State>
  SPECFAST_HD static float next_ratio(const State& s, const ProposalRow& q, float ratio,
                                      int32_t draft, int32_t* status) {
    if (s.row.kind == kPointMass) return draft == s.row.argmax ? ratio : 0.0f;
    bool bad;
    float q_draft = q.base(draft, &bad) * q.factor();
    if (bad) *status |= kBadQ;
    if (!(q_draft > 0.0f)) return 0.0f;
    float p_draft = s.row.weight_of(draft, s.row.row.value(draft)) * inverse_mass(s.row.mass);
    float next = ratio * p_draft / q_draft;
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
