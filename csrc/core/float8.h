#pragma once

#include <cmath>

#include "core/types.h"

namespace specfast {

// Storage of float8_e4m3fn: 448 at most, no infinities, NaN where all bits below the sign are set.
struct Float8 {
  uint8_t bits;
};

// Exact. A float16 has the same fraction further left, and an exponent that is 8 higher.
SPECFAST_HD float to_float(Float8 value) {
  const uint32_t magnitude = value.bits & 0x7fu;
  const uint32_t sign = value.bits & 0x80u;
  const float scaled = to_float(Float16{static_cast<uint16_t>(sign << 8 | magnitude << 7)});
  return magnitude == 0x7fu ? NAN : scaled * 256.0f;
}

}  // namespace specfast
