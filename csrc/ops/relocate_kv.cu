// One block per request and group of chunks, one warp per chunk: a thread owns one column of at
// most 16 bytes in one buffer and carries it through all rows that move.
//
// Bytes: 2 * moved rows * bytes per entry over all buffers, plus per block the path and its slots
// (4 * S + 16 * commit_len at most, from L2). Bound by memory bandwidth, and in a small batch by
// the chain of dependent loads: path -> slots -> data, with the length, chunk and pieces beside it.
// No more blocks than the card holds at once, so that a plan serves several groups of chunks; the
// blocks of requests that do not move leave after it. Splitting by column and not by row keeps
// sources and destinations that overlap inside one thread.

#include <algorithm>

#include "core/device_team.cuh"
#include "core/launch.cuh"
#include "ops/relocate_kv.h"

namespace specfast {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerSm = 6;  // 40 registers a thread, which kRowsInFlight fits into
constexpr int kFullCard = 132 * kBlocksPerSm;
constexpr int kChunksPerBlock = kThreads / kChunkColumns;

// Addresses travel as kernel arguments, so the op moves exactly the tensors that it was given; the
// size is a choice of two, as a larger argument costs each launch more.
template <int kCapacity>
struct BufferAddresses {
  void* at[kCapacity];
};

template <int kCapacity>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    relocate_kv_kernel(const __grid_constant__ RelocateKvParams given,
                       const __grid_constant__ BufferAddresses<kCapacity> addresses) {
  begin_after_previous_kernel();
  RelocateKvParams p = given;
  p.buffers = addresses.at;
  SplitTeam team;
  relocate_kv_request(team, p, blockIdx.x);
}

// Blocks of a request, with an even share of the groups of chunks each.
int blocks_per_request(const RelocateKvParams& p) {
  int groups = max_of(ceil_div(p.num_chunks, kChunksPerBlock), 1);
  int most = clamp_to(kFullCard / p.batch_size, 1, groups);
  return ceil_div(groups, ceil_div(groups, most));
}

template <int kCapacity>
void launch_with(const RelocateKvParams& p, CUstream_st* stream) {
  BufferAddresses<kCapacity> addresses{};
  std::copy_n(p.buffers, p.num_buffers, addresses.at);
  ScratchSizer sizer;
  relocate_kv_scratch(sizer, p);
  LaunchShape shape;
  shape.grid = dim3(p.batch_size, blocks_per_request(p));
  shape.block = dim3(kThreads);
  shape.shared_bytes = sizer.bytes();
  shape.begins_early = true;
  launch(relocate_kv_kernel<kCapacity>, shape, stream, p, addresses);
}

}  // namespace

void relocate_kv_cuda(const RelocateKvParams& p, CUstream_st* stream) {
  if (p.batch_size == 0) return;
  if (p.num_buffers <= 128) return launch_with<128>(p, stream);
  launch_with<kMaxKvBuffers>(p, stream);
}

}  // namespace specfast
