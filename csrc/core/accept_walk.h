#pragma once

#include <climits>

#include "core/accept_params.h"
#include "core/greedy_rows.h"
#include "core/status.h"
#include "core/team.h"

namespace specfast {

// The verify rows of one request.
struct Window {
  int64_t base;      // first row
  int32_t rows;      // rows of the request
  int32_t verified;  // nodes that the walk may visit; 0 = padded slot
  int32_t num_nodes;
  int32_t status;
};

// What memory says of them, asked for before it is looked at.
struct GivenWindow {
  int64_t low;
  int64_t high;
  int32_t verify_len;

  SPECFAST_HD static GivenWindow load(const AcceptParams& p, int b) {
    GivenWindow out{0, 0, 0};
    if (p.qo_indptr != nullptr) {
      out.low = p.qo_indptr[b];
      out.high = p.qo_indptr[b + 1];
    }
    if (p.verify_lens != nullptr) out.verify_len = p.verify_lens[b];
    return out;
  }
};

SPECFAST_HD Window request_window(const AcceptParams& p, int b, const GivenWindow& given) {
  Window window{static_cast<int64_t>(b) * p.num_nodes, p.num_nodes, 0, p.num_nodes, kStatusOk};
  if (p.qo_indptr != nullptr) {
    int64_t low = given.low;
    int64_t high = given.high;
    window.base = clamp_to<int64_t>(low, 0, p.num_rows);
    int64_t end = clamp_to<int64_t>(high, window.base, p.num_rows);
    window.rows = static_cast<int32_t>(end - window.base);
    if (window.base != low || end != high) window.status |= kBadParam;
  }
  int32_t wanted = p.verify_lens != nullptr ? given.verify_len : window.rows;
  window.verified = clamp_to(wanted, 0, min_of(window.rows, p.num_nodes));
  if (window.verified != wanted) window.status |= kBadParam;
  return window;
}

SPECFAST_HD Window request_window(const AcceptParams& p, int b) {
  return request_window(p, b, GivenWindow::load(p, b));
}

// Committed length of a request; 0 if what is given cannot be one.
SPECFAST_HD int32_t legal_if_given(const AcceptParams& p, int32_t prefix_len) {
  return prefix_len < 0 || prefix_len > INT32_MAX - p.width ? 0 : prefix_len;
}
SPECFAST_HD int32_t legal_prefix_len(const AcceptParams& p, int b) {
  return legal_if_given(p, p.prefix_lens[b]);
}

// A draft token as the walk compares it: bad ids are kNoToken.
SPECFAST_HD int32_t draft_token(const AcceptParams& p, int b, int node) {
  int64_t token = p.draft_tokens[b * p.draft_tokens_stride + node];
  return token >= 0 && token < p.vocab_size ? static_cast<int32_t>(token) : kNoToken;
}

struct Step {
  int32_t node;  // -1: no child carries the token
  int32_t status;
};

// The verify row of a node.
struct RowStep {
  int32_t row;  // within the window; -1: there is none
  int32_t status;
};

// Links of a chain: node i + 1 follows node i.
struct ChainLinks {
  static constexpr bool kIsChain = true;
  int32_t* tokens = nullptr;  // scratch [N]

  template <class Arena>
  SPECFAST_HD void place(Arena& arena, const AcceptParams& p) {
    tokens = arena.template scratch<int32_t>(p.num_nodes);
  }
  template <class Team>
  SPECFAST_HD void load(Team& team, const AcceptParams& p, int b) {
    SPECFAST_NO_UNROLL
    for (int i = team.rank(); i < p.num_nodes; i += team.size()) tokens[i] = draft_token(p, b, i);
  }
  SPECFAST_HD RowStep row(int32_t node, const Window&) const { return {node, kStatusOk}; }
  SPECFAST_HD Step child(int32_t node, int32_t token, const Window& window) const {
    int32_t next = node + 1;
    if (next >= window.verified) return {-1, kStatusOk};
    if (tokens[next] == kNoToken) return {-1, kBadToken};
    return {tokens[next] == token ? next : -1, kStatusOk};
  }
};

// How far a walk came: the rows it visited and what the target said after each.
struct Path {
  int32_t* rows = nullptr;    // scratch [S], relative to the window
  int32_t* tokens = nullptr;  // scratch [S]
  int32_t length = 0;
  int32_t last_node = 0;
  int32_t status = 0;
  Prediction last{};

  template <class Arena>
  SPECFAST_HD void place(Arena& arena, const AcceptParams& p) {
    rows = arena.template scratch<int32_t>(p.width);
    tokens = arena.template scratch<int32_t>(p.width);
  }
};

// Walks from the root along the children that carry the target's token. Every thread of the team
// takes the same steps; rank 0 of each part writes the path. The chain's next rows are known, so
// kAhead of them are read in one pass.
template <int kAhead, class Team, class Links, class Source>
SPECFAST_HD void walk(Team& team, const AcceptParams& p, const Window& window, const Links& links,
                      Source& source, Path& path) {
  int32_t node = 0;
  int32_t first_of_read = 0;
  int32_t rows_read = 0;
  int32_t last_row = -1;
  while (true) {
    RowStep at = links.row(node, window);
    path.status |= at.status;
    if (at.row < 0) break;
    if (at.row <= last_row) {
      path.status |= kBadTree;
      break;
    }
    last_row = at.row;
    if (path.length == rows_read) {
      int32_t count = min_of(kAhead, window.verified - node);
      source.template read<kAhead>(team, window.base + at.row, count);
      first_of_read = at.row;
      rows_read += kAhead;
    }
    int32_t ahead = kAhead > 1 ? at.row - first_of_read : 0;
    path.last = source.template prediction<kAhead>(team, window.base + at.row, ahead);
    path.status |= path.last.status;
    path.last_node = node;
    if (team.rank() == 0) {
      path.rows[path.length] = at.row;
      path.tokens[path.length] = path.last.token;
    }
    ++path.length;
    if (!path.last.valid || path.length == p.width) break;
    Step next = links.child(node, path.last.token, window);
    path.status |= next.status;
    if (next.node < 0) break;
    node = next.node;
  }
}

// Drafts past verify_lens that a chain would have accepted: a statistic, which sets no status.
template <class Team, class Source>
SPECFAST_HD int32_t count_trimmed(Team& team, const AcceptParams& p, const Window& window,
                                  const ChainLinks& links, Source& source, const Path& path) {
  if (path.length == 0 || path.last_node != window.verified - 1) return 0;
  Prediction prediction = path.last;
  int32_t trimmed = 0;
  int32_t limit = min_of(window.rows, p.num_nodes);
  for (int32_t node = window.verified; node < limit; ++node) {
    if (!prediction.valid || links.tokens[node] != prediction.token) break;
    ++trimmed;
    if (node + 1 == limit) break;
    source.template read<1>(team, window.base + node, 1);
    prediction = source.template prediction<1>(team, window.base + node, 0);
  }
  return trimmed;
}

}  // namespace specfast
