#pragma once

#include <algorithm>

#include "core/kv_pieces.h"

namespace specfast {

// Addresses travel as kernel arguments, so an op touches exactly the tensors that it was given; the
// size is a choice of two, as a larger argument costs each launch more.
template <int kCapacity>
struct BufferAddresses {
  void* at[kCapacity];
};

// Calls launch_with(addresses) with a copy of the host's array.
template <class LaunchWith>
void launch_with_addresses(void* const* buffers, int32_t count, const LaunchWith& launch_with) {
  auto call = [&](auto addresses) {
    std::copy_n(buffers, count, addresses.at);
    launch_with(addresses);
  };
  if (count <= 128) return call(BufferAddresses<128>{});
  call(BufferAddresses<kMaxKvBuffers>{});
}

}  // namespace specfast
