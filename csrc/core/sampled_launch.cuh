#pragma once

#include "core/accept_launch.cuh"
#include "core/chain_row.h"
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

constexpr int kWhole = 220 * 1024;  // shared memory of one SM

// Measured on an H200 at batches of 1, 8, 64 and 256.
inline SampledShape sampled_shape(int rows_at_once) {
  if (rows_at_once <= 16) return {16, 256, kWhole / 2};
  if (rows_at_once <= 32) return {8, 256, kWhole / 2};
  return {4, 256, kWhole / 2};
}

// The same for the rows of chains at once, of 8 rows each at batches of 1 to 128.
constexpr int kManyChainRows = 128;
inline SampledShape chain_row_shape(int rows) {
  if (rows <= 32) return {16, 256, kWhole / 2};
  if (rows <= kManyChainRows) return {16, 128, kWhole / 4};
  return {8, 128, kWhole / 5};
}

// For the requests of large batches without filters: the last ones then have an SM per CTA, while
// the first ones shared it with three to five others.
constexpr int kMostInLargeCtas = 32;
inline SampledShape small_ctas(int count, bool is_light, size_t element_bytes) {
  int clusters = 4 * static_cast<int>(element_bytes);
  if (!is_light) return {clusters, 128, kWhole / 4};
  if (count <= 96) return {16, 128, static_cast<int>(18 * 1024 * element_bytes)};
  return {clusters, 128, kWhole / 5};
}
// Whether rows fit as a whole, beside the state of a request.
template <class Element>
bool keeps_rows(SampledShape shape, int32_t vocab_size) {
  constexpr int kOther = 4 * 1024;
  int64_t share = GroupRange::of(vocab_size, 0, shape.cluster_size).size() *
                  static_cast<int64_t>(sizeof(LogitGroup<Element>));
  return share <= shape.shared_bytes - kOther;
}

// kPerSm: CTAs of kMostThreads that an SM has registers for; more in it hide more waiting, as long
// as the body has few enough.
template <class Body, int kMostThreads, int kPerSm, class Params>
__global__ void __launch_bounds__(kMostThreads, kPerSm)
    sampled_kernel(const __grid_constant__ Params p, int groups_to_keep) {
  begin_after_previous_kernel();
  ClusterTeam team;
  Body(p, team.index(), groups_to_keep).run(team);
}

// One cluster per request or row; as much of a row stays in shared memory as there is room
// for.
template <class Body, int kMostThreads = kMaxSampledThreads, int kPerSm = 2, class Params>
void launch_sampled(const Params& p, int count, int32_t vocab_size, SampledShape shape,
                    cudaStream_t stream) {
  constexpr int group_bytes = static_cast<int>(sizeof(LogitGroup<typename Body::Element>));
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
  launch(sampled_kernel<Body, kMostThreads, kPerSm, Params>, launch_shape, stream, p,
         groups_to_keep);
}

template <class Rule>
void launch_sampled_accept(const SampledAcceptParams& p, cudaStream_t stream) {
  int count = p.accept.batch_size;
  if (count == 0) return clear_rows_of_no_request(p.accept, stream);
  with_row_form(p.rows, p.sampling, [&](auto form) {
    using Form = decltype(form);
    if constexpr (stores_rows<Form, Rule>()) {
      if (p.stored_rows != nullptr) {
        int rows = count * p.accept.num_nodes;
        launch_sampled<RowRecorder<Form>>(p, rows, p.accept.vocab_size, sampled_shape(rows),
                                          stream);
      }
    }
    if constexpr (Rule::kStepwise && !Form::kEdited) {
      using Row = ChainRow<Form, Rule>;
      if (Row::serves(p)) {
        int rows = count * p.accept.num_nodes;
        SampledShape shape = chain_row_shape(rows);
        if (rows > kManyChainRows) {
          return launch_sampled<Row, 128, 5>(p, rows, p.accept.vocab_size, shape, stream);
        }
        return launch_sampled<Row>(p, rows, p.accept.vocab_size, shape, stream);
      }
    }
    with_request<Form, Rule>(p.links, [&](auto type) {
      using Request = typename decltype(type)::Type;
      using Element = typename Request::Element;
      if constexpr (!Form::kFiltered) {
        constexpr int kMostThreads = Rule::kIsLight ? 128 : kMaxSampledThreads;
        constexpr int kPerSm = Rule::kIsLight ? 6 : 2;
        SampledShape shape = small_ctas(count, Rule::kIsLight, sizeof(Element));
        if (count > kMostInLargeCtas && keeps_rows<Element>(shape, p.accept.vocab_size)) {
          return launch_sampled<Request, kMostThreads, kPerSm>(p, count, p.accept.vocab_size, shape,
                                                               stream);
        }
      }
      launch_sampled<Request>(p, count, p.accept.vocab_size, sampled_shape(count), stream);
    });
  });
}

}  // namespace specfast
