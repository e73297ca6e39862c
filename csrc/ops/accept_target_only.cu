#include "core/sampled_launch.cuh"
#include "core/target_only_rule.h"
#include "ops/accept_target_only.h"

namespace specfast {

void accept_target_only_cuda(const SampledAcceptParams& p, CUstream_st* stream) {
  launch_sampled_accept<TargetOnlyRule>(p, stream);
}

}  // namespace specfast
