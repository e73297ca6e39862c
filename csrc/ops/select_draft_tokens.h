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
  return select_scratch(arena, p.lists, p.num_nodes);
}

template <class Team>
SPECFAST_HD void select_draft_tokens_request(Team& team, const SelectDraftTokensParams& p,
                                             const SelectScratch& scratch, int b) {
  select_candidates(team, p.lists, scratch, p.num_nodes, b);
  team.sync_part();
  int32_t* selected = p.selected_index + static_cast<int64_t>(b) * (p.num_nodes - 1);
  bool malformed = false;
  for (int node = 1 + team.rank(); node < p.num_nodes; node += team.size()) {
    int32_t candidate = scratch.candidates.candidate_of[node];
    malformed |= scratch.limits[candidate / p.lists.topk] == 0;
    if (team.part() == 0) selected[node - 1] = candidate;
  }
  malformed = team.any(malformed);
  if (team.part() == 0 && team.rank() == 0) p.status[b] = malformed ? kBadTree : kStatusOk;
}

inline void select_draft_tokens_cpu(const SelectDraftTokensParams& p) {
  SerialTeam team;
  SelectScratch scratch = select_draft_tokens_scratch(team, p);
  for (int b = 0; b < p.batch_size; ++b) select_draft_tokens_request(team, p, scratch, b);
}

void select_draft_tokens_cuda(const SelectDraftTokensParams& p, CUstream_st* stream);

}  // namespace specfast
