#pragma once

#include <cstdint>

#include "core/types.h"

namespace specfast::bench {

// A bijective 64-bit mixer (the finalizer of MurmurHash3): equal on host and device, so both know
// the inputs without moving them.
SPECFAST_HD uint64_t mix_bits(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  x ^= x >> 33;
  return x;
}

// Random numbers for host-made inputs; unlike <random>, the same with every standard library.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(mix_bits(seed + 1)) {}

  uint64_t bits() { return mix_bits(state_ += 0x9e3779b97f4a7c15ull); }
  // In [0, bound).
  int below(int bound) { return static_cast<int>(bits() % static_cast<uint64_t>(bound)); }
  // In [0, 1).
  float uniform() { return static_cast<float>(bits() >> 40) * 0x1p-24f; }

 private:
  uint64_t state_;
};

}  // namespace specfast::bench
