// Blocks per request that divide the tiles of its states; a block copies a tile at 16 bytes per
// thread, four loads in flight.
//
// Bytes: 2 * committing requests * bytes per slot over all buffers and layers. Bound by memory
// bandwidth; in a small batch of small states by the chain length -> row -> data.
//
// H200: 36 layers of 1 MiB and 48 KiB, B=1 25 us (75 % of the speed of a copy), 8 173 (87), 32 676
// (89); 24 layers of 64 KiB and 8 KiB, B=1 3.6 us (floor 1.4), 8 11.3 (7.3), 64 64.5 (54.2).
//
// Descriptors are kernel arguments, so the op copies exactly the tensors that it was given, and
// nothing has to be on the device beforehand.

#include <algorithm>

#include "core/device_team.cuh"
#include "core/launch.cuh"
#include "ops/commit_state.h"

namespace specfast {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerSm = 6;  // 40 registers a thread, which the words in flight fit into
constexpr int kFullCard = 132 * kBlocksPerSm;

// The size is a choice of two, as a larger argument costs each launch more.
template <int kCapacity>
struct StateBuffers {
  StateBuffer at[kCapacity];
};

template <int kCapacity>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    commit_state_kernel(const __grid_constant__ CommitStateParams given,
                        const __grid_constant__ StateBuffers<kCapacity> buffers) {
  let_next_kernel_start();
  CommitStateParams p = given;
  p.buffers = buffers.at;
  SplitTeam team;
  wait_for_previous_kernel();
  commit_state_request(team, p, blockIdx.x);
}

// With an even share of the tiles each.
int blocks_per_request(const CommitStateParams& p) {
  int64_t tiles = max_of<int64_t>(p.num_tiles, 1);
  int64_t most = clamp_to<int64_t>(kFullCard / p.batch_size, 1, tiles);
  return static_cast<int>(ceil_div(tiles, ceil_div(tiles, most)));
}

template <int kCapacity>
void launch_with(const CommitStateParams& p, CUstream_st* stream) {
  StateBuffers<kCapacity> buffers{};
  std::copy_n(p.buffers, p.num_buffers, buffers.at);
  LaunchShape shape;
  shape.grid = dim3(p.batch_size, blocks_per_request(p));
  shape.block = dim3(kThreads);
  shape.begins_early = true;
  launch(commit_state_kernel<kCapacity>, shape, stream, p, buffers);
}

}  // namespace

void commit_state_cuda(const CommitStateParams& p, CUstream_st* stream) {
  if (p.batch_size == 0) return;
  if (p.num_buffers <= 8) return launch_with<8>(p, stream);
  launch_with<kMaxStateBuffers>(p, stream);
}

}  // namespace specfast
