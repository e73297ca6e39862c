#pragma once

#include "core/sampled_request.h"
#include "core/thread_team.h"

namespace specfast::testing {

// A sampled accept as a cluster of parts x 4 threads runs it: every row first where they are
// stored, then each request.
template <class Rule>
void sampled_accept_on_threads(const SampledAcceptParams& p, int parts, int groups_to_keep,
                               int dropped_barrier = -1) {
  constexpr int kThreads = 4;
  with_row_form(p.rows, p.sampling, [&](auto form) {
    using Form = decltype(form);
    bool stored = SampledRequest<Form, Rule>::kStored && p.stored_rows != nullptr;
    int rows = stored ? p.accept.batch_size * p.accept.num_nodes : 0;
    for (int job = 0; job < rows; ++job) {
      ThreadTeam::run(parts, kThreads, [&](ThreadTeam& team) {
        RowRecorder<Form>(p, job, groups_to_keep).run(team);
      });
    }
    for (int b = 0; b < p.accept.batch_size; ++b) {
      ThreadTeam::run(
          parts, kThreads,
          [&](ThreadTeam& team) { SampledRequest<Form, Rule>(p, b, groups_to_keep).run(team); },
          dropped_barrier);
    }
  });
}

}  // namespace specfast::testing
