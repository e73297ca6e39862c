#pragma once

#include <cmath>

#include "core/types.h"

namespace specfast {

// Keys that compare like (value, -id): the largest key is the largest value, lowest id on ties.
// -0.0 equals 0.0; -inf and NaN are 0, below every key. Bit 0 is free for a flag.
SPECFAST_HD uint32_t value_order(float value) {
  if (!(value > -INFINITY)) return 0;
  float canonical = value + 0.0f;
  uint32_t bits;
  memcpy(&bits, &canonical, sizeof(bits));
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

// Of the lowest finite value; what lies between 0 and this is the order of no value.
constexpr uint32_t kLowestOrder = 0x00800000u;

SPECFAST_HD float ordered_value(uint32_t order) {
  uint32_t bits = (order >> 31) != 0 ? order & 0x7fffffffu : ~order;
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

SPECFAST_HD uint64_t argmax_key(float value, int32_t id) {
  uint32_t order = value_order(value);
  if (order == 0) return 0;
  uint32_t low = static_cast<uint32_t>(INT32_MAX - id) << 1;
  return (static_cast<uint64_t>(order) << 32) | low;
}

SPECFAST_HD int32_t argmax_id(uint64_t key) {
  return INT32_MAX - static_cast<int32_t>(static_cast<uint32_t>(key) >> 1);
}

SPECFAST_HD float argmax_value(uint64_t key) {
  return ordered_value(static_cast<uint32_t>(key >> 32));
}

}  // namespace specfast
