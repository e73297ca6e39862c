#pragma once

#include "core/accept_request.h"

struct CUstream_st;

namespace specfast {

// Accepts the longest prefix of each chain that the target predicts:
//
//   i = 0
//   while i + 1 < verify_len and draft_tokens[i + 1] == argmax(row i): i = i + 1
//   outputs: draft_tokens[1..i], argmax(row i); committed rows: 0..i
//
// then truncates (core/accept_tail.h). Here S == N. cap_trim_lens, if given, counts the drafts at
// or past verify_len that would have matched; without it rows at or past verify_len are not read.
struct AcceptChainParams {
  AcceptParams accept;
  TargetRows rows;
};

inline void accept_chain_cpu(const AcceptChainParams& p) {
  accept_on_cpu(p.accept, p.rows, ChainLinks{});
}

void accept_chain_cuda(const AcceptChainParams& p, CUstream_st* stream);

}  // namespace specfast
