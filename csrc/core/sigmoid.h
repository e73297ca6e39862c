#pragma once

#include "core/mass.h"

namespace specfast {

// 1 / (1 + exp(-x)) from operations that round the same everywhere; NaN of NaN.
SPECFAST_HD float sigmoid(float x) {
  if (x != x) return x;
  float e = exp2_or_zero(-fabsf(x) * 0x1.715476p+0f);
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

// The hyperbolic tangent of such operations, within 3e-7 everywhere.
SPECFAST_HD float tanh_by_sigmoid(float x) { return 2.0f * sigmoid(2.0f * x) - 1.0f; }

}  // namespace specfast
