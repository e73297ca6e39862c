#pragma once

#include "core/sampled_state.h"

struct CUstream_st;

namespace specfast {

// Accepts draft x with probability min(1, p(x) / q(x)) and otherwise goes on with the residual
// max(p - q, 0): one child is the rule of chains (Leviathan et al. 2023, Chen et al. 2023),
// siblings drawn without replacement make it recursive (docs/numerics.md, "Rejection").
void accept_rejection_cpu(const SampledAcceptParams& p);
void accept_rejection_cuda(const SampledAcceptParams& p, CUstream_st* stream);

}  // namespace specfast
