#pragma once

#include "core/sampled_state.h"

struct CUstream_st;

namespace specfast {

// Block verification of a chain (Sun et al. 2024, arXiv:2403.10444): decides on the whole chain at
// once, and so keeps at least as many drafts as token by token (docs/numerics.md, "Block").
void accept_block_cpu(const SampledAcceptParams& p);
void accept_block_cuda(const SampledAcceptParams& p, CUstream_st* stream);

}  // namespace specfast
