#pragma once

#include <cmath>

#include "core/lane_sums.h"
#include "core/row_piece.h"
#include "core/types.h"

namespace specfast {

// By a subgroup.
template <int kPiece, class Team, class T>
SPECFAST_HD void copy_head(const Team& team, const T* from, T* to, int32_t count) {
  for (int32_t d = team.lane() * kPiece; d < count; d += team.lanes() * kPiece) {
    put_piece(to + d, get_piece<kPiece>(from + d));
  }
}

// One head of a row of keys or queries: divided by its root mean square and multiplied by `weight`
// (if it is there), then rotated. Channels d and d + half are a pair, for d < half = rotary_dim
// / 2. All in float32, rounded once; the squares in the order of sum_of_lanes.
template <class T>
struct RotatedHead {
  const T* source;
  T* target;
  const float* weight;  // [head_dim] or null: not normalised
  float eps;            // added to the mean square
  const float* cos;     // [half] of the row's position
  const float* sin;
  int32_t head_dim;
  int32_t rotary_dim;

  // By a subgroup.
  template <int kPiece, class Team>
  SPECFAST_HD void store(const Team& team) const {
    int32_t step = team.lanes() * kPiece;
    float scale = 1.0f;
    if (weight != nullptr) {
      float squares =
          sum_of_lanes(team, [&](int number) { return sum_of_squares<kPiece>(number); });
      scale = 1.0f / sqrtf(squares / static_cast<float>(head_dim) + eps);
    }
    int32_t half = rotary_dim / 2;
    for (int32_t d = team.lane() * kPiece; d < half; d += step) {
      rotate_pieces<kPiece>(scale, d, half);
    }
    for (int32_t d = rotary_dim + team.lane() * kPiece; d < head_dim; d += step) {
      auto piece = get_piece<kPiece>(source + d);
      SPECFAST_UNROLL
      for (int n = 0; n < kPiece; ++n) {
        piece.values[n] = rounded_to<T>(normed(scale, piece.values[n], d + n));
      }
      put_piece(target + d, piece);
    }
  }

 private:
  template <int kPiece>
  SPECFAST_HD void rotate_pieces(float scale, int32_t d, int32_t half) const {
    auto low = get_piece<kPiece>(source + d);
    auto high = get_piece<kPiece>(source + half + d);
    SPECFAST_UNROLL
    for (int n = 0; n < kPiece; ++n) {
      float x = normed(scale, low.values[n], d + n);
      float y = normed(scale, high.values[n], half + d + n);
      low.values[n] = rounded_to<T>(x * cos[d + n] - y * sin[d + n]);
      high.values[n] = rounded_to<T>(y * cos[d + n] + x * sin[d + n]);
    }
    put_piece(target + d, low);
    put_piece(target + half + d, high);
  }

  template <int kPiece>
  SPECFAST_HD float sum_of_squares(int number) const {
    float sum = 0.0f;
    for (int32_t first = number * kLaneRun; first < head_dim; first += kLaneSums * kLaneRun) {
      SPECFAST_UNROLL
      for (int n = 0; n < kLaneRun; n += kPiece) {
        if (first + n >= head_dim) break;
        auto piece = get_piece<kPiece>(source + first + n);
        SPECFAST_UNROLL
        for (int m = 0; m < kPiece; ++m) {
          float value = to_float(piece.values[m]);
          sum += value * value;
        }
      }
    }
    return sum;
  }

  SPECFAST_HD float normed(float scale, T value, int32_t d) const {
    if (weight == nullptr) return to_float(value);
    return to_float(value) * scale * weight[d];
  }
};

}  // namespace specfast
