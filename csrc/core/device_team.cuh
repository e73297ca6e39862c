#pragma once

#include <cooperative_groups.h>

#include "core/exchange.cuh"
#include "core/team.h"

namespace specfast {

extern __shared__ __align__(16) unsigned char dynamic_shared_memory[];

// The threads of one CTA. A block of 32 threads is the warp team: its barriers cost next to
// nothing.
class BlockTeam {
 public:
  static constexpr bool kOnDevice = true;

  // Number of this team in the grid.
  __device__ int index() const { return blockIdx.x; }
  __device__ int rank() const { return threadIdx.x; }
  __device__ int size() const { return blockDim.x; }
  __device__ int part() const { return 0; }
  __device__ int parts() const { return 1; }
  __device__ void sync_part() { __syncthreads(); }
  __device__ void arrive() {}
  __device__ void wait() { __syncthreads(); }

  template <class T>
  __device__ T* scratch(int n) {
    used_bytes_ = ceil_div<unsigned>(used_bytes_, 16) * 16;
    T* out = reinterpret_cast<T*>(dynamic_shared_memory + used_bytes_);
    used_bytes_ += sizeof(T) * n;
    return out;
  }

  __device__ void post(int, uint64_t* word, uint64_t value, int) { *word = value; }
  __device__ void collect(int, int) { __syncthreads(); }

  // The two buffers of each collective alternate, so one barrier per call is enough: a thread that
  // writes a buffer again has passed the barrier of the call between, which every reader of the
  // first call had reached.
  __device__ KeyFlag max_key(uint64_t key, bool flag, int group_size) {
    __shared__ uint64_t keys[2][32];
    __shared__ bool flags[2][32];
    key = warp_max(key);
    flag = __any_sync(~0u, flag) != 0;
    turn_ ^= 1;
    if (lane() == 0) {
      keys[turn_][warp()] = key;
      flags[turn_][warp()] = flag;
    }
    __syncthreads();
    int group_warps = group_size / 32;
    int first_warp = warp() / group_warps * group_warps;
    bool mine = lane() < group_warps;
    key = warp_max(mine ? keys[turn_][first_warp + lane()] : 0);
    flag = __any_sync(~0u, mine && flags[turn_][first_warp + lane()]) != 0;
    return {key, flag};
  }
  __device__ KeyFlag largest(const uint64_t* keys, int n) {
    uint64_t key = lane() < n ? keys[lane()] : 0;
    bool flag = __any_sync(~0u, (key & 1) != 0) != 0;
    return {warp_max(key & ~uint64_t{1}), flag};
  }
  __device__ int min(int value) {
    int* values = all_warps(__reduce_min_sync(~0u, value));
    return __reduce_min_sync(~0u, values[min_of(lane(), warps() - 1)]);
  }
  __device__ int sum(int value) {
    int* values = all_warps(__reduce_add_sync(~0u, value));
    return __reduce_add_sync(~0u, lane() < warps() ? values[lane()] : 0);
  }
  __device__ int64_t sum(int64_t value) {
    __shared__ int64_t warp_sums[2][32];
    turn_ ^= 1;
    value = static_cast<int64_t>(warp_sum(static_cast<uint64_t>(value)));
    if (lane() == 0) warp_sums[turn_][warp()] = value;
    __syncthreads();
    int64_t of_warp = lane() < warps() ? warp_sums[turn_][lane()] : 0;
    return static_cast<int64_t>(warp_sum(static_cast<uint64_t>(of_warp)));
  }
  __device__ int count(bool value) { return __syncthreads_count(value); }
  __device__ bool any(bool value) { return __syncthreads_or(value) != 0; }
  __device__ KeyRange union_of(KeyRange range) {
    __shared__ KeyRange ranges[2][32];
    range = {__reduce_min_sync(~0u, range.lowest), __reduce_max_sync(~0u, range.highest)};
    turn_ ^= 1;
    if (lane() == 0) ranges[turn_][warp()] = range;
    __syncthreads();
    range = ranges[turn_][min_of(lane(), warps() - 1)];
    return {__reduce_min_sync(~0u, range.lowest), __reduce_max_sync(~0u, range.highest)};
  }
  __device__ CountPair exclusive_count(bool a, bool b, CountPair* total) {
    // Both counts in one word: a block has fewer than 2^16 threads.
    unsigned votes_a = __ballot_sync(~0u, a);
    unsigned votes_b = __ballot_sync(~0u, b);
    int* values = all_warps(__popc(votes_a) | __popc(votes_b) << 16);
    int in_warp = lane() < warps() ? values[lane()] : 0;
    int in_all = __reduce_add_sync(~0u, in_warp);
    int before = __reduce_add_sync(~0u, lane() < warp() ? in_warp : 0);
    unsigned lower_lanes = (1u << lane()) - 1;
    *total = {in_all & 0xffff, in_all >> 16};
    return {(before & 0xffff) + __popc(votes_a & lower_lanes),
            (before >> 16) + __popc(votes_b & lower_lanes)};
  }

  __device__ void atomic_min(int32_t* target, int32_t value) { atomicMin(target, value); }
  __device__ void atomic_or(uint32_t* target, uint32_t bits) { atomicOr(target, bits); }
  __device__ int32_t atomic_add(int32_t* target, int32_t value) { return atomicAdd(target, value); }

  template <class T>
  __device__ T peek(const T* source) {
    return *static_cast<const volatile T*>(source);
  }
  __device__ uint64_t fetch_or(uint64_t* target, uint64_t bits) {
    uint64_t before;
    asm volatile("atom.acq_rel.gpu.global.or.b64 %0, [%1], %2;"
                 : "=l"(before)
                 : "l"(target), "l"(bits)
                 : "memory");
    return before;
  }

  __device__ int lane() const { return threadIdx.x % 32; }
  __device__ int lanes() const { return 32; }
  __device__ int subgroup() const { return warp(); }
  __device__ int subgroups() const { return warps(); }
  __device__ void converge() { __syncwarp(); }
  __device__ uint64_t lane_sum(uint64_t value) { return warp_sum(value); }
  __device__ uint64_t total(const uint64_t* words, int n) {
    return warp_sum(lane() < n ? words[lane()] : 0);
  }
  __device__ uint64_t lane_prefix(uint64_t value, uint64_t* total) {
    uint64_t running = value;
    for (int step = 1; step < 32; step *= 2) {
      uint64_t before = __shfl_up_sync(~0u, running, step);
      if (lane() >= step) running += before;
    }
    *total = __shfl_sync(~0u, running, 31);
    return running - value;
  }
  __device__ uint64_t from_lane(uint64_t value, int lane) { return __shfl_sync(~0u, value, lane); }
  __device__ Place locate_lane(uint64_t size, uint64_t at) {
    uint64_t total;
    uint64_t before = lane_prefix(size, &total);
    unsigned hit = __ballot_sync(~0u, at >= before && at - before < size);
    if (hit == 0) return {-1, at - total};
    int lane = __ffs(hit) - 1;
    return {lane, at - __shfl_sync(~0u, before, lane)};
  }
  template <class SizeOf>
  __device__ Place locate(int n, const SizeOf& size_of, uint64_t at) {
    return locate_lane(lane() < n ? size_of(lane()) : 0, at);
  }
  // Among the best few of each warp, 32 in all: a little lower than the n-th of all, and cheap.
  __device__ uint32_t lower_bound_of_nth(uint32_t order, int n) {
    __shared__ uint32_t best[32];
    int of_warp = 32 / warps();
    for (int k = 0; k < of_warp; ++k) {
      uint32_t largest = __reduce_max_sync(~0u, order);
      if (lane() == 0) best[warp() * of_warp + k] = largest;
      if (lane() == __ffs(__ballot_sync(~0u, order == largest)) - 1) order = 0;
    }
    __syncthreads();
    if (n > of_warp * warps()) return 0;
    uint32_t mine = lane() < of_warp * warps() ? best[lane()] : 0;
    int better = 0;
    for (int step = 1; step < 32; ++step) {
      uint32_t other = __shfl_xor_sync(~0u, mine, step);
      better += other > mine || (other == mine && (lane() ^ step) < lane()) ? 1 : 0;
    }
    return __shfl_sync(~0u, mine, __ffs(__ballot_sync(~0u, better == n - 1)) - 1);
  }

 private:
  __device__ int warp() const { return threadIdx.x / 32; }
  __device__ int warps() const { return (blockDim.x + 31) / 32; }

  // Two 32-bit reductions in place of five 64-bit shuffles.
  __device__ static uint64_t warp_max(uint64_t key) {
    uint32_t high = static_cast<uint32_t>(key >> 32);
    uint32_t highest = __reduce_max_sync(~0u, high);
    uint32_t low = __reduce_max_sync(~0u, high == highest ? static_cast<uint32_t>(key) : 0u);
    return (static_cast<uint64_t>(highest) << 32) | low;
  }
  // Modulo 2^64. Three 32-bit reductions, whose sums of 22 and twice 21 bits fit, in place of five
  // 64-bit shuffles.
  __device__ static uint64_t warp_sum(uint64_t value) {
    constexpr int kLow = 22;
    constexpr int kMiddle = 43;
    unsigned low = static_cast<unsigned>(value) & ((1u << kLow) - 1);
    unsigned middle = static_cast<unsigned>(value >> kLow) & ((1u << (kMiddle - kLow)) - 1);
    unsigned high = static_cast<unsigned>(value >> kMiddle);
    low = __reduce_add_sync(~0u, low);
    middle = __reduce_add_sync(~0u, middle);
    high = __reduce_add_sync(~0u, high);
    return low + (uint64_t{middle} << kLow) + (uint64_t{high} << kMiddle);
  }
  __device__ int* all_warps(int value) {
    __shared__ int values[2][32];
    turn_ ^= 1;
    if (lane() == 0) values[turn_][warp()] = value;
    __syncthreads();
    return values[turn_];
  }

  unsigned used_bytes_ = 0;
  int turn_ = 0;
};

// CTAs that share a request, one part per blockIdx.y, and never wait for each other: for bodies
// that compute the same in every part and divide only what they write.
class SplitTeam : public BlockTeam {
 public:
  __device__ int part() const { return blockIdx.y; }
  __device__ int parts() const { return gridDim.y; }
};

// The CTAs of one thread-block cluster, each a part.
class ClusterTeam : public BlockTeam {
 public:
  // Number of this team in the grid.
  __device__ int index() const { return __clusterIdx().x; }
  __device__ int part() const { return cooperative_groups::this_cluster().block_rank(); }
  __device__ int parts() const { return cooperative_groups::this_cluster().num_blocks(); }
  // Says that this CTA runs and that its exchange can be posted to; orders nothing else.
  __device__ void arrive() {
    if (threadIdx.x == 0) init_exchange(exchange());
    asm volatile("barrier.cluster.arrive.relaxed.aligned;");
  }
  __device__ void wait() { cooperative_groups::this_cluster().barrier_wait(); }

  // The hardware counts the posted bytes, so an exchange needs no fence and no cluster barrier.
  // Posts of a later exchange reach the same counter, and only once this part has collected this
  // one: `turn` says which counter, and the caller's exchanges see to it (greedy_rows.h, where
  // every part posts to every exchange, takes two turns, exchange.h three).
  __device__ void post(int part, uint64_t* word, uint64_t value, int turn) {
    post_word(remote_address(word, part), value, remote_address(&exchange()[turn], part));
  }
  __device__ void collect(int n, int turn) {
    uint64_t* counter = &exchange()[turn];
    if (threadIdx.x == 0) expect_bytes(counter, n * static_cast<int>(sizeof(uint64_t)));
    wait_for_phase(counter, (phases_ >> turn) & 1);
    phases_ ^= 1 << turn;
  }

 private:
  __device__ static uint64_t* exchange() {
    __shared__ uint64_t counters[kExchangeTurns];
    return counters;
  }

  int phases_ = 0;
};

}  // namespace specfast
