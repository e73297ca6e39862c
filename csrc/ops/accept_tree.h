#pragma once

#include "core/accept_request.h"
#include "core/tree_links.h"

struct CUstream_st;

namespace specfast {

// Accepts, from the root, the child that carries the target's token:
//
//   node = root
//   while some child c < verify_len of node has draft_tokens[c] == argmax(row of node): node = c
//   outputs: the accepted children's tokens, argmax(row of node); committed rows: root, children
//
// at most S rows, then truncates (core/accept_tail.h). Among equal siblings the first one wins.
struct AcceptTreeParams {
  AcceptParams accept;
  TargetRows rows;
  TreeLinks links;
};

inline void accept_tree_cpu(const AcceptTreeParams& p) { accept_on_cpu(p.accept, p.rows, p.links); }

void accept_tree_cuda(const AcceptTreeParams& p, CUstream_st* stream);

}  // namespace specfast
