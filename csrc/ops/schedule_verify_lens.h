#pragma once

#include "core/find_cut.h"
#include "core/survival.h"

struct CUstream_st;

namespace specfast {

constexpr int64_t kMaxScheduledDrafts = 24576;  // their keys are 96 KB of shared memory

// Which drafts of a batch are verified: beyond what each request verifies anyway, the `budget` best
// by (survival descending, position ascending, request ascending). Survivals do not rise along a
// chain, so what is chosen of a request is a prefix. Whether a draft is chosen depends on its own
// survival and on those before it in this order, in its chain on earlier drafts only.
struct ScheduleVerifyLensParams {
  int32_t batch_size;         // B
  int32_t num_drafts;         // gamma >= 0; B * max(gamma, 1) <= kMaxScheduledDrafts
  const float* confidence;    // [B, gamma]
  int64_t confidence_stride;  // elements between rows
  ConfidenceForm form;
  const float* temperatures;        // [gamma], > 0, of the form kLogits; or null: 1
  const int32_t* min_lens;          // [B] rows verified anyway, anchor included; or null: 1
  const int32_t* max_lens;          // [B] rows at most; 0 = padded slot; or null: gamma + 1
  IdView anchors;                   // [B] < 0: finished, a padded slot, too; or null
  const int32_t* budget_on_device;  // [1] drafts beyond min_lens, or null: `budget`
  int32_t budget;                   // >= 0
  float epsilon;                    // drafts of a lower survival are not chosen

  int32_t* verify_lens;  // [B] anchor included
  float* survival;       // [B, gamma] 0 where max_lens allows no row
  int32_t* status;       // [B]
};

struct ScheduleScratch {
  uint32_t* keys;     // [gamma, B] 0 where there is nothing to choose
  int32_t* last_tie;  // [1]
};

template <class Arena>
SPECFAST_HD ScheduleScratch schedule_verify_lens_scratch(Arena& arena,
                                                         const ScheduleVerifyLensParams& p) {
  return {arena.template scratch<uint32_t>(p.batch_size * p.num_drafts),
          arena.template scratch<int32_t>(1)};
}

struct LenRange {
  int32_t least;
  int32_t most;
  int32_t status;
};

SPECFAST_HD LenRange len_range(const ScheduleVerifyLensParams& p, int b) {
  int32_t all = p.num_drafts + 1;
  int32_t wanted_most = p.max_lens != nullptr ? p.max_lens[b] : all;
  int32_t wanted_least = p.min_lens != nullptr ? p.min_lens[b] : 1;
  bool finished = p.anchors && p.anchors[b] < 0;
  int32_t most = finished ? 0 : clamp_to(wanted_most, 0, all);
  int32_t least = clamp_to(wanted_least, 1, all);
  bool bad = !finished && (most != wanted_most || (most > 0 && least != wanted_least));
  return {min_of(least, most), most, bad ? kBadParam : kStatusOk};
}

// Drafts of a chain whose numbers are asked for at once: a load behind a store waits for it.
constexpr int kDraftsAhead = 8;

struct CandidateRange {
  int count;
  KeyRange keys;
};

// Survivals, status, and the keys of what may be chosen. A barrier.
template <class Team>
SPECFAST_HD CandidateRange rank_drafts(Team& team, const ScheduleVerifyLensParams& p,
                                       uint32_t* keys, int32_t budget_status) {
  CandidateRange range{0, {UINT32_MAX, 0}};
  SPECFAST_NO_UNROLL
  for (int b = team.rank(); b < p.batch_size; b += team.size()) {
    const float* given = p.confidence + b * p.confidence_stride;
    LenRange lens = len_range(p, b);
    SurvivalChain chain(p.form);
    SPECFAST_NO_UNROLL
    for (int first = 0; first < p.num_drafts; first += kDraftsAhead) {
      float values[kDraftsAhead];
      float temperatures[kDraftsAhead];
      SPECFAST_UNROLL
      for (int i = 0; i < kDraftsAhead; ++i) {
        int draft = min_of(first + i, p.num_drafts - 1);
        values[i] = given[draft];
        temperatures[i] = p.temperatures != nullptr ? p.temperatures[draft] : 1.0f;
      }
      SPECFAST_UNROLL
      for (int i = 0; i < kDraftsAhead; ++i) {
        int draft = first + i;
        if (draft >= p.num_drafts) break;
        int row = draft + 1;
        float survival = row < lens.most ? chain.next(values[i], temperatures[i]) : 0.0f;
        bool candidate = row < lens.most && row >= lens.least && survival >= p.epsilon;
        uint32_t key = candidate ? survival_key(survival) : 0;
        keys[draft * p.batch_size + b] = key;
        p.survival[static_cast<int64_t>(b) * p.num_drafts + draft] = survival;
        if (!candidate) continue;
        ++range.count;
        range.keys = {min_of(range.keys.lowest, key), max_of(range.keys.highest, key)};
      }
    }
    p.status[b] = lens.status | chain.status() | (lens.most > 0 ? budget_status : kStatusOk);
  }
  return {team.sum(range.count), team.union_of(range.keys)};
}

// Index of the last of the cut's ties, in ascending order of their index: position before request.
template <class Team>
SPECFAST_HD int last_chosen_tie(Team& team, const ScheduleScratch& scratch, int n, Cut cut) {
  if (cut.num_ties == 0) return -1;
  int before_chunk = 0;
  SPECFAST_NO_UNROLL
  for (int first = 0; before_chunk < cut.num_ties; first += team.size()) {
    int i = first + team.rank();
    bool tie = i < n && scratch.keys[i] == cut.key;
    CountPair in_chunk;
    CountPair before = team.exclusive_count(tie, false, &in_chunk);
    if (tie && before_chunk + before.first == cut.num_ties - 1) *scratch.last_tie = i;
    before_chunk += in_chunk.first;
  }
  team.sync_part();  // last_tie: written above, read below
  return *scratch.last_tie;
}

template <class Team>
SPECFAST_HD void schedule_verify_lens_batch(Team& team, const ScheduleVerifyLensParams& p,
                                            const ScheduleScratch& scratch) {
  int32_t given = p.budget_on_device != nullptr ? *p.budget_on_device : p.budget;
  int32_t budget = max_of(given, 0);
  CandidateRange range =
      rank_drafts(team, p, scratch.keys, budget != given ? kBadParam : kStatusOk);

  int n = p.batch_size * p.num_drafts;
  Cut cut{0, 0};
  if (budget == 0) {
    cut.key = UINT32_MAX;
  } else if (budget < range.count) {
    cut = find_cut(team, scratch.keys, n, budget, range.keys);
  }
  int last_tie = last_chosen_tie(team, scratch, n, cut);

  SPECFAST_NO_UNROLL
  for (int b = team.rank(); b < p.batch_size; b += team.size()) {
    LenRange lens = len_range(p, b);
    int row = lens.least;
    SPECFAST_NO_UNROLL
    for (; row < lens.most; ++row) {
      int i = (row - 1) * p.batch_size + b;
      uint32_t key = scratch.keys[i];
      if (!(key > cut.key || (key == cut.key && i <= last_tie))) break;
    }
    p.verify_lens[b] = row;
  }
}

inline void schedule_verify_lens_cpu(const ScheduleVerifyLensParams& p) {
  SerialTeam team;
  schedule_verify_lens_batch(team, p, schedule_verify_lens_scratch(team, p));
}

void schedule_verify_lens_cuda(const ScheduleVerifyLensParams& p, CUstream_st* stream);

}  // namespace specfast
