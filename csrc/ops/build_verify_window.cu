// A few CTAs share the requests; each adds up the rows of all of them for itself, which is cheaper
// than to wait for another's sum.
//
// Bytes: 12 B and a page entry or two per request, read by every CTA; 12..20 read and 16..24
// written per row; bound by latency: three dependent rounds of global loads (row of the table,
// page, token), two barriers.

#include "core/device_team.cuh"
#include "core/launch.cuh"
#include "ops/build_verify_window.h"

namespace specfast {
namespace {

constexpr int kThreads = 256;
constexpr int kFullCard = 2 * 132;  // CTAs

__global__ void __launch_bounds__(kThreads)
    build_verify_window_kernel(const __grid_constant__ BuildVerifyWindowParams p) {
  begin_after_previous_kernel();
  SplitTeam team;
  build_verify_window_batch(team, p, build_verify_window_scratch(team, p, team.parts()));
}

}  // namespace

void build_verify_window_cuda(const BuildVerifyWindowParams& p, CUstream_st* stream) {
  // A batch of 0 requests has an end of its rows, and padding.
  const int64_t items = max_of<int64_t>(int64_t{p.batch_size} * p.num_nodes, p.num_rows);
  const int parts =
      static_cast<int>(clamp_to<int64_t>(ceil_div<int64_t>(items, kThreads), 1, kFullCard));
  ScratchSizer sizer;
  build_verify_window_scratch(sizer, p, parts);
  LaunchShape shape;
  shape.grid = dim3(1, static_cast<unsigned>(parts));
  shape.block = dim3(kThreads);
  shape.shared_bytes = sizer.bytes();
  shape.begins_early = true;
  launch(build_verify_window_kernel, shape, stream, p);
}

}  // namespace specfast
