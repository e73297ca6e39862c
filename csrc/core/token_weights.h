#pragma once

#include "core/logit_row.h"
#include "core/mass.h"

namespace specfast {

// Weights in [0, 1] of a row's tokens come as an object with
//
//   one(id, value)              of one token
//   group(id, values, out)      of eight neighbours, the first id a multiple of eight
//   group_mass(id, values)      the sum of their masses
//
// and, if they need more than the row's values, with kFetches = true,
//
//   fetch(id, out)              what else is read for eight neighbours, eight floats
//   group(id, values, fetched, out), group_mass(id, values, fetched)

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

// Mass of eight tokens.
SPECFAST_HD uint64_t mass_of_weights(const float (&weights)[kGroupIds]) {
  float scaled[kGroupIds];
  SPECFAST_UNROLL
  for (int i = 0; i < kGroupIds; ++i) scaled[i] = weights[i] * 1048576.0f;  // exact
  return sum_of_scaled(scaled);
}

// Weights in [0, 1] that some function of(id, value) gives to the tokens of a row.
template <class Of>
struct TokenWeights {
  static constexpr bool kFetches = false;

  Of of;

  SPECFAST_HD float one(int32_t id, float value) const { return of(id, value); }
  SPECFAST_HD void group(int32_t id, const float (&values)[kGroupIds],
                         float (&out)[kGroupIds]) const {
    SPECFAST_UNROLL
    for (int i = 0; i < kGroupIds; ++i) out[i] = of(id + i, values[i]);
  }
  SPECFAST_HD uint64_t group_mass(int32_t id, const float (&values)[kGroupIds]) const {
    float weights[kGroupIds];
    group(id, values, weights);
    return mass_of_weights(weights);
  }
};
template <class Of>
TokenWeights(Of) -> TokenWeights<Of>;

// The weights under a temperature, of all tokens.
struct PlainWeights {
  static constexpr bool kFetches = false;

  Weights weights{0.0f, 0.0f};

  // As KeptWeights without a cut.
  SPECFAST_HD void clear_cut() {}
  SPECFAST_HD void cut_after(float, int32_t) {}
  SPECFAST_HD float last_value() const { return -INFINITY; }
  SPECFAST_HD int32_t last_id() const { return INT32_MAX; }

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
  static constexpr bool kFetches = false;

  Weights weights{0.0f, 0.0f};
  float cut_value = -INFINITY;
  int32_t cut_id = INT32_MAX;

  SPECFAST_HD void clear_cut() { cut_after(-INFINITY, INT32_MAX); }
  SPECFAST_HD void cut_after(float value, int32_t id) {
    cut_value = value;
    cut_id = id;
  }
  SPECFAST_HD float last_value() const { return cut_value; }
  SPECFAST_HD int32_t last_id() const { return cut_id; }
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
    float out[kGroupIds];
    group(id, values, out);
    return mass_of_weights(out);
  }
};

// Weights of a group at once, where the two steps need not lie apart.
template <class WeightsOf>
SPECFAST_HD void weights_of_group(const WeightsOf& weights, int32_t id,
                                  const float (&values)[kGroupIds], float (&out)[kGroupIds]) {
  if constexpr (WeightsOf::kFetches) {
    float fetched[kGroupIds];
    weights.fetch(id, fetched);
    weights.group(id, values, fetched, out);
  } else {
    weights.group(id, values, out);
  }
}

}  // namespace specfast
