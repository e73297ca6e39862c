#pragma once

#include "core/accept_launch.cuh"
#include "core/device_team.cuh"
#include "core/launch.cuh"
#include "core/row_form.h"
#include "core/row_recorder.h"
#include "core/sampled_request.h"

namespace specfast {

constexpr int kMaxSampledThreads = 256;

// How rows are spread: `cluster_size` CTAs of `threads` per row at a time, of which each may use
// `shared_bytes`.
struct SampledShape {
  int cluster_size;
  int threads;
  int shared_bytes;
};

// Measured on an H200 at batches of 1, 8, 64 and 256.
inline SampledShape sampled_shape(int rows_at_once) {
  constexpr int kWhole = 220 * 1024;  // of one SM
  if (rows_at_once <= 16) return {16, 256, kWhole / 2};
  if (rows_at_once <= 32) return {8, 256, kWhole / 2};
  return {4, 256, kWhole / 2};
}

template <class Body, class Params>
__global__ void __launch_bounds__(kMaxSampledThreads, 2)
    sampled_kernel(const __grid_constant__ Params p, int groups_to_keep) {
  begin_after_previous_kernel();
  ClusterTeam team;
  Body(p, team.index(), groups_to_keep).run(team);
}

// One cluster per request or row; as much of a row stays in shared memory as there is room
// for.
template <class Body, class Params>
void launch_sampled(const Params& p, int count, int32_t vocab_size, int group_bytes,
                    SampledShape shape, cudaStream_t stream) {
  shape.cluster_size = min_of(shape.cluster_size, cluster_size_limit());
  ScratchSizer sizer;
  Body(p, 0, 0).place(sizer);
  int room = (shape.shared_bytes - static_cast<int>(sizer.bytes())) / group_bytes;
  auto share = [&] { return GroupRange::of(vocab_size, 0, shape.cluster_size).size(); };
  // More parts, rather than rows that are read again from memory.
  while (share() > room && 2 * shape.cluster_size <= cluster_size_limit()) shape.cluster_size *= 2;
  int groups_to_keep = clamp_to(room, 0, share());
  LaunchShape launch_shape;
  launch_shape.grid = dim3(count * shape.cluster_size);
  launch_shape.block = dim3(shape.threads);
  launch_shape.shared_bytes = sizer.bytes() + static_cast<size_t>(groups_to_keep) * group_bytes;
  launch_shape.cluster_size = shape.cluster_size;
  launch_shape.begins_early = true;
  launch(sampled_kernel<Body, Params>, launch_shape, stream, p, groups_to_keep);
}

template <class Rule>
void launch_sampled_accept(const SampledAcceptParams& p, cudaStream_t stream) {
  int count = p.accept.batch_size;
  if (count == 0) return clear_rows_of_no_request(p.accept, stream);
  with_row_form(p.rows, p.sampling, [&](auto type, auto edited) {
    using T = decltype(type);
    if constexpr (Rule::kStoresRows && !decltype(edited)::value) {
      if (p.stored_rows != nullptr) {
        int rows = count * p.accept.num_nodes;
        launch_sampled<RowRecorder<T>>(p, rows, p.accept.vocab_size,
                                       static_cast<int>(sizeof(LogitGroup<T>)), sampled_shape(rows),
                                       stream);
      }
    }
    launch_sampled<SampledRequest<T, decltype(edited)::value, Rule>>(
        p, count, p.accept.vocab_size, static_cast<int>(sizeof(LogitGroup<T>)),
        sampled_shape(count), stream);
  });
}

}  // namespace specfast
