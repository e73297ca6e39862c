// One block per request and group of chunks, one warp per chunk: a thread owns one column of at
// most 16 bytes in one buffer and carries it through all rows that move.
//
// Bytes: 2 * moved rows * bytes per entry over all buffers, plus per block the path and its slots
// (4 * S + 16 * commit_len at most, from L2). Bound by memory bandwidth, and in a small batch by
// the chain of dependent loads: path -> slots -> data. What it can do without the path it does
// before it waits for the kernel that writes the path: the columns (chunk -> pieces), and asking
// for the rest to be in L2.
//
// No more blocks than the card holds at once, so that a plan serves several groups of chunks; the
// blocks of requests that do not move leave after it. Eight rows in flight carry a usual path in
// one round trip, which is worth more than the two blocks per SM that their registers cost.
// Splitting by column and not by row keeps sources and destinations that overlap inside one thread.
//
// H200, 2.7 rows moved per request: 64 buffers of 2048 bytes, B=1 3.1 us, 8 4.5, 64 15.7, 256 54;
// 61 buffers of 1152 bytes, B=64 10.8 us, 256 34.

#include "core/device_team.cuh"
#include "core/kv_addresses.cuh"
#include "core/launch.cuh"
#include "ops/relocate_kv.h"

namespace specfast {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerSm = 4;  // 64 registers a thread, which kRowsInFlight fits into
constexpr int kFullCard = 132 * kBlocksPerSm;
constexpr int kChunksPerBlock = kThreads / kChunkColumns;

// Asks for `bytes` bytes to be in L2 soon, with one request of the block per sector. A hint:
// nothing is read, so it may come before the wait whoever still writes those bytes.
__device__ inline void prefetch_to_l2(const void* begin, int bytes) {
  constexpr int kSectorBytes = 32;
  SPECFAST_NO_UNROLL
  for (int at = threadIdx.x * kSectorBytes; at < bytes + kSectorBytes - 1;
       at += kThreads * kSectorBytes) {
    // Without alignment the last byte may lie one sector further, so it is asked for by itself.
    const char* address = static_cast<const char*>(begin) + min_of(at, bytes - 1);
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
  }
}

// What the plan of request b reads, except the slots of a window that must first be looked up.
__device__ inline void prefetch_plan(const RelocateKvParams& p, int b) {
  prefetch_to_l2(p.accept_index + b * p.accept_index_stride, p.path_width * sizeof(int32_t));
  prefetch_to_l2(p.commit_lens + b, sizeof(int32_t));
  int64_t first_row = int64_t{b} * p.rows_per_request;
  bool window_is_known = p.out_cache_loc && !p.qo_indptr && p.rows_per_request > 0;
  if (window_is_known && first_row + p.rows_per_request <= p.num_rows) {
    int bytes_per_slot = p.out_cache_loc.is_int64 ? 8 : 4;
    prefetch_to_l2(static_cast<const char*>(p.out_cache_loc.data) + first_row * bytes_per_slot,
                   p.rows_per_request * bytes_per_slot);
  }
}

template <class Addresses>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    relocate_kv_kernel(const __grid_constant__ RelocateKvParams given,
                       const __grid_constant__ Addresses addresses) {
  let_next_kernel_start();
  RelocateKvParams p = given;
  p.buffers = addresses.at;
  SplitTeam team;
  prefetch_plan(p, blockIdx.x);
  KvColumn column = column_of(p, first_column(team));
  wait_for_previous_kernel();
  relocate_kv_request(team, p, blockIdx.x, column);
}

// Blocks of a request, with an even share of the groups of chunks each.
int blocks_per_request(const RelocateKvParams& p) {
  int groups = max_of(ceil_div(p.num_chunks, kChunksPerBlock), 1);
  int most = clamp_to(kFullCard / p.batch_size, 1, groups);
  return ceil_div(groups, ceil_div(groups, most));
}

}  // namespace

void relocate_kv_cuda(const RelocateKvParams& p, CUstream_st* stream) {
  if (p.batch_size == 0) return;
  ScratchSizer sizer;
  relocate_kv_scratch(sizer, p);
  LaunchShape shape;
  shape.grid = dim3(p.batch_size, blocks_per_request(p));
  shape.block = dim3(kThreads);
  shape.shared_bytes = sizer.bytes();
  shape.begins_early = true;
  launch_with_addresses(p.buffers, p.num_buffers, [&](auto addresses) {
    launch(relocate_kv_kernel<decltype(addresses)>, shape, stream, p, addresses);
  });
}

}  // namespace specfast
