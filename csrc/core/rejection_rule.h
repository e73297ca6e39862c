#pragma once

#include "core/residual_weights.h"
#include "core/sampled_walk.h"

namespace specfast {

// What is left of p after some drafts of q were rejected, as a function of one token's p and q:
//
//   P_1 = p, R_j = max(P_j - Q_j, 0), P_(j+1) = R_j * scales[j]
//
// where Q_j is q without the tokens that were tried before, renormalised.
struct Residual {
  struct Level {
    float q_factor;  // makes Q_j of the token's base
    float scale;     // makes P_(j+1) of R_j
  };
  Level* levels = nullptr;   // scratch [N]
  int32_t* tried = nullptr;  // scratch [N] token of each level
  int32_t count = 0;

  // For tokens with ids from `id` on: p becomes what is left of it.
  template <int kTokens>
  SPECFAST_HD void reduce(int32_t id, float (&p)[kTokens], float (&base)[kTokens]) const {
    SPECFAST_NO_UNROLL
    for (int32_t j = 0; j < count; ++j) {
      Level level = levels[j];
      float scale = j + 1 < count ? level.scale : 1.0f;
      int32_t gone = tried[j] - id;
      SPECFAST_UNROLL
      for (int k = 0; k < kTokens; ++k) {
        float rest = p[k] - base[k] * level.q_factor;
        p[k] = rest > 0.0f ? rest * scale : 0.0f;
        base[k] = k == gone ? 0.0f : base[k];
      }
    }
  }
  SPECFAST_HD float rest(int32_t id, float p_token, float base_of_token) const {
    float p[1] = {p_token};
    float base[1] = {base_of_token};
    reduce(id, p, base);
    return p[0];
  }
};

// The residual as weights of an ordinary row's tokens.
template <class Kept>
struct RecursiveResidualWeights {
  static constexpr bool kFetches = true;

  Kept kept;
  const ProposalRow& q;
  const Residual& residual;
  float p_factor;

  SPECFAST_HD float one(int32_t id, float value) const {
    float weight = kept.one(id, value);
    return weight == 0.0f ? 0.0f : residual.rest(id, weight * p_factor, q.base(id));
  }
  SPECFAST_HD void fetch(int32_t id, float (&out)[kGroupIds]) const { q.fetch(id, out); }
  SPECFAST_HD void group(int32_t id, const float (&values)[kGroupIds], float (&fetched)[kGroupIds],
                         float (&out)[kGroupIds]) const {
    q.make_bases(id, fetched);
    SPECFAST_UNROLL
    for (int i = 0; i < kGroupIds; ++i) out[i] = kept.one(id + i, values[i]) * p_factor;
    residual.reduce(id, out, fetched);
  }
  SPECFAST_HD uint64_t group_mass(int32_t id, const float (&values)[kGroupIds],
                                  float (&fetched)[kGroupIds]) const {
    float out[kGroupIds];
    group(id, values, fetched, out);
    return mass_of_weights(out);
  }
};
template <class Kept>
RecursiveResidualWeights(Kept, const ProposalRow&, const Residual&, float)
    -> RecursiveResidualWeights<Kept>;

// q itself as weights of a row's tokens.
struct ProposalWeights {
  static constexpr bool kFetches = true;

  const ProposalRow& q;
  int32_t vocab_size;  // of the target

  SPECFAST_HD void fetch(int32_t id, float (&out)[kGroupIds]) const { q.fetch(id, out); }
  SPECFAST_HD uint64_t group_mass(int32_t id, const float (&)[kGroupIds],
                                  float (&fetched)[kGroupIds]) const {
    q.make_bases(id, fetched);
    SPECFAST_UNROLL
    for (int i = 0; i < kGroupIds; ++i) fetched[i] = id + i < vocab_size ? fetched[i] : 0.0f;
    return mass_of_weights(fetched);
  }
};

// Accept with min(1, p / q), else the residual; see docs/numerics.md, "Rejection".
struct RejectionRule {
  static constexpr bool kStepwise = true;  // decides row by row
  static constexpr bool kStoresRows = false;
  static constexpr bool kPartsChains = true;  // has much less to do on chains
  static constexpr bool kIsLight = false;     // so little state that an SM has room for many CTAs

  Residual residual;
  uint64_t residual_mass = 0;
  ProposalRow q;  // of the node at hand
  struct Base {
    float value;
    bool is_bad;
  };
  Base* bases = nullptr;  // scratch [N], of the children

  SPECFAST_HD explicit RejectionRule(const SampledAcceptParams& p) : q(p.proposal) {}

  template <class Arena>
  SPECFAST_HD void place(Arena& arena, const SampledAcceptParams& p) {
    residual.levels = arena.template scratch<Residual::Level>(p.accept.num_nodes);
    residual.tried = arena.template scratch<int32_t>(p.accept.num_nodes);
    bases = arena.template scratch<Base>(p.accept.num_nodes);
  }

  // Asks for what q says of the children while the row comes. A barrier follows before `choose`.
  template <class Team, class State>
  SPECFAST_HD void look_ahead(const Team& team, const State& s, int32_t node) {
    // In a large batch memory is the limit, and what may not be read is better left alone.
    constexpr int32_t kSmallBatch = 16;
    q.open(s.b, node, s.p.accept.num_nodes);
    if (s.p.accept.batch_size <= kSmallBatch && s.children.count > 0) {
      const auto& logits = s.row.logits;
      GroupRange mine = logits.subgroup_range(team.subgroup());
      q.bring_near(team, logits.first_id(mine.begin), logits.first_id(mine.end));
    }
    SPECFAST_NO_UNROLL
    for (int32_t i = team.rank(); i < s.children.count; i += team.size()) {
      int32_t token = s.children.tokens[i];
      Base& base = bases[i];
      if (token != kNoToken) base.value = q.base(token, &base.is_bad);
    }
  }

  template <class Team, class State>
  SPECFAST_HD void weigh(const Team&, State&) const {}

  template <class Team, class State>
  SPECFAST_HD void walk(Team& team, State& s, Path& path, float* logprobs) {
    sampled_walk(team, s, *this, path, logprobs);
  }

  template <class Team, class State>
  SPECFAST_HD int32_t choose(Team& team, State& s, int32_t node, int32_t* status) {
    const DraftChildren& children = s.children;
    residual.count = 0;
    if (s.row.kind != kOrdinaryRow) return s.child_with(s.row.argmax, status);
    float p_factor = inverse_mass(s.row.mass);
    float q_factor = q.factor();
    uint64_t q_left = 0;
    for (int32_t i = 0; i < children.count; ++i) {
      int32_t token = children.tokens[i];
      if (token == kNoToken) {
        *status |= kBadToken;
        continue;
      }
      if constexpr (!State::kIsChain) {
        if (residual.count > 0) {
          scale_last_level(team);
          q_factor = next_q_factor(team, s, &q_left);
        }
      }
      float base = bases[i].value;
      if (bases[i].is_bad) *status |= kBadQ;
      float q_token = base * q_factor;
      for (int32_t j = 0; j < residual.count; ++j) {
        if (residual.tried[j] == token) q_token = 0.0f;
      }
      float p_token = s.row.weight_of(token, children.values[i]) * p_factor;
      p_token = residual.rest(token, p_token, base);
      if (residual.count > 0) p_token = p_token * residual.levels[residual.count - 1].scale;
      Fraction coin = s.accept_coin(node, i, children.nodes[i] - 1);
      double scaled = coin.value() * q_token;
      if (q_token > 0.0f && p_token > 0.0f && scaled < p_token) return i;
      if constexpr (State::kIsChain) {
        residual.count = 1;  // the only child, whose residual is first asked for by finish
      } else {
        reject(team, token, q_factor);
        weigh_residual(team, s, p_factor);
      }
    }
    *status |= children.end_status;
    return -1;
  }

  template <class Team, class State>
  SPECFAST_HD Drawn finish(Team& team, State& s, int32_t node) {
    auto target = [&](uint64_t total) { return s.final_target(node, total); };
    if (residual.count == 0) return s.row.draw(team, Exclusions{}, target);
    float p_factor = inverse_mass(s.row.mass);
    if constexpr (State::kIsChain) weigh_residual(team, s, p_factor);
    if (residual_mass == 0) return {s.row.last_kept(team), kZeroResidual};
    return {s.row.find(team, rest_of(s, p_factor), target(residual_mass)), kStatusOk};
  }

 private:
  template <class State>
  SPECFAST_HD auto rest_of(const State& s, float p_factor) const {
    if constexpr (State::kIsChain) {
      return ResidualWeights{s.row.kept, q, 1.0f, p_factor, q.factor()};
    } else {
      return RecursiveResidualWeights{s.row.kept, q, residual, p_factor};
    }
  }

  template <class Team>
  SPECFAST_HD void reject(Team& team, int32_t token, float q_factor) {
    team.sync_part();  // the levels before have been looked at
    if (team.rank() == 0) {
      residual.tried[residual.count] = token;
      residual.levels[residual.count] = {q_factor, 0.0f};
    }
    ++residual.count;
    team.sync_part();  // the level is written
  }
  template <class Team, class State>
  SPECFAST_HD void weigh_residual(Team& team, State& s, float p_factor) {
    residual_mass = s.row.sum(team, rest_of(s, p_factor));
  }

  // The last level is followed by another one.
  template <class Team>
  SPECFAST_HD void scale_last_level(Team& team) {
    if (team.rank() == 0) residual.levels[residual.count - 1].scale = inverse_mass(residual_mass);
    team.sync_part();  // its scale is written
  }

  // The factor of q without the tokens tried so far.
  template <class Team, class State>
  SPECFAST_HD float next_q_factor(Team& team, State& s, uint64_t* left) {
    bool masses_are_weights = q.has_record();
    if (residual.count == 1) {
      *left = q.record_mass();
      if (!masses_are_weights) {
        *left = s.row.sum_of_row(team, ProposalWeights{q, s.p.accept.vocab_size});
      }
    }
    int32_t last = residual.count - 1;
    bool repeated = false;
    for (int32_t j = 0; j < last; ++j) repeated |= residual.tried[j] == residual.tried[last];
    if (!repeated) *left -= min_of(*left, to_mass(q.base(residual.tried[last])));
    return inverse_mass(*left);
  }
};

}  // namespace specfast
