#pragma once

#include "core/types.h"

namespace specfast {

// A divisor in [1, 2^15] of numbers in [0, 2^15]. Dividing by it is one multiplication: a division
// costs a GPU some twenty dependent instructions.
//
// Exact: with r = ceil(2^31 / d) = (2^31 + e) / d, e < d, n * r / 2^31 exceeds n / d by n * e / (d
// * 2^31) < 1 / d, too little to reach the next integer.
class SmallDivisor {
 public:
  SmallDivisor() = default;
  SPECFAST_HD SmallDivisor(int32_t value)
      : value_(value), reciprocal_(ceil_div<uint32_t>(1u << 31, static_cast<uint32_t>(value))) {}

  SPECFAST_HD operator int32_t() const { return value_; }
  SPECFAST_HD friend int32_t operator/(int32_t n, const SmallDivisor& d) {
    return static_cast<int32_t>(uint64_t{static_cast<uint32_t>(n)} * d.reciprocal_ >> 31);
  }

 private:
  int32_t value_;
  uint32_t reciprocal_;
};

}  // namespace specfast
