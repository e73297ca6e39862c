#pragma once

#include "core/accept_tail.h"
#include "core/row_form.h"
#include "core/row_recorder.h"
#include "core/sampled_walk.h"

namespace specfast {

// Whether the rule reads recorded rows, where a workspace is given.
template <class Form, class Rule>
constexpr bool stores_rows() {
  return Rule::kStoresRows && !Form::kEdited;
}

// Sampled accept of one request: the walk, then the tail that all rules share. kChain: known to be
// a chain.
template <class Form, class Rule, bool kChain>
struct SampledRequest {
  using Element = typename Form::Element;

  static constexpr bool kStored = stores_rows<Form, Rule>();

  SampledState<Form, kStored, kChain> state;
  Rule rule;
  Path path{};
  float* logprobs = nullptr;  // scratch [S]

  SPECFAST_HD SampledRequest(const SampledAcceptParams& p, int b, int32_t groups_to_keep)
      : state(p, b, groups_to_keep), rule(p) {}

  template <class Arena>
  SPECFAST_HD void place(Arena& arena) {
    state.place(arena);
    path.place(arena, state.p.accept);
    if (state.p.logprobs.logprobs != nullptr) {
      logprobs = arena.template scratch<float>(state.p.accept.width);
    }
    rule.place(arena, state.p);
  }

  template <class Team>
  SPECFAST_HD void run(Team& team) {
    const AcceptParams& p = state.p.accept;
    team.arrive();
    place(team);
    state.load(team);
    TailInputs<Team> tail(team, p, state.b, state.window);
    if (state.window.verified > 0) {
      path.status |= state.sampling.status;
      rule.walk(team, state, path, logprobs);
      // Of recorded rows none may have needed an exchange.
      if constexpr (kStored) state.row.exchange.finish(team);
    } else {
      team.wait();
    }
    path.status |= state.coin_status;
    if constexpr (Rule::kStepwise) {
      if (p.cap_trim_lens != nullptr) {
        int32_t trimmed = 0;
        out_of_line_with_copy(*this, team, [&trimmed](SampledRequest& self, Team& in) {
          trimmed = count_trimmed_sampled(in, self.state, self.rule, self.path);
        });
        if (team.part() == 0 && team.rank() == 0) p.cap_trim_lens[state.b] = trimmed;
      }
    }
    // The last exchange was the last access to another part's scratch: parts may leave.
    if (team.part() == 0) {
      int32_t committed = write_record(team, p, state.b, state.window, tail, path);
      if (logprobs != nullptr) write_logprobs(team, committed);
    }
  }

 private:
  template <class Team>
  SPECFAST_HD void write_logprobs(Team& team, int32_t committed) {
    int32_t width = state.p.accept.width;
    float* out = state.p.logprobs.logprobs + static_cast<int64_t>(state.b) * width;
    SPECFAST_NO_UNROLL
    for (int32_t i = team.rank(); i < width; i += team.size()) {
      out[i] = i < committed ? logprobs[i] : 0.0f;
    }
  }
};

template <class T>
struct TypeOf {
  using Type = T;
};

// Calls run(TypeOf) with the SampledRequest of a batch.
template <class Form, class Rule, class Run>
void with_request(const DraftLinks& links, Run run) {
  if constexpr (Rule::kPartsChains) {
    if (links.retrieve_next_token == nullptr)
      return run(TypeOf<SampledRequest<Form, Rule, true>>{});
  }
  run(TypeOf<SampledRequest<Form, Rule, false>>{});
}

// The whole batch on the calling thread: the CPU ops.
template <class Rule>
void sampled_accept_on_cpu(const SampledAcceptParams& p) {
  clear_rows_of_no_request(p.accept);
  with_row_form(p.rows, p.sampling, [&](auto form) {
    using Form = decltype(form);
    if constexpr (stores_rows<Form, Rule>()) {
      int rows = p.stored_rows != nullptr ? p.accept.batch_size * p.accept.num_nodes : 0;
      for (int job = 0; job < rows; ++job) {
        SerialTeam team;
        RowRecorder<Form>(p, job, 0).run(team);
      }
    }
    with_request<Form, Rule>(p.links, [&](auto type) {
      using Request = typename decltype(type)::Type;
      for (int b = 0; b < p.accept.batch_size; ++b) {
        SerialTeam team;
        Request(p, b, 0).run(team);
      }
    });
  });
}

}  // namespace specfast
