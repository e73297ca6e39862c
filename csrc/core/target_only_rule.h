#pragma once

#include "core/sampled_walk.h"

namespace specfast {

// One coin per row; see docs/numerics.md, "Target-only".
struct TargetOnlyRule {
  static constexpr bool kStepwise = true;  // decides row by row
  static constexpr bool kStoresRows = false;
  static constexpr bool kPartsChains = false;  // has much less to do on chains
  static constexpr bool kIsLight = true;       // so little state that an SM has room for many CTAs

  template <class Params>
  SPECFAST_HD explicit TargetOnlyRule(const Params&) {}

  template <class Arena>
  SPECFAST_HD void place(Arena&, const SampledAcceptParams&) {}
  template <class Team, class State>
  SPECFAST_HD void look_ahead(const Team&, const State&, int32_t) {}

  template <class Team, class State>
  SPECFAST_HD void walk(Team& team, State& s, Path& path, float* logprobs) {
    sampled_walk(team, s, *this, path, logprobs);
  }

  // The masses of the children of an ordinary row, by thread: those of tokens that came before and
  // of bad ids are 0.
  template <class Team, class State>
  SPECFAST_HD void weigh(const Team& team, State& s) const {
    DraftChildren& children = s.children;
    SPECFAST_NO_UNROLL
    for (int32_t i = team.rank(); i < children.count; i += team.size()) {
      int32_t token = children.tokens[i];
      bool repeated = token == kNoToken;
      SPECFAST_NO_UNROLL
      for (int32_t j = 0; j < i; ++j) repeated |= children.tokens[j] == token;
      children.masses[i] = repeated ? 0 : s.row.mass_of(token, children.values[i]);
    }
  }

  // The accepted child of the row's node, by its number in sibling order, or -1.
  template <class Team, class State>
  SPECFAST_HD int32_t choose(Team&, State& s, int32_t node, int32_t* status) {
    DraftChildren& children = s.children;
    auto& row = s.row;
    if (row.kind != kOrdinaryRow) return s.child_with(row.argmax, status);
    // Of a row without a child to accept no coin is looked at.
    Fraction coin = children.has_token ? s.accept_coin(node, 0, node) : Fraction{0, 0};
    // As a rule both thresholds are 1, which takes less to multiply by.
    float acc_threshold = max_of(s.p.threshold_acc, 1e-9f);
    uint64_t spent = acc_threshold < 1.0f ? product_of(coin, Fraction::of(acc_threshold), row.mass)
                                          : fraction_of(coin, row.mass);
    float single_threshold = s.p.threshold_single;
    uint64_t single = single_threshold < 1.0f
                          ? fraction_above(Fraction::of(single_threshold), row.mass)
                          : row.mass;
    uint64_t acc = 0;
    for (int32_t i = 0; i < children.count; ++i) {
      uint64_t mass = children.masses[i];
      if (children.tokens[i] == kNoToken) *status |= kBadToken;
      acc += mass;
      if (mass > 0 && (mass >= single || spent < acc)) {
        return i;
      }
    }
    *status |= children.end_status;
    return -1;
  }

  // The token after a row whose children were all rejected.
  template <class Team, class State>
  SPECFAST_HD Drawn finish(Team& team, State& s, int32_t node) {
    return s.row.draw(team, s.children.excluded(),
                      [&](uint64_t total) { return s.final_target(node, total); });
  }
};

}  // namespace specfast
