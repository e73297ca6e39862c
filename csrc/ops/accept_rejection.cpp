#include "ops/accept_rejection.h"

#include "core/rejection_rule.h"
#include "core/sampled_request.h"

namespace specfast {

void accept_rejection_cpu(const SampledAcceptParams& p) { sampled_accept_on_cpu<RejectionRule>(p); }

}  // namespace specfast
