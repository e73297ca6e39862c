#pragma once

#include "core/logit_row.h"
#include "core/mass.h"

namespace specfast {

// Weights in [0, 1] of a row's tokens come as an object with
//
//   one(id, value)              of one token
//   group(id, values, out)      of eight neighbours, the first id a multiple of eight
//   group_mass(id, values)      the sum of their masses

// Sum of floor(2^20 * x) over eight x = 2^20 * weight in [0, 2^20].
SPECFAST_HD uint64_t sum_of_scaled(const float (&scaled)[kGroupIds]) {
#if defined(__CUDA_ARCH__)
  // Conversions to 64 bits are slow, so x splits into an integer and what is left of it: adding
  // 1.5 * 2^23 leaves an integer in the low bits of a float.
  constexpr float kInteger = 12582912.0f;
  constexpr float kHigh = 1048576.0f;
  uint32_t high = 0;
  uint32_t low = 0;
#pragma unroll
  for (int i = 0; i < kGroupIds; ++i) {
    float rounded = scaled[i] + kInteger;
    float rest = scaled[i] - (rounded - kInteger);
    high += __float_as_uint(rounded);
    low += __float_as_uint(__fmaf_rd(rest, kHigh, kInteger));
  }
  constexpr uint32_t kIntegers = 0x4b400000u * kGroupIds;
  int32_t multiples = static_cast<int32_t>(high - kIntegers);
  int32_t below = static_cast<int32_t>(low - kIntegers);
  return static_cast<uint64_t>(static_cast<int64_t>(multiples) * 1048576 + below);
#else
  uint64_t sum = 0;
  for (float x : scaled) sum += static_cast<uint64_t>(static_cast<int64_t>(x * 1048576.0f));
  return sum;
#endif
}

// Weights in [0, 1] that some function of(id, value) gives to the tokens of a row.
template <class Of>
struct TokenWeights {
  Of of;

  SPECFAST_HD float one(int32_t id, float value) const { return of(id, value); }
  SPECFAST_HD void group(int32_t id, const float (&values)[kGroupIds],
                         float (&weights)[kGroupIds]) const {
    SPECFAST_UNROLL
    for (int i = 0; i < kGroupIds; ++i) weights[i] = of(id + i, values[i]);
  }
  SPECFAST_HD uint64_t group_mass(int32_t id, const float (&values)[kGroupIds]) const {
    return mass_of_group(*this, id, values);
  }
};
template <class Of>
TokenWeights(Of) -> TokenWeights<Of>;

// Mass of eight neighbouring tokens.
template <class TokenWeightsLike>
SPECFAST_HD uint64_t mass_of_group(const TokenWeightsLike& weights, int32_t id,
                                   const float (&values)[kGroupIds]) {
  float scaled[kGroupIds];
  weights.group(id, values, scaled);
  SPECFAST_UNROLL
  for (int i = 0; i < kGroupIds; ++i) scaled[i] *= 1048576.0f;  // exact
  return sum_of_scaled(scaled);
}

// The weights under a temperature, of all tokens.
struct PlainWeights {
  Weights weights;

  SPECFAST_HD float one(int32_t, float value) const { return weights.weight(value); }
  SPECFAST_HD void group(int32_t, const float (&values)[kGroupIds], float (&out)[kGroupIds]) const {
    SPECFAST_UNROLL
    for (int i = 0; i < kGroupIds; ++i) out[i] = weights.weight(values[i]);
  }
  // What is below 2^-40 is floored away, so it need not be 0 before.
  SPECFAST_HD uint64_t group_mass(int32_t, const float (&values)[kGroupIds]) const {
    float scaled[kGroupIds];
    SPECFAST_UNROLL
    for (int i = 0; i < kGroupIds; ++i) scaled[i] = weights.positive_weight_2_20(values[i]);
    return sum_of_scaled(scaled);
  }
};

// The same for the tokens up to a cut, which comes in the order of values descending, ids
// ascending.
struct KeptWeights {
  Weights weights;
  float cut_value;
  int32_t cut_id;

  SPECFAST_HD bool has_cut() const { return cut_value > -INFINITY; }
  // Without branches, as all of this is once per token.
  SPECFAST_HD bool keeps(int32_t id, float value) const {
    return static_cast<int>(value > cut_value) |
           (static_cast<int>(value == cut_value) & static_cast<int>(id <= cut_id));
  }
  SPECFAST_HD float one(int32_t id, float value) const {
    float weight = weights.weight(value);
    bool has_mass =
        static_cast<int>(keeps(id, value)) & static_cast<int>(weight >= kInverseMassScale);
    return has_mass ? weight : 0.0f;
  }
  SPECFAST_HD void group(int32_t id, const float (&values)[kGroupIds],
                         float (&out)[kGroupIds]) const {
    SPECFAST_UNROLL
    for (int i = 0; i < kGroupIds; ++i) out[i] = one(id + i, values[i]);
  }
  SPECFAST_HD uint64_t group_mass(int32_t id, const float (&values)[kGroupIds]) const {
    return mass_of_group(*this, id, values);
  }
};

}  // namespace specfast
