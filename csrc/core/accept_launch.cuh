#pragma once

#include "core/accept_request.h"
#include "core/device_team.cuh"
#include "core/launch.cuh"

namespace specfast {

template <int kAhead, class Team, class Links, class Source>
__global__ void __launch_bounds__(512, 2)
    accept_kernel(const __grid_constant__ AcceptParams p, const __grid_constant__ Links links,
                  const __grid_constant__ Source source) {
  begin_after_previous_kernel();
  Team team;
  accept_request<kAhead>(team, p, links, source, team.index());
}

template <class T>
__global__ void fill_kernel(T* data, int64_t n, T value) {
  begin_after_previous_kernel();
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) data[i] = value;
}

// A ragged batch without requests may have rows all the same.
inline void clear_rows_of_no_request(const AcceptParams& p, cudaStream_t stream) {
  if (p.num_rows == 0) return;
  LaunchShape shape;
  shape.grid = dim3(1);
  shape.block = dim3(256);
  shape.begins_early = true;
  launch(fill_kernel<int32_t>, shape, stream, p.predict, p.num_rows, kNoToken);
}

// How a batch is spread: `cluster_size` CTAs of `threads` per request.
struct AcceptShape {
  int cluster_size;
  int threads;
  int ahead;
};

// Given predictions need no more threads than the window has rows to fetch at once.
inline AcceptShape shape_for_given(int num_nodes) {
  return {1, clamp_to(ceil_div(num_nodes, 32) * 32, 32, 128), 1};
}

template <int kAhead, class Links, class Source>
void launch_accept_ahead(const AcceptParams& p, const Links& links, const Source& source,
                         AcceptShape shape, cudaStream_t stream) {
  shape.cluster_size = min_of(shape.cluster_size, cluster_size_limit());
  LaunchShape launch_shape;
  launch_shape.grid = dim3(p.batch_size * shape.cluster_size);
  launch_shape.block = dim3(shape.threads);
  launch_shape.shared_bytes = accept_scratch_bytes(p, links, source, kAhead);
  launch_shape.cluster_size = shape.cluster_size;
  launch_shape.begins_early = true;
  if (shape.cluster_size == 1) {
    launch(accept_kernel<kAhead, BlockTeam, Links, Source>, launch_shape, stream, p, links, source);
  } else {
    launch(accept_kernel<kAhead, ClusterTeam, Links, Source>, launch_shape, stream, p, links,
           source);
  }
}

}  // namespace specfast
