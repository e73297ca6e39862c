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

// Largest logit and mass at T = 1 of the row that was opened last, without edits and filters: two
// passes.
struct RawRow {
  Weights weights;
  uint64_t mass;
  int32_t argmax;
};
template <class Team, class Row>
SPECFAST_HD RawRow raw_row(Team& team, Row& row) {
  row.bring_row(team);
  float best = -INFINITY;
  int32_t best_id = 0;
  row.logits.for_each_raw_group(team, [&](int32_t id, const float (&values)[kGroupIds]) {
    SPECFAST_UNROLL
    for (int i = 0; i < kGroupIds; ++i) {
      if (values[i] > best) {
        best = values[i];
        best_id = id + i;
      }
    }
  });
  uint64_t key = row.largest(team, argmax_key(best, best_id));
  Weights weights{key == 0 ? -INFINITY : argmax_value(key), Weights::scale2_of(1.0f)};
  uint64_t mine = 0;
  row.logits.for_each_raw_group(team, [&](int32_t, const float (&values)[kGroupIds]) {
    SPECFAST_UNROLL
    for (int i = 0; i < kGroupIds; ++i) mine += weights.mass(values[i]);
  });
  uint64_t words[1] = {static_cast<uint64_t>(team.sum(static_cast<int64_t>(mine)))};
  const uint64_t* answers = row.exchange.all_gather(team, words);
  return {weights, sum_of_parts(team, answers), argmax_id(key)};
}

// Of a token of the row that was opened last: of its filtered distribution (`processed`), or of
// softmax(logits) as they came, which takes two more passes.
template <class Team, class Row>
SPECFAST_HD float token_logprob(Team& team, Row& row, int32_t token, bool processed, float scale) {
  if (processed) {
    if (row.kind == kPointMass) return 0.0f;
    if (row.kind == kUnusableRow) return -INFINITY;
    return log_probability(row.logits.value(token), row.kept.weights.max, scale, row.mass);
  }
  RawRow raw{};
  out_of_line(row, team, [&raw](Row& self, Team& in) { raw = raw_row(in, self); });
  float value = row.logits.raw_value(token);
  if (!(value > -INFINITY)) return -INFINITY;
  // At an infinite maximum the lowest id has all the mass.
  if (raw.weights.max == INFINITY) return token == raw.argmax ? 0.0f : -INFINITY;
  return log_probability(value, raw.weights.max, 1.0f, raw.mass);
}

}  // namespace specfast
