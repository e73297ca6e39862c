#pragma once

#include "core/logprob.h"
#include "core/sampled_state.h"

namespace specfast {

// What a row says under a rule that decides row by row.
struct RowVerdict {
  int32_t child;  // the accepted one, by its number in sibling order; -1: the path ends here
  int32_t token;  // after the row
  float logprob;  // of the token, for whoever asks
};

// Reads verify row `row`, which is that of `node`, and lets the rule decide. The last row of a path
// looks at no child. What the rule leaves of the row where the path ends is drawn from, if
// wants_draw().
template <class Team, class State, class Rule, class WantsDraw>
SPECFAST_HD RowVerdict visit_row(Team& team, State& s, Rule& rule, int32_t node, int32_t row,
                                 bool is_last, int32_t* status, WantsDraw wants_draw) {
  s.begin_open(team, row);
  s.list_children(team, node, is_last ? 0 : s.window.verified);
  rule.look_ahead(team, s, node);
  s.finish_open(team, node, [&] { rule.weigh(team, s); });
  *status |= s.row.status;
  if (is_last || s.row.kind == kUnusableRow) {
    s.children.count = 0;
    s.children.end_status = kStatusOk;
  }
  RowVerdict verdict{rule.choose(team, s, node, status), kNoToken, 0.0f};
  if (verdict.child >= 0) {
    verdict.token = s.children.tokens[verdict.child];
  } else {
    if (!wants_draw()) return verdict;
    Drawn next = rule.finish(team, s, node);
    verdict.token = next.token;
    *status |= next.status;
  }
  if (s.p.logprobs.logprobs != nullptr) {
    verdict.logprob =
        token_logprob(team, s.row, verdict.token, s.p.logprobs.processed, s.sampling.scale);
  }
  return verdict;
}

// Walks from the root through the accepted drafts; the rule decides at every row. The last token is
// drawn from what the rule leaves of the last row.
template <class Team, class State, class Rule>
SPECFAST_HD void sampled_walk(Team& team, State& s, Rule& rule, Path& path, float* logprobs) {
  const Window& window = s.window;
  int32_t node = 0;
  int32_t last_row = -1;
  while (true) {
    RowStep at = s.links.row(node, window);
    path.status |= at.status;
    if (at.row < 0) break;
    if (at.row <= last_row) {
      path.status |= kBadTree;
      break;
    }
    last_row = at.row;
    bool is_last = path.length + 1 == s.p.accept.width;
    RowVerdict verdict =
        visit_row(team, s, rule, node, at.row, is_last, &path.status, [] { return true; });
    path.last_node = node;
    if (team.rank() == 0) {
      path.rows[path.length] = at.row;
      path.tokens[path.length] = verdict.token;
      if (logprobs != nullptr) logprobs[path.length] = verdict.logprob;
    }
    ++path.length;
    if (verdict.child < 0) break;
    node = s.children.nodes[verdict.child];
    s.append(team, verdict.token);
    team.sync_part();  // children have been looked at
  }
}

// Drafts past verify_lens that a chain would have accepted by the same coins: a statistic, which
// sets no status.
template <class Team, class State, class Rule>
SPECFAST_HD int32_t count_trimmed_sampled(Team& team, State& s, Rule& rule, const Path& path) {
  if (path.length == 0 || path.last_node != s.window.verified - 1) return 0;
  int32_t trimmed = 0;
  int32_t ignored = kStatusOk;
  int32_t limit = min_of(s.window.rows, s.p.accept.num_nodes);
  for (int32_t node = s.window.verified - 1; node + 1 < limit; ++node) {
    if (node >= s.window.verified) s.open(team, node);
    if (s.row.kind == kUnusableRow) break;
    s.list_children(team, node, limit);
    rule.look_ahead(team, s, node);
    team.sync_part();  // children are listed
    rule.weigh(team, s);
    team.sync_part();  // and weighed
    if (rule.choose(team, s, node, &ignored) < 0) break;
    ++trimmed;
    s.append(team, s.children.tokens[0]);
    team.sync_part();  // children have been looked at
  }
  return trimmed;
}

}  // namespace specfast
