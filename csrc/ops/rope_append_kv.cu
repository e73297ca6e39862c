// A warp per head of the queries and of the keys; that of a key carries its value over as well. 16
// bytes a lane where addresses allow.
//
// Bytes: 2 R (Hq + 2 H) D elements, and a row of cosines and sines for each head, from L2. Few rows
// are bound by the chain launch -> position -> angles.

#include "core/device_team.cuh"
#include "core/launch.cuh"
#include "ops/rope_append_kv.h"

namespace specfast {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
// Where heads are more, warps take several.
constexpr int kMaxBlocks = 132 * 16;

template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    rope_append_kv_kernel(const __grid_constant__ RopeAppendKvParams p) {
  begin_after_previous_kernel();
  SplitTeam team;
  RotatedRows<T>{p}.run(team);
}

template <class T>
void launch_rows(const RopeAppendKvParams& p, CUstream_st* stream) {
  int heads = p.num_rows * (p.num_heads + p.num_kv_heads);
  LaunchShape shape;
  shape.grid = dim3(1, min_of(ceil_div(heads, kWarps), kMaxBlocks));
  shape.block = dim3(kThreads);
  shape.begins_early = true;
  launch(rope_append_kv_kernel<T>, shape, stream, p);
}

}  // namespace

void rope_append_kv_cuda(const RopeAppendKvParams& p, CUstream_st* stream) {
  if (p.num_rows == 0) return;
  switch (p.type) {
    case FloatType::kFloat32:
      return launch_rows<float>(p, stream);
    case FloatType::kBFloat16:
      return launch_rows<BFloat16>(p, stream);
    case FloatType::kFloat16:
      return launch_rows<Float16>(p, stream);
  }
}

}  // namespace specfast
