#pragma once

#include "core/row_piece.h"
#include "core/team.h"
#include "core/types.h"

struct CUstream_st;

namespace specfast {

// A causal convolution along the rows of a block, whose taps each row brings along for a group of
// channels:
//   out[b, t, c] = sum over s <= min(t, K - 1) of (base[s, c] + dynamic[b, t, s, c / g]) x[b, t -
//   s, c]
// in float32, in the order of s from the first product on, each operation rounded; rounded once to
// the dtype.
struct GroupedDynamicConvParams {
  int32_t batch_size;  // B
  int32_t num_rows;    // n
  int32_t width;       // C
  int32_t num_taps;    // K
  int32_t group_size;  // g, divides C
  FloatType type;      // of all tensors
  // Addresses and strides of x, base and out are multiples of 16 bytes, C and g are ones of 8.
  bool has_wide_rows;

  const void* x;  // [B, n, C]
  int64_t x_request_stride;
  int64_t x_stride;
  const void* base;     // [K, C]
  const void* dynamic;  // [B, n, K, C / g]
  int64_t dynamic_request_stride;
  int64_t dynamic_stride;
  int64_t dynamic_tap_stride;
  void* out;  // [B, n, C], dense
};

// Row `index` of B n; the parts of the team divide its channels and never wait for each other.
template <class T>
struct ConvolvedRow {
  const GroupedDynamicConvParams& p;
  int32_t index;

  template <class Team>
  SPECFAST_HD void run(const Team& team) const {
    if (p.has_wide_rows) {
      store<kWidePiece>(team);
    } else {
      store<1>(team);
    }
  }

 private:
  template <int kPiece, class Team>
  SPECFAST_HD void store(const Team& team) const {
    int32_t b = index / p.num_rows;
    int32_t t = index - b * p.num_rows;
    const T* rows = static_cast<const T*>(p.x) + b * p.x_request_stride + t * p.x_stride;
    const T* base = static_cast<const T*>(p.base);
    const T* dynamic =
        static_cast<const T*>(p.dynamic) + b * p.dynamic_request_stride + t * p.dynamic_stride;
    T* out = static_cast<T*>(p.out) + int64_t{index} * p.width;
    int32_t begin = (team.part() * team.size() + team.rank()) * kPiece;
    SPECFAST_NO_UNROLL
    for (int32_t c = begin; c < p.width; c += team.parts() * team.size() * kPiece) {
      float sums[kPiece] = {};
      SPECFAST_NO_UNROLL
      for (int32_t s = 0; s < p.num_taps && s <= t; ++s) {
        auto row = get_piece<kPiece>(rows - s * p.x_stride + c);
        auto fixed = get_piece<kPiece>(base + int64_t{s} * p.width + c);
        float own = to_float(dynamic[s * p.dynamic_tap_stride + c / p.group_size]);
        SPECFAST_UNROLL
        for (int m = 0; m < kPiece; ++m) {
          float product = (to_float(fixed.values[m]) + own) * to_float(row.values[m]);
          sums[m] = s == 0 ? product : sums[m] + product;
        }
      }
      RowPiece<T, kPiece> piece;
      SPECFAST_UNROLL
      for (int m = 0; m < kPiece; ++m) piece.values[m] = rounded_to<T>(sums[m]);
      put_piece(out + c, piece);
    }
  }
};

void grouped_dynamic_conv_cpu(const GroupedDynamicConvParams& p);
void grouped_dynamic_conv_cuda(const GroupedDynamicConvParams& p, CUstream_st* stream);

}  // namespace specfast
