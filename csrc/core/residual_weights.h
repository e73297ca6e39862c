#pragma once

#include "core/proposal.h"
#include "core/token_weights.h"

namespace specfast {

// max(r p - q, 0)
SPECFAST_HD float residual_of(float ratio, float p, float q) {
  float rest = fmaf(ratio, p, -q);
  return rest > 0.0f ? rest : 0.0f;
}

// The same as weights of an ordinary row's tokens, with a ratio r of 1 for a chain's token rule.
template <class Kept>
struct ResidualWeights {
  static constexpr bool kFetches = true;

  Kept kept;
  const ProposalRow& q;
  float ratio;
  float p_factor;
  float q_factor;

  SPECFAST_HD float of(float weight, float base) const {
    return residual_of(ratio, weight * p_factor, base * q_factor);
  }
  SPECFAST_HD float one(int32_t id, float value) const {
    float weight = kept.one(id, value);
    return weight == 0.0f ? 0.0f : of(weight, q.base(id));
  }
  SPECFAST_HD void fetch(int32_t id, float (&out)[kGroupIds]) const { q.fetch(id, out); }
  SPECFAST_HD void group(int32_t id, const float (&values)[kGroupIds], float (&fetched)[kGroupIds],
                         float (&out)[kGroupIds]) const {
    q.make_bases(id, fetched);
    SPECFAST_UNROLL
    for (int i = 0; i < kGroupIds; ++i) out[i] = of(kept.one(id + i, values[i]), fetched[i]);
  }
  SPECFAST_HD uint64_t group_mass(int32_t id, const float (&values)[kGroupIds],
                                  float (&fetched)[kGroupIds]) const {
    float out[kGroupIds];
    group(id, values, fetched, out);
    return mass_of_weights(out);
  }
};
template <class Kept>
ResidualWeights(Kept, const ProposalRow&, float, float, float) -> ResidualWeights<Kept>;

}  // namespace specfast
