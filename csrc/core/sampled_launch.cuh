#pragma once

#include "core/device_team.cuh"
#include "core/launch.cuh"
#include "core/row_form.h"
#include "core/sampled_request.h"

namespace specfast {

constexpr int kSampledThreads = 256;

// How rows are spread: `cluster_size` CTAs per row at a time, of which each may use `shared_bytes`.
struct SampledShape {
  int cluster_size;
  int shared_bytes;
};

// A share of the shared memory of an SM for each CTA that is to be there at once.
inline SampledShape sampled_shape(int rows_at_once) {
  constexpr int kWhole = 220 * 1024;
  if (rows_at_once <= 8) return {16, kWhole / 2};
  if (rows_at_once <= 64) return {8, kWhole / 2};
  return {4, kWhole / 2};
}

template <class Body, class Params>
__global__ void __launch_bounds__(kSampledThreads, 2)
    sampled_kernel(const __grid_constant__ Params p, int tiles_to_keep) {
  begin_after_previous_kernel();
  ClusterTeam team;
  Body(p, team.index(), tiles_to_keep).run(team);
}

// One cluster per request or row; as many tiles of a row stay in shared memory as there is room
// for.
template <class Body, class Params>
void launch_sampled(const Params& p, int count, int32_t vocab_size, int tile_bytes,
                    const SampledShape& shape, cudaStream_t stream) {
  ScratchSizer sizer;
  Body(p, 0, 0).place(sizer);
  int room = (shape.shared_bytes - static_cast<int>(sizer.bytes())) / tile_bytes;
  int share = ceil_div(num_tiles(vocab_size), shape.cluster_size);
  int tiles_to_keep = clamp_to(room, 0, share);
  LaunchShape launch_shape;
  launch_shape.grid = dim3(count * shape.cluster_size);
  launch_shape.block = dim3(kSampledThreads);
  launch_shape.shared_bytes = sizer.bytes() + static_cast<size_t>(tiles_to_keep) * tile_bytes;
  launch_shape.cluster_size = shape.cluster_size;
  launch_shape.begins_early = true;
  launch(sampled_kernel<Body, Params>, launch_shape, stream, p, tiles_to_keep);
}

template <class Rule>
void launch_sampled_accept(const SampledAcceptParams& p, cudaStream_t stream) {
  int count = p.accept.batch_size;
  if (count == 0) return;
  with_row_form(p.rows, p.sampling, [&](auto type, auto edited) {
    using T = decltype(type);
    launch_sampled<SampledRequest<T, decltype(edited)::value, Rule>>(
        p, count, p.accept.vocab_size, kTileIds * static_cast<int>(sizeof(T)), sampled_shape(count),
        stream);
  });
}

}  // namespace specfast
