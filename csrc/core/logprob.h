#pragma once

#include "core/row_distribution.h"

namespace specfast {

// Natural logarithm of a positive integer, from IEEE operations only.
SPECFAST_HD double natural_log(uint64_t n) {
  constexpr double kLn2 = 0.6931471805599453;
  int exponent = 0;
  double x = static_cast<double>(n);
  while (x >= 1.5) {
    x *= 0.5;
    ++exponent;
  }
  // atanh series: log(x) = 2 (s + s^3 / 3 + ...), s = (x - 1) / (x + 1), |s| <= 1/5.
  double s = (x - 1.0) / (x + 1.0);
  double square = s * s;
  double sum = 0.0;
  for (int k = 23; k >= 1; k -= 2) sum = sum * square + 1.0 / k;
  return 2.0 * s * sum + exponent * kLn2;
}

// Log-probability of a value under weights that sum to `mass`.
SPECFAST_HD float log_probability(float value, float max, float scale, uint64_t mass) {
  constexpr double kLnUnit = 27.725887222397812;  // ln 2^40
  double exponent = static_cast<double>(value - max) * static_cast<double>(scale);
  return static_cast<float>(exponent - (natural_log(mass) - kLnUnit));
}

// Of a token of the row that was opened last: of its filtered distribution (`processed`), or of
// softmax(logits) as they came, which takes two more passes.
template <class Team, class Row>
SPECFAST_HD float token_logprob(Team& team, Row& row, int32_t token, bool processed, float scale) {
  if (processed) {
    if (row.kind == kPointMass) return 0.0f;
    if (row.kind == kUnusableRow) return -INFINITY;
    return log_probability(row.row.value(token), row.kept.weights.max, scale, row.mass);
  }
  typename Row::RawRow raw{};
  out_of_line(row, team, [&raw](Row& self, Team& in) { raw = self.raw(in); });
  float value = row.row.raw_value(token);
  if (!(value > -INFINITY)) return -INFINITY;
  // At an infinite maximum the lowest id has all the mass.
  if (raw.weights.max == INFINITY) return token == raw.argmax ? 0.0f : -INFINITY;
  return log_probability(value, raw.weights.max, 1.0f, raw.mass);
}

}  // namespace specfast
