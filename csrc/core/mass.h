#pragma once

#include <cmath>
#include <cstdint>

#include "core/types.h"

namespace specfast {

// Probabilities as integers: the mass of a token is its weight exp((v - max) / T) in units of
// 2^-40. Integer sums do not depend on their order, so neither does anything that is decided with
// them.
constexpr int kMassBits = 40;
constexpr uint64_t kUnitMass = uint64_t{1} << kMassBits;
constexpr float kMassScale = 1099511627776.0f;  // 2^40
constexpr float kInverseMassScale = 1.0f / kMassScale;

// 2^(t + kShift) for t in [-41, 0], with IEEE operations only, the same on every device. Relative
// error below 2e-7.
template <int kShift>
SPECFAST_HD float shifted_exp2(float t) {
  // 1.5 * 2^23: adding it rounds to an integer. kShift is even, so ties round the same way.
  constexpr float kRound = 12582912.0f + kShift;
  float shifted = t + kRound;
  float f = t - (shifted - kRound);
  float y = fmaf(0x1.5bba08p-10f, f, 0x1.3cea8ap-7f);
  y = fmaf(y, f, 0x1.c6b754p-5f);
  y = fmaf(y, f, 0x1.ebf9bcp-3f);
  y = fmaf(y, f, 0x1.62e42ap-1f);
  y = fmaf(y, f, 1.0f);
  uint32_t exponent = float_bits(shifted) << 23;  // the constant leaves no bit of its own
  return bits_float(float_bits(y) + exponent);
}

// 2^t for t in [-40, 0], 0 below and for NaN.
SPECFAST_HD float exp2_or_zero(float t) {
  float power = shifted_exp2<0>(t);
  return t >= -static_cast<float>(kMassBits) ? power : 0.0f;
}

// Units of 2^-40 in a weight or probability in [0, 1], rounded down.
SPECFAST_HD uint64_t to_mass(float weight) {
#if defined(__CUDA_ARCH__)
  return __float2ull_rz(weight * kMassScale);
#else
  return static_cast<uint64_t>(static_cast<int64_t>(weight * kMassScale));
#endif
}

SPECFAST_HD float mass_to_float(uint64_t mass) {
#if defined(__CUDA_ARCH__)
  return __ull2float_rn(mass);
#else
  return static_cast<float>(mass);
#endif
}

// What turns weights into probabilities; 0 if there is no mass.
SPECFAST_HD float inverse_mass(uint64_t mass) {
  if (mass == 0) return 0.0f;
  return 1.0f / (mass_to_float(mass) * kInverseMassScale);
}

// The weights of one row under its temperature.
struct Weights {
  float max;
  float scale2;  // log2(e) / T

  SPECFAST_HD static float scale2_of(float scale) { return scale * 0x1.715476p+0f; }
  SPECFAST_HD float weight(float value) const { return exp2_or_zero((value - max) * scale2); }
  // 2^20 * weight; a positive number below 2^-20 where that is 0.
  SPECFAST_HD float positive_weight_2_20(float value) const {
    constexpr float kLowest = -static_cast<float>(kMassBits) - 1.0f;
    return shifted_exp2<20>(fmaxf((value - max) * scale2, kLowest));
  }
  SPECFAST_HD uint64_t mass(float value) const { return to_mass(weight(value)); }
};

using Wide = unsigned __int128;

// A float in [0, 1], of either sign of zero, as an exact fraction: digits * 2^-shift.
struct Fraction {
  uint64_t digits;  // < 2^24, or 2^24 for 1
  int shift;

  SPECFAST_HD static Fraction of(float value) {
    uint32_t bits = float_bits(value) & 0x7fffffffu;
    int exponent = static_cast<int>(bits >> 23);
    uint64_t digits = bits & 0x7fffffu;
    return exponent == 0 ? Fraction{digits, 149} : Fraction{digits | 0x800000u, 150 - exponent};
  }
  SPECFAST_HD static Fraction coin(uint32_t random) { return {random >> 8, 24}; }
  SPECFAST_HD double value() const { return ldexp(static_cast<double>(digits), -shift); }
};

// floor(a * mass)
SPECFAST_HD uint64_t fraction_of(Fraction a, uint64_t mass) {
  Wide product = Wide{a.digits} * mass;
  return a.shift > 127 ? 0 : static_cast<uint64_t>(product >> a.shift);
}

// ceil(a * mass)
SPECFAST_HD uint64_t fraction_above(Fraction a, uint64_t mass) {
  Wide product = Wide{a.digits} * mass;
  if (a.shift > 127) return product == 0 ? 0 : 1;
  return static_cast<uint64_t>((product + ((Wide{1} << a.shift) - 1)) >> a.shift);
}

// floor(a * b * mass): an integer is above the product iff it is above this.
SPECFAST_HD uint64_t product_of(Fraction a, Fraction b, uint64_t mass) {
  // a * b has at most 48 digits and a mass is below 2^61: the product fits 109 bits.
  Wide product = Wide{a.digits * b.digits} * mass;
  int shift = a.shift + b.shift;
  return shift >= 110 ? 0 : static_cast<uint64_t>(product >> shift);
}

// floor(random * mass / 2^64), below mass.
SPECFAST_HD uint64_t scaled_draw(uint64_t random, uint64_t mass) {
  return static_cast<uint64_t>((Wide{random} * mass) >> 64);
}

}  // namespace specfast
