#include "ops/accept_block.h"

#include "core/block_rule.h"
#include "core/sampled_request.h"

namespace specfast {

void accept_block_cpu(const SampledAcceptParams& p) { sampled_accept_on_cpu<BlockRule>(p); }

}  // namespace specfast
