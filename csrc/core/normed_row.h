#pragma once

#include <cmath>

#include "core/lane_sums.h"
#include "core/row_piece.h"
#include "core/types.h"

namespace specfast {

// A row, or the sum of two, and its RMSNorm. The sum is rounded before it is normed, the normed row
// before it is multiplied by the weight, and that product once more, as Llama's layers do; all
// between in float32, the squares in the order of sum_of_row.
template <class T>
struct NormedRow {
  const T* x;
  const T* residual;  // null: x alone
  const T* weight;    // null: not normed
  T* out;
  T* sum;  // null: the sum is not kept
  int32_t width;
  float eps;  // added to the mean square

  // What one call needs of the team.
  template <class Team>
  SPECFAST_HD static float* scratch_of(Team& team) {
    return team.template scratch<float>(kRowSums);
  }

  // By a part; `scratch` is scratch_of(team). Every element is read and written by one thread,
  // which reads it before.
  template <int kPiece, class Team>
  SPECFAST_HD void store(Team& team, float* scratch) const {
    float scale = 1.0f;
    if (weight != nullptr) {
      float squares =
          sum_of_row(team, scratch, [&](int number) { return sum_of_squares<kPiece>(number); });
      scale = 1.0f / sqrtf(squares / static_cast<float>(width) + eps);
    }
    SPECFAST_NO_UNROLL
    for (int32_t first = team.rank() * kLaneRun; first < width; first += team.size() * kLaneRun) {
      SPECFAST_UNROLL
      for (int n = 0; n < kLaneRun; n += kPiece) {
        if (first + n < width) store_piece<kPiece>(scale, first + n);
      }
    }
  }

 private:
  template <int kPiece>
  SPECFAST_HD RowPiece<T, kPiece> summed(int32_t d) const {
    auto piece = get_piece<kPiece>(x + d);
    if (residual == nullptr) return piece;
    auto other = get_piece<kPiece>(residual + d);
    SPECFAST_UNROLL
    for (int n = 0; n < kPiece; ++n) {
      piece.values[n] = rounded_to<T>(to_float(piece.values[n]) + to_float(other.values[n]));
    }
    return piece;
  }

  template <int kPiece>
  SPECFAST_HD float sum_of_squares(int number) const {
    float squares = 0.0f;
    SPECFAST_NO_UNROLL
    for (int32_t first = number * kLaneRun; first < width; first += kRowSums * kLaneRun) {
      SPECFAST_UNROLL
      for (int n = 0; n < kLaneRun; n += kPiece) {
        if (first + n >= width) break;
        auto piece = summed<kPiece>(first + n);
        SPECFAST_UNROLL
        for (int m = 0; m < kPiece; ++m) {
          float value = to_float(piece.values[m]);
          squares += value * value;
        }
      }
    }
    return squares;
  }

  template <int kPiece>
  SPECFAST_HD void store_piece(float scale, int32_t d) const {
    auto piece = summed<kPiece>(d);
    if (sum != nullptr) put_piece(sum + d, piece);
    if (weight != nullptr) {
      auto factors = get_piece<kPiece>(weight + d);
      SPECFAST_UNROLL
      for (int n = 0; n < kPiece; ++n) {
        T normed = rounded_to<T>(to_float(piece.values[n]) * scale);
        piece.values[n] = rounded_to<T>(to_float(normed) * to_float(factors.values[n]));
      }
    }
    put_piece(out + d, piece);
  }
};

}  // namespace specfast
