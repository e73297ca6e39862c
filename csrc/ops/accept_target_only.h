#pragma once

#include "core/sampled_state.h"

struct CUstream_st;

namespace specfast {

// Accepts by one coin per visited row, which the children share: they divide [0, 1) in sibling
// order by their target probabilities, and what is left falls to the other tokens
// (docs/numerics.md, "Target-only"). Needs no q, and is exact for any drafts that the coins did not
// choose.
void accept_target_only_cpu(const SampledAcceptParams& p);
void accept_target_only_cuda(const SampledAcceptParams& p, CUstream_st* stream);

}  // namespace specfast
