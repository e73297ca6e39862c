#pragma once

#include <cstdint>

#include "core/types.h"

namespace specfast {

// Philox4x32-10 (Salmon et al., SC 2011), and what the library's counters mean: docs/numerics.md,
// "Random numbers".
enum Purpose : int32_t { kDraftDraw = 0, kAcceptCoin = 1, kFinalDraw = 2, kFinalInnerDraw = 3 };

constexpr uint32_t kRandomVersion = 1;

struct Philox {
  uint32_t word[4];
};

SPECFAST_HD Philox philox4x32_10(Philox counter, uint64_t key) {
  uint32_t key0 = static_cast<uint32_t>(key);
  uint32_t key1 = static_cast<uint32_t>(key >> 32);
  uint32_t* c = counter.word;
  SPECFAST_UNROLL
  for (int round = 0; round < 10; ++round) {
    uint64_t product0 = uint64_t{0xD2511F53u} * c[0];
    uint64_t product1 = uint64_t{0xCD9E8D57u} * c[2];
    uint32_t high0 = static_cast<uint32_t>(product0 >> 32);
    uint32_t high1 = static_cast<uint32_t>(product1 >> 32);
    counter = {{high1 ^ c[1] ^ key0, static_cast<uint32_t>(product1), high0 ^ c[3] ^ key1,
                static_cast<uint32_t>(product0)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// The random numbers of one request in one round.
struct RandomStream {
  uint64_t seed;
  int32_t prefix_len;

  SPECFAST_HD Philox words(Purpose purpose, int32_t node, int32_t lane) const {
    uint32_t what =
        static_cast<uint32_t>(node) | static_cast<uint32_t>(purpose) << 16 | kRandomVersion << 24;
    return philox4x32_10(
        {{static_cast<uint32_t>(lane), what, static_cast<uint32_t>(prefix_len), 0}}, seed);
  }
  // 64 uniform bits.
  SPECFAST_HD uint64_t bits(Purpose purpose, int32_t node, int32_t lane) const {
    Philox random = words(purpose, node, lane);
    return random.word[0] | static_cast<uint64_t>(random.word[1]) << 32;
  }
};

}  // namespace specfast
