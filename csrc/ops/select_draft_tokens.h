#pragma once

#include "core/select_candidates.h"
#include "core/status.h"
#include "core/team.h"

struct CUstream_st;

namespace specfast {

// Rerank of EAGLE-2: which num_nodes - 1 candidates of each request are verified.
struct SelectDraftTokensParams {
  CandidateLists lists;
  int32_t batch_size;  // B
  int32_t num_nodes;   // N <= kMaxTreeNodes, N - 1 <= lists.num_candidates

  int32_t* selected_index;  // [B, N - 1] candidates, ascending
  int32_t* status;          // [B] kBadTree if a malformed path had to be selected
};

template <class Arena>
SPECFAST_HD SelectScratch select_draft_tokens_scratch(Arena& arena,
                                                      const SelectDraftTokensParams& p) {
  return select_scratch(arena, p.lists);
}

template <class Team>
SPECFAST_HD void select_draft_tokens_request(Team& team, const SelectDraftTokensParams& p,
                                             const SelectScratch& scratch, int b) {
  bool limited = select_candidates(team, p.lists, scratch, p.num_nodes, b);
  int32_t* selected = p.selected_index + static_cast<int64_t>(b) * (p.num_nodes - 1);
  int malformed = 0;
  SPECFAST_NO_UNROLL
  for (int i = team.rank(); i < p.lists.num_candidates; i += team.size()) {
    int32_t node = scratch.candidates.node_of[i];
    if (node == kNoNode) continue;
    if (team.part() == 0) selected[node - 1] = i;
    if (limited) malformed |= scratch.limits[i / p.lists.topk] == 0;
  }
  if (limited) malformed = team.any(malformed != 0);
  if (team.part() == 0 && team.rank() == 0) p.status[b] = malformed != 0 ? kBadTree : kStatusOk;
}

inline void select_draft_tokens_cpu(const SelectDraftTokensParams& p) {
  SerialTeam team;
  SelectScratch scratch = select_draft_tokens_scratch(team, p);
  for (int b = 0; b < p.batch_size; ++b) select_draft_tokens_request(team, p, scratch, b);
}

void select_draft_tokens_cuda(const SelectDraftTokensParams& p, CUstream_st* stream);

}  // namespace specfast
