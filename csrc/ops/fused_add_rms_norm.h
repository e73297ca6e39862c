#pragma once

#include "core/normed_row.h"
#include "core/team.h"
#include "core/types.h"

struct CUstream_st;

namespace specfast {

// RMSNorm of rows, or of the sums of rows and their residuals, which are kept: NormedRow says how.
struct FusedAddRmsNormParams {
  int32_t num_rows;  // R
  int32_t width;     // W
  FloatType type;    // of all tensors
  // Addresses and strides are multiples of 16 bytes, W is one of 8.
  bool has_wide_rows;

  const void* x;  // [R, W]
  int64_t x_stride;
  const void* residual;  // [R, W] or null: 0
  int64_t residual_stride;
  const void* weight;  // [W]
  float eps;           // added to the mean square

  void* out;  // [R, W]
  int64_t out_stride;
  void* sum;  // [R, W]; null with `residual`
  int64_t sum_stride;
};

// One row.
template <class T>
struct RowOfNorms {
  const FusedAddRmsNormParams& p;
  int32_t row;

  template <class Team>
  SPECFAST_HD void run(Team& team) {
    float* scratch = NormedRow<T>::scratch_of(team);
    NormedRow<T> normed{};
    normed.x = static_cast<const T*>(p.x) + row * p.x_stride;
    if (p.residual != nullptr) {
      normed.residual = static_cast<const T*>(p.residual) + row * p.residual_stride;
      normed.sum = static_cast<T*>(p.sum) + row * p.sum_stride;
    }
    normed.weight = static_cast<const T*>(p.weight);
    normed.out = static_cast<T*>(p.out) + row * p.out_stride;
    normed.width = p.width;
    normed.eps = p.eps;
    if (p.has_wide_rows) {
      normed.template store<kWidePiece>(team, scratch);
    } else {
      normed.template store<1>(team, scratch);
    }
  }
};

void fused_add_rms_norm_cpu(const FusedAddRmsNormParams& p);
void fused_add_rms_norm_cuda(const FusedAddRmsNormParams& p, CUstream_st* stream);

}  // namespace specfast
