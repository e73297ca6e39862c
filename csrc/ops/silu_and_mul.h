#pragma once

#include "core/row_piece.h"
#include "core/sigmoid.h"
#include "core/team.h"
#include "core/types.h"

struct CUstream_st;

namespace specfast {

// out = silu(gate) * up, where a row of x is its W gates and then its W ups. silu(g) = g sigmoid(g)
// in float32, rounded before the product and again after it, as Llama's layers do.
struct SiluAndMulParams {
  int32_t num_rows;  // R
  int32_t width;     // W
  FloatType type;    // of x and out
  // Addresses and strides are multiples of 16 bytes, W is one of 8.
  bool has_wide_rows;

  const void* x;  // [R, 2 W]
  int64_t x_stride;
  void* out;  // [R, W]
  int64_t out_stride;
};

// One row; the parts of the team divide its channels and never wait for each other.
template <class T>
struct GatedRow {
  const SiluAndMulParams& p;
  int32_t row;

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
    const T* gates = static_cast<const T*>(p.x) + row * p.x_stride;
    T* out = static_cast<T*>(p.out) + row * p.out_stride;
    int32_t begin = (team.part() * team.size() + team.rank()) * kPiece;
    SPECFAST_NO_UNROLL
    for (int32_t d = begin; d < p.width; d += team.parts() * team.size() * kPiece) {
      auto gate = get_piece<kPiece>(gates + d);
      auto up = get_piece<kPiece>(gates + p.width + d);
      SPECFAST_UNROLL
      for (int n = 0; n < kPiece; ++n) {
        float value = to_float(gate.values[n]);
        float silu = to_float(rounded_to<T>(value * sigmoid(value)));
        gate.values[n] = rounded_to<T>(silu * to_float(up.values[n]));
      }
      put_piece(out + d, gate);
    }
  }
};

void silu_and_mul_cpu(const SiluAndMulParams& p);
void silu_and_mul_cuda(const SiluAndMulParams& p, CUstream_st* stream);

}  // namespace specfast
