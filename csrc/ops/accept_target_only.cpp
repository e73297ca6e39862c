#include "ops/accept_target_only.h"

#include "core/sampled_request.h"
#include "core/target_only_rule.h"

namespace specfast {

void accept_target_only_cpu(const SampledAcceptParams& p) {
  sampled_accept_on_cpu<TargetOnlyRule>(p);
}

}  // namespace specfast
