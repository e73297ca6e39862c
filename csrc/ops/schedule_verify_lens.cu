// One CTA ranks the whole batch, a thread per request for the chains and a thread per draft for the
// cut: the keys of a batch fit its shared memory, and a second CTA would cost more to ask than the
// work it could take.
//
// Bytes: 8 B gamma read and written, 4..16 B per request; bound by latency: one round of global
// loads, gamma dependent products, about 10 barriers to find the cut (31 at worst), one per
// blockDim drafts if survivals tie at the cut.

#include "core/device_team.cuh"
#include "core/launch.cuh"
#include "ops/schedule_verify_lens.h"

namespace specfast {
namespace {

constexpr int kFewestThreads = 32;
constexpr int kMostThreads = 512;

__global__ void __launch_bounds__(kMostThreads, 1)
    schedule_verify_lens_kernel(const __grid_constant__ ScheduleVerifyLensParams p) {
  begin_after_previous_kernel();
  BlockTeam team;
  schedule_verify_lens_batch(team, p, schedule_verify_lens_scratch(team, p));
}

}  // namespace

void schedule_verify_lens_cuda(const ScheduleVerifyLensParams& p, CUstream_st* stream) {
  if (p.batch_size == 0) return;
  ScratchSizer sizer;
  schedule_verify_lens_scratch(sizer, p);
  int items = p.batch_size * max_of(p.num_drafts, 1);
  LaunchShape shape;
  shape.grid = dim3(1);
  shape.block = dim3(clamp_to(ceil_div(items, 32) * 32, kFewestThreads, kMostThreads));
  shape.shared_bytes = sizer.bytes();
  shape.begins_early = true;
  launch(schedule_verify_lens_kernel, shape, stream, p);
}

}  // namespace specfast
