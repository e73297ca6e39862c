#pragma once

#include "core/accept_walk.h"

namespace specfast {

// What the tail needs from memory, asked for before the walk so that it costs no latency after.
// Each thread of part 0 holds the first ending id and the first slot that fall to it.
template <class Team>
struct TailInputs {
  SPECFAST_HD TailInputs(Team& team, const AcceptParams& p, int b, const Window& window) {
    if (team.part() != 0) return;
    const FinishParams& finish = p.finish;
    given_prefix_len = p.prefix_lens[b];
    if (finish.max_tokens_left != nullptr) given_limit = finish.max_tokens_left[b];
    if (finish.min_tokens_left != nullptr) minimum = finish.min_tokens_left[b];
    if (finish.ignore_eos != nullptr) ignore_eos = finish.ignore_eos[b];
    if (p.accumulate_status) earlier_status = p.status[b];
    int i = team.rank();
    if (i < finish.num_eos + finish.num_stop) first_ending = ending_id(p, b, i);
    if (p.slots && i < min_of(p.width, window.rows)) first_slot = p.out_cache_loc[window.base + i];
  }

  // EOS ids, then the request's stop ids.
  SPECFAST_HD static int32_t ending_id(const AcceptParams& p, int b, int i) {
    const FinishParams& finish = p.finish;
    if (i < finish.num_eos) return finish.eos_token_ids[i];
    return finish.stop_token_ids[static_cast<int64_t>(b) * finish.num_stop + i - finish.num_eos];
  }

  // Tokens that may be emitted.
  SPECFAST_HD int32_t limit() const { return max_of(given_limit, 0); }

  // As they came: to look at them would be to wait for them.
  int32_t given_prefix_len = 0;
  int32_t given_limit = INT32_MAX;
  int32_t minimum = 0;  // tokens before EOS or a stop id counts
  uint8_t ignore_eos = 0;
  int32_t earlier_status = kStatusOk;  // of an op before this one
  int32_t first_ending = kNoToken;
  int64_t first_slot = -1;
};

struct Truncation {
  int32_t commit_len;
  int32_t reason;
};

// The first token that ends the request, or the limit. Threads share the ending ids; the smallest
// code is the earliest token, EOS before a stop id.
template <class Team>
SPECFAST_HD Truncation truncate(Team& team, const AcceptParams& p, int b,
                                const TailInputs<Team>& in, const Path& path) {
  constexpr int kReasons = 4;
  int32_t limit = in.limit();
  int32_t end = min_of(path.length, limit);
  int32_t num_eos = p.finish.num_eos;
  int32_t num_endings = num_eos + p.finish.num_stop;
  int32_t earliest = INT32_MAX;
  SPECFAST_NO_UNROLL
  for (int32_t i = team.rank(); i < num_endings; i += team.size()) {
    bool is_eos = i < num_eos;
    if (is_eos && in.ignore_eos != 0) continue;
    int32_t ending = i == team.rank() ? in.first_ending : in.ending_id(p, b, i);
    SPECFAST_NO_UNROLL
    for (int32_t at = max_of(in.minimum, 1) - 1; at < end; ++at) {
      if (path.tokens[at] == ending) {
        earliest = min_of(earliest, at * kReasons + (is_eos ? kFinishedEos : kFinishedStop));
        break;
      }
    }
  }
  if (num_endings > 0) earliest = team.min(earliest);
  if (earliest != INT32_MAX) return {earliest / kReasons + 1, earliest % kReasons};
  if (path.length >= limit) return {limit, kFinishedLength};
  return {path.length, kNotFinished};
}

// Fills the request's rows of `predict` with the padding, and in a ragged batch the rows before the
// first and after the last window; the committed ones come over it after a barrier.
template <class Team>
SPECFAST_HD void clear_predict(Team& team, const AcceptParams& p, int b, const Window& window) {
  int64_t begin = p.qo_indptr != nullptr && b == 0 ? 0 : window.base;
  int64_t end = window.base + window.rows;
  if (p.qo_indptr != nullptr && b == p.batch_size - 1) end = p.num_rows;
  SPECFAST_NO_UNROLL
  for (int64_t row = begin + team.rank(); row < end; row += team.size()) {
    p.predict[row] = kNoToken;
  }
}

// The same where there is no request: a ragged batch may have rows all the same.
inline void clear_rows_of_no_request(const AcceptParams& p) {
  for (int64_t row = 0; p.batch_size == 0 && row < p.num_rows; ++row) p.predict[row] = kNoToken;
}

// Writes the whole record of one request and returns its commit_len. One part runs it.
template <class Team>
SPECFAST_HD int32_t write_record(Team& team, const AcceptParams& p, int b, const Window& window,
                                 const TailInputs<Team>& in, const Path& path) {
  clear_predict(team, p, b, window);
  int32_t prefix_len = legal_if_given(p, in.given_prefix_len);
  int32_t status = in.earlier_status | (prefix_len != in.given_prefix_len ? kBadParam : kStatusOk);
  team.converge();
  team.sync_part();  // the path is written; predict is clear
  Truncation cut{0, kNotFinished};
  if (window.verified > 0) cut = truncate(team, p, b, in, path);
  SPECFAST_NO_UNROLL
  for (int32_t i = team.rank(); i < p.width; i += team.size()) {
    int64_t at = static_cast<int64_t>(b) * p.width + i;
    bool committed = i < cut.commit_len;
    int64_t row = committed ? window.base + path.rows[i] : -1;
    p.accept_index[at] = static_cast<int32_t>(row);
    p.out_tokens[at] = committed ? path.tokens[i] : kNoToken;
    p.positions[at] = committed ? prefix_len + i : -1;
    if (p.slots) {
      int64_t slot =
          i == team.rank() || !committed ? in.first_slot : p.out_cache_loc[window.base + i];
      p.slots.store(at, committed ? slot : -1);
    }
    if (committed) p.predict[row] = path.tokens[i];
  }
  if (team.rank() == 0) {
    int32_t bonus = cut.commit_len > 0 ? path.tokens[cut.commit_len - 1] : kNoToken;
    p.num_correct_drafts[b] = max_of(path.length - 1, 0);
    p.accept_lens[b] = path.length;
    p.commit_lens[b] = cut.commit_len;
    p.new_seq_lens[b] = prefix_len + cut.commit_len;
    p.bonus[b] = bonus;
    p.next_anchor[b] = cut.reason == kNotFinished ? bonus : kNoToken;
    p.finish_reason[b] = cut.reason;
    p.status[b] = status | window.status | path.status;
  }
  return cut.commit_len;
}

}  // namespace specfast
