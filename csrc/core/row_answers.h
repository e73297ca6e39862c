#pragma once

#include "core/types.h"

namespace specfast {

// What a distribution is asked.
struct Drawn {
  int32_t token;
  int32_t status;
};

// Tokens from some value up.
struct Extent {
  uint64_t count;
  uint64_t mass;

  SPECFAST_HD uint64_t measure(bool by_mass) const { return by_mass ? mass : count; }
};

}  // namespace specfast
