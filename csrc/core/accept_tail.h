#pragma once

#include "core/accept_walk.h"

namespace specfast {

// The per-request numbers of the tail, loaded before the walk so that they cost no latency after.
struct TailInputs {
  int32_t prefix_len;
  int32_t limit;    // tokens that may be emitted
  int32_t minimum;  // tokens before EOS or a stop id counts
  bool ignore_eos;
  int32_t previous_status;
};

SPECFAST_HD TailInputs load_tail(const AcceptParams& p, int b) {
  const FinishParams& finish = p.finish;
  TailInputs in{};
  in.prefix_len = p.prefix_lens[b];
  in.limit = finish.max_tokens_left != nullptr ? max_of(finish.max_tokens_left[b], 0) : INT32_MAX;
  in.minimum = finish.min_tokens_left != nullptr ? finish.min_tokens_left[b] : 0;
  in.ignore_eos = finish.ignore_eos != nullptr && finish.ignore_eos[b] != 0;
  in.previous_status = p.accumulate_status ? p.status[b] : 0;
  return in;
}

struct Truncation {
  int32_t commit_len;
  int32_t reason;
};

// The first token that ends the request, or the limit. Threads share the (token, id) pairs; the
// smallest code is the earliest token, EOS before a stop id.
template <class Team>
SPECFAST_HD Truncation truncate(Team& team, const AcceptParams& p, int b, const TailInputs& in,
                                const Path& path) {
  constexpr int kReasons = 4;
  const FinishParams& finish = p.finish;
  int32_t candidates = min_of(path.length, in.limit);
  int32_t first = max_of(in.minimum - 1, 0);
  int32_t num_eos = in.ignore_eos ? 0 : finish.num_eos;
  int32_t ids = num_eos + finish.num_stop;
  int32_t pairs = first < candidates ? (candidates - first) * ids : 0;
  int32_t earliest = INT32_MAX;
  for (int32_t pair = team.rank(); pair < pairs; pair += team.size()) {
    int32_t position = first + pair / ids;
    int32_t id = pair % ids;
    bool is_eos = id < num_eos;
    int32_t ending =
        is_eos ? finish.eos_token_ids[id]
               : finish.stop_token_ids[static_cast<int64_t>(b) * finish.num_stop + (id - num_eos)];
    if (path.tokens[position] == ending) {
      earliest = min_of(earliest, position * kReasons + (is_eos ? kFinishedEos : kFinishedStop));
    }
  }
  if (ids > 0) earliest = team.min(earliest);
  if (earliest != INT32_MAX) return {earliest / kReasons + 1, earliest % kReasons};
  if (path.length >= in.limit) return {in.limit, kFinishedLength};
  return {path.length, kNotFinished};
}

// Fills the request's rows of `predict` with the padding. Before the walk: the tail then writes
// the committed rows over it, barriers later.
template <class Team>
SPECFAST_HD void clear_predict(Team& team, const AcceptParams& p, int b, const Window& window) {
  int64_t end = window.base + window.rows;
  if (p.qo_indptr != nullptr && b == p.batch_size - 1) end = p.num_rows;
  for (int64_t row = window.base + team.rank(); row < end; row += team.size()) {
    p.predict[row] = kNoToken;
  }
}

// Writes the whole record of one request. One part runs it.
template <class Team>
SPECFAST_HD void write_record(Team& team, const AcceptParams& p, int b, const Window& window,
                              const TailInputs& in, const Path& path) {
  team.sync_part();  // rank 0 wrote the path
  Truncation cut{0, kNotFinished};
  if (window.verified > 0) cut = truncate(team, p, b, in, path);
  for (int32_t i = team.rank(); i < p.width; i += team.size()) {
    int64_t at = static_cast<int64_t>(b) * p.width + i;
    bool committed = i < cut.commit_len;
    int64_t row = committed ? window.base + path.rows[i] : -1;
    p.accept_index[at] = static_cast<int32_t>(row);
    p.out_tokens[at] = committed ? path.tokens[i] : kNoToken;
    p.positions[at] = committed ? in.prefix_len + i : -1;
    if (p.slots) p.slots.store(at, committed ? p.out_cache_loc[window.base + i] : -1);
    if (committed) p.predict[row] = path.tokens[i];
  }
  if (team.rank() == 0) {
    int32_t bonus = cut.commit_len > 0 ? path.tokens[cut.commit_len - 1] : kNoToken;
    p.num_correct_drafts[b] = max_of(path.length - 1, 0);
    p.accept_lens[b] = path.length;
    p.commit_lens[b] = cut.commit_len;
    p.new_seq_lens[b] = in.prefix_len + cut.commit_len;
    p.bonus[b] = bonus;
    p.next_anchor[b] = cut.reason == kNotFinished ? bonus : kNoToken;
    p.finish_reason[b] = cut.reason;
    p.status[b] = in.previous_status | window.status | path.status;
  }
}

}  // namespace specfast
