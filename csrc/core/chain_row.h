#pragma once

#include "core/accept_tail.h"
#include "core/row_form.h"
#include "core/sampled_walk.h"

namespace specfast {

// One row of a chain under a rule that decides row by row: without edits a row's verdict does not
// depend on the rows before it, so that a team per row can find them all at once. Whose verdict
// completes the path writes the record; rows behind its end have been read in vain.
template <class Form, class Rule>
struct ChainRow {
  using Element = typename Form::Element;

  static constexpr int32_t kMostRows = 21;  // of a chain
  static constexpr uint64_t kAllRows = (uint64_t{1} << kMostRows) - 1;

  // Whether this is how a batch is read. In larger ones a walk was as fast or faster: an H200 is
  // busy with rows that are needed.
  static bool serves(const SampledAcceptParams& p) {
    constexpr int32_t kMostRequests = Form::kFiltered ? 8 : Rule::kIsLight ? 32 : 128;
    constexpr int64_t kMostAtOnce = 1024;
    int64_t rows = int64_t{p.accept.batch_size} * p.accept.num_nodes;
    return p.outcomes != nullptr && p.links.retrieve_next_token == nullptr &&
           p.accept.cap_trim_lens == nullptr && p.accept.num_nodes <= kMostRows &&
           p.accept.batch_size <= kMostRequests && rows <= kMostAtOnce;
  }
  // So many rows leave each other room; of more, one is read only while the path may come to it.
  SPECFAST_HD static bool is_crowded(const AcceptParams& p) {
    constexpr int kUncrowded = 8;
    return p.batch_size * p.num_nodes > kUncrowded;
  }

  SampledState<Form, false, true> state;
  Rule rule;
  int32_t node;
  Path path{};
  float* logprobs = nullptr;  // scratch [S]
  // Progress as rank 0 has seen it. A look has a word of its own: nothing waits for whoever still
  // reads the last one.
  enum Look { kAtStart, kBeforeDraw, kAtEnd, kOnArrival, kLooks };
  uint64_t* seen_by_part = nullptr;   // scratch [kLooks]
  uint32_t* joined_status = nullptr;  // scratch [1]
  int32_t rows = 0;                   // of the request

  // `job`: of B * N. All first rows come before all second ones, which fewer requests need.
  SPECFAST_HD ChainRow(const SampledAcceptParams& p, int job, int32_t groups_to_keep)
      : state(p, job % p.accept.batch_size, groups_to_keep),
        rule(p),
        node(job / p.accept.batch_size) {}

  template <class Arena>
  SPECFAST_HD void place(Arena& arena) {
    state.place(arena);
    path.place(arena, state.p.accept);
    if (state.p.logprobs.logprobs != nullptr) {
      logprobs = arena.template scratch<float>(state.p.accept.width);
    }
    seen_by_part = arena.template scratch<uint64_t>(kLooks);
    joined_status = arena.template scratch<uint32_t>(1);
    rule.place(arena, state.p);
  }

  template <class Team>
  SPECFAST_HD void run(Team& team) {
    const AcceptParams& p = state.p.accept;
    team.arrive();
    place(team);
    bool crowded = is_crowded(p);
    state.load(team, crowded ? -1 : node);
    rows = min_of(state.window.verified, p.width);
    if (node >= max_of(rows, 1)) {
      team.wait();
      return;
    }
    TailInputs<Team> tail(team, p, state.b, state.window);
    if (rows == 0) {
      team.wait();
      if (team.part() == 0) write(team, tail);
      return;
    }
    bool is_first = team.part() == 0 && team.rank() == 0;
    if (crowded && !is_wanted(team, kAtStart, is_first ? team.peek(progress()) : 0)) {
      if (team.part() == 0) arrive(team, done_bit());
      return;
    }
    int32_t status = kStatusOk;
    // What a draw searches came before this exchange, and stays until the third one after it: that
    // would be a log-probability's.
    bool asks_again = crowded && logprobs == nullptr;
    auto wants_draw = [&] {
      if (!asks_again) return true;
      return is_wanted(team, kBeforeDraw, is_first ? team.fetch_or(progress(), end_bit()) : 0);
    };
    RowVerdict verdict =
        visit_row(team, state, rule, node, node, node + 1 == p.width, &status, wants_draw);
    if (team.part() != 0) return;  // the last exchange was the last access to another's scratch
    status |= state.coin_status;
    bool ends = verdict.child < 0;
    uint64_t mine = done_bit() | (ends ? end_bit() : 0);
    if (status != kStatusOk || logprobs != nullptr) mine |= note_bit();
    // Of rows that only accept their draft no more has to be known than that.
    bool is_plain = false;
    if (ends) {
      if (team.rank() == 0) seen_by_part[kAtEnd] = team.peek(progress());
      team.sync_part();  // rank 0 has looked
      is_plain = accepts_before(seen_by_part[kAtEnd]) && (mine & note_bit()) == 0;
    }
    if (is_plain) {
      path.length = node + 1;
      SPECFAST_NO_UNROLL
      for (int32_t i = team.rank(); i < path.length; i += team.size()) {
        path.rows[i] = i;
        path.tokens[i] = i < node ? state.links.chain.tokens[i + 1] : verdict.token;
      }
    } else {
      if (team.rank() == 0) {
        *joined_status = kStatusOk;
        RowOutcome& outcome = outcomes()[node];
        outcome.token = verdict.token;
        outcome.status = status;
        outcome.logprob = verdict.logprob;
      }
      if (!arrive(team, mine)) return;
      SPECFAST_NO_UNROLL
      for (int32_t i = team.rank(); i < path.length; i += team.size()) {
        path.rows[i] = i;
        path.tokens[i] = team.peek(&outcomes()[i].token);
        if (logprobs != nullptr) logprobs[i] = team.peek(&outcomes()[i].logprob);
      }
      SPECFAST_NO_UNROLL
      for (int32_t i = team.rank(); i < path.length; i += team.size()) {
        team.atomic_or(joined_status, static_cast<uint32_t>(team.peek(&outcomes()[i].status)));
      }
      team.sync_part();  // all have joined theirs
      path.status |= static_cast<int32_t>(*joined_status);
    }
    path.status |= state.sampling.status;
    path.last_node = path.length - 1;
    write(team, tail);
    if (is_plain) arrive(team, mine);
  }

 private:
  SPECFAST_HD RowOutcome* outcomes() const {
    return state.p.outcomes + static_cast<int64_t>(state.b) * state.p.accept.num_nodes;
  }
  // Three bits of every row of the request: it is done; the path would end there; it has something
  // to note that its draft does not say.
  SPECFAST_HD uint64_t* progress() const { return &outcomes()->progress; }
  SPECFAST_HD uint64_t done_bit() const { return uint64_t{1} << node; }
  SPECFAST_HD uint64_t end_bit() const { return done_bit() << kMostRows; }
  SPECFAST_HD uint64_t note_bit() const { return done_bit() << 2 * kMostRows; }
  SPECFAST_HD static uint64_t done_bits(uint64_t progress) { return progress & kAllRows; }
  SPECFAST_HD static uint64_t end_bits(uint64_t progress) {
    return progress >> kMostRows & kAllRows;
  }
  SPECFAST_HD static uint64_t note_bits(uint64_t progress) { return progress >> 2 * kMostRows; }

  // Whether the path is known, and its length.
  SPECFAST_HD static bool is_complete(uint64_t progress, int32_t* length) {
    uint64_t ends = end_bits(progress);
    uint64_t needed = ends ^ (ends - 1);  // up to the first end
    *length = 0;
    for (uint64_t rest = needed; rest != 0 && ends != 0; rest >>= 1) ++*length;
    return ends != 0 && (done_bits(progress) & needed) == needed;
  }
  SPECFAST_HD bool ends_before(uint64_t progress) const {
    return (end_bits(progress) & (done_bit() - 1)) != 0;
  }
  // Whether all rows before this one have accepted, with nothing to note.
  SPECFAST_HD bool accepts_before(uint64_t progress) const {
    uint64_t before = done_bit() - 1;
    uint64_t others = (end_bits(progress) | note_bits(progress)) & before;
    return (progress & before) == before && others == 0;
  }
  // Whether the path may come to this row, by the progress that rank 0 of part 0 has seen. An
  // exchange to which every part posts, as a `tell` may follow.
  template <class Team>
  SPECFAST_HD bool is_wanted(Team& team, Look look, uint64_t seen) {
    if (team.rank() == 0) seen_by_part[look] = seen;
    team.sync_part();  // rank 0 knows
    uint64_t words[1] = {seen_by_part[look]};
    return !ends_before(*state.row.exchange.all_gather(team, words));
  }

  // Whether this row completes the path. The last row of all leaves the workspace as it was.
  template <class Team>
  SPECFAST_HD bool arrive(Team& team, uint64_t mine) {
    if (team.rank() == 0) {
      uint64_t before = team.fetch_or(progress(), mine);
      if (done_bits(before | mine) == (uint64_t{1} << rows) - 1) *progress() = 0;
      seen_by_part[kOnArrival] = before;
    }
    team.sync_part();  // rank 0 knows
    uint64_t before = seen_by_part[kOnArrival];
    int32_t ignored;
    return !is_complete(before, &ignored) && is_complete(before | mine, &path.length);
  }

  template <class Team>
  SPECFAST_HD void write(Team& team, const TailInputs<Team>& tail) {
    const AcceptParams& p = state.p.accept;
    int32_t committed = write_record(team, p, state.b, state.window, tail, path);
    if (logprobs == nullptr) return;
    float* out = state.p.logprobs.logprobs + static_cast<int64_t>(state.b) * p.width;
    SPECFAST_NO_UNROLL
    for (int32_t i = team.rank(); i < p.width; i += team.size()) {
      out[i] = i < committed ? logprobs[i] : 0.0f;
    }
  }
};

}  // namespace specfast
