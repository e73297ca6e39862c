// Blocks per request that divide its heads. A warp has a row and a layer: eight lanes carry a head
// of up to 128 channels over, at 16 bytes a lane, and look its weights and angles up once for all
// heads. Other shapes have a warp per head; there keys are read twice, for their sum and to be
// rotated.
//
// Bytes: 2 * committed rows * 2 L H D elements, and a row of cosines and sines for each head, from
// L2. Bound by memory bandwidth; in a small batch by the chain length -> page -> keys -> sum.

#include "core/device_team.cuh"
#include "core/kv_addresses.cuh"
#include "core/launch.cuh"
#include "ops/inject_context_kv.h"

namespace specfast {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kBlocksPerSm = 2;  // 128 registers a thread
constexpr int kFullCard = 132 * kBlocksPerSm;

template <class T, class Addresses>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    inject_context_kv_kernel(const __grid_constant__ InjectContextKvParams given,
                             const __grid_constant__ Addresses addresses) {
  begin_after_previous_kernel();
  InjectContextKvParams p = given;
  p.buffers = addresses.at;
  SplitTeam team;
  ContextInjection<T>{p, static_cast<int32_t>(blockIdx.x)}.run(team);
}

// No more than the card holds at once: a block checks its request once for all heads that it gets.
int blocks_per_request(const InjectContextKvParams& p) {
  int blocks = max_of(ceil_div(p.max_rows * p.num_layers * p.num_heads, kWarps), 1);
  return clamp_to(kFullCard / p.batch_size, 1, blocks);
}

template <class T>
void launch_injection(const InjectContextKvParams& p, CUstream_st* stream) {
  LaunchShape shape;
  shape.grid = dim3(p.batch_size, blocks_per_request(p));
  shape.block = dim3(kThreads);
  shape.begins_early = true;
  launch_with_addresses(p.buffers, 2 * p.num_layers, [&](auto addresses) {
    launch(inject_context_kv_kernel<T, decltype(addresses)>, shape, stream, p, addresses);
  });
}

}  // namespace

void inject_context_kv_cuda(const InjectContextKvParams& p, CUstream_st* stream) {
  if (p.batch_size == 0) return;
  switch (p.type) {
    case FloatType::kFloat32:
      return launch_injection<float>(p, stream);
    case FloatType::kBFloat16:
      return launch_injection<BFloat16>(p, stream);
    case FloatType::kFloat16:
      return launch_injection<Float16>(p, stream);
  }
}

}  // namespace specfast
