#pragma once

#include "core/proposal.h"
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

  SPECFAST_HD float rest(int32_t id, float p, float base) const {
    for (int32_t j = 0; j < count; ++j) {
      float q = base * levels[j].q_factor;
      for (int32_t i = 0; i < j; ++i) {
        if (tried[i] == id) q = 0.0f;
      }
      p = p - q;
      p = p > 0.0f ? p : 0.0f;
      if (j + 1 < count) p = p * levels[j].scale;
    }
    return p;
  }
};

// Accept with min(1, p / q), else the residual; see docs/numerics.md, "Rejection".
struct RejectionRule {
  static constexpr bool kStepwise = true;  // decides row by row

  Residual residual;
  uint64_t residual_mass = 0;

  template <class Arena>
  SPECFAST_HD void place(Arena& arena, const SampledAcceptParams& p) {
    residual.levels = arena.template scratch<Residual::Level>(p.accept.num_nodes);
    residual.tried = arena.template scratch<int32_t>(p.accept.num_nodes);
  }

  template <class Team, class State>
  SPECFAST_HD void walk(Team& team, State& s, Path& path, float* logprobs) {
    sampled_walk(team, s, *this, path, logprobs);
  }

  template <class Team, class State>
  SPECFAST_HD int32_t choose(Team& team, State& s, int32_t node, int32_t* status) {
    const DraftChildren& children = s.children;
    residual.count = 0;
    if (s.row.kind != kOrdinaryRow) return s.child_with(s.row.argmax, status);
    ProposalRow q(s.p.proposal);
    q.open(s.b, node, s.p.accept.num_nodes);
    float p_factor = inverse_mass(s.row.mass);
    float q_factor = q.factor();
    uint64_t q_left = 0;
    for (int32_t i = 0; i < children.count; ++i) {
      int32_t token = children.tokens[i];
      if (token == kNoToken) {
        *status |= kBadToken;
        continue;
      }
      if (residual.count > 0) q_factor = next_q_factor(team, s, q, &q_left);
      bool bad;
      float base = q.base(token, &bad);
      if (bad) *status |= kBadQ;
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
      reject(team, s, q, p_factor, token, q_factor);
    }
    *status |= children.end_status;
    return -1;
  }

  template <class Team, class State>
  SPECFAST_HD Drawn finish(Team& team, State& s, int32_t node) {
    auto target = [&](uint64_t total) { return s.final_target(node, total); };
    if (residual.count == 0) return s.row.draw(team, Exclusions{}, target);
    if (residual_mass == 0) return {s.row.last_kept(team), kZeroResidual};
    ProposalRow q(s.p.proposal);
    q.open(s.b, node, s.p.accept.num_nodes);
    float p_factor = inverse_mass(s.row.mass);
    return {s.row.find(team, rest_of(s, q, p_factor), target(residual_mass)), kStatusOk};
  }

 private:
  template <class State>
  SPECFAST_HD auto rest_of(const State& s, const ProposalRow& q, float p_factor) const {
    return [&s, &q, p_factor, this](int32_t id, float value) {
      float weight = s.row.weight_of(id, value);
      return weight == 0.0f ? 0.0f : residual.rest(id, weight * p_factor, q.base(id));
    };
  }

  template <class Team, class State>
  SPECFAST_HD void reject(Team& team, State& s, const ProposalRow& q, float p_factor, int32_t token,
                          float q_factor) {
    team.sync_part();  // the levels before have been looked at
    if (team.rank() == 0) {
      residual.tried[residual.count] = token;
      residual.levels[residual.count] = {q_factor, 0.0f};
    }
    ++residual.count;
    team.sync_part();  // the level is written
    residual_mass = s.row.sum(team, rest_of(s, q, p_factor));
    if (team.rank() == 0) residual.levels[residual.count - 1].scale = inverse_mass(residual_mass);
    team.sync_part();  // its scale is written
  }

  // The factor of q without the tokens tried so far.
  template <class Team, class State>
  SPECFAST_HD float next_q_factor(Team& team, State& s, const ProposalRow& q, uint64_t* left) {
    bool masses_are_weights = q.has_record();
    if (residual.count == 1) {
      *left = q.record_mass();
      if (!masses_are_weights) {
        auto base_of = [&](int32_t id, float) {
          return id < s.p.accept.vocab_size ? q.base(id) : 0.0f;
        };
        *left = s.row.masses.sum(team, s.row.exchange, s.row.row, base_of);
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
