#pragma once

#include "core/sampled_state.h"

namespace specfast {

// The first of two passes: what one verify row's distribution is, for a walk that then reads only
// the rows that it draws from. All rows of a batch are recorded at once, visited or not.
template <class Form>
struct RowRecorder {
  using Element = typename Form::Element;

  const SampledAcceptParams& p;
  int b;
  int32_t index;
  RowDistribution<Form> row;

  // `job`: of B * N.
  SPECFAST_HD RowRecorder(const SampledAcceptParams& params, int job, int32_t groups_to_keep)
      : p(params),
        b(job / params.accept.num_nodes),
        index(job % params.accept.num_nodes),
        row(params.accept.vocab_size, groups_to_keep) {}

  template <class Arena>
  SPECFAST_HD void place(Arena& arena) {
    row.place(arena, 0);
  }

  template <class Team>
  SPECFAST_HD void run(Team& team) {
    Window window = request_window(p.accept, b);
    if (index >= window.verified) return;  // the whole team, before it has met
    team.arrive();
    place(team);
    row.logits.divide(team);
    RequestSampling sampling = RequestSampling::load(p.sampling, b, p.accept.vocab_size);
    int64_t at = window.base + index;
    row.begin_open(team, static_cast<const Element*>(p.rows.logits) + at * p.rows.logits_stride,
                   nullptr);
    row.finish_open(team, sampling);
    if (team.part() != 0 || team.rank() != 0) return;
    int64_t slot = static_cast<int64_t>(b) * p.accept.num_nodes + index;
    p.stored_rows[slot] = {row.record(sampling.scale), row.status, {}};
  }
};

}  // namespace specfast
