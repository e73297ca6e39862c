#pragma once

#include "core/accept_params.h"
#include "core/sampling_params.h"

namespace specfast {

// Links of the drafts; a chain has none: node i + 1 follows node i.
struct DraftLinks {
  const int32_t* retrieve_next_token;    // [B, N] first child, -1 = leaf; or null: a chain
  const int32_t* retrieve_next_sibling;  // [B, N] -1 = last
  const int32_t* retrieve_index;         // [B, N] verify row of the node, or null: base + node
};

// What every sampled accept takes.
struct SampledAcceptParams {
  AcceptParams accept;
  TargetRows rows;  // logits
  DraftLinks links;
  SamplingParams sampling;
  ProposalParams proposal;  // rules with q
  float threshold_single;   // target-only, in [0, 1]; both 1: lossless
  float threshold_acc;
  LogprobParams logprobs;
};

}  // namespace specfast
