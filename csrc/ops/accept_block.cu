#include "core/block_rule.h"
#include "core/sampled_launch.cuh"
#include "ops/accept_block.h"

namespace specfast {

void accept_block_cuda(const SampledAcceptParams& p, CUstream_st* stream) {
  launch_sampled_accept<BlockRule>(p, stream);
}

}  // namespace specfast
