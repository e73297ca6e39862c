#include "core/rejection_rule.h"
#include "core/sampled_launch.cuh"
#include "ops/accept_rejection.h"

namespace specfast {

void accept_rejection_cuda(const SampledAcceptParams& p, CUstream_st* stream) {
  launch_sampled_accept<RejectionRule>(p, stream);
}

}  // namespace specfast
