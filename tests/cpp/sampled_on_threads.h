#pragma once

#include "core/chain_row.h"
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
    bool stored = stores_rows<Form, Rule>() && p.stored_rows != nullptr;
    int rows = stored ? p.accept.batch_size * p.accept.num_nodes : 0;
    for (int job = 0; job < rows; ++job) {
      ThreadTeam::run(parts, kThreads, [&](ThreadTeam& team) {
        RowRecorder<Form>(p, job, groups_to_keep).run(team);
      });
    }
    with_request<Form, Rule>(p.links, [&](auto type) {
      using Request = typename decltype(type)::Type;
      for (int b = 0; b < p.accept.batch_size; ++b) {
        ThreadTeam::run(
            parts, kThreads, [&](ThreadTeam& team) { Request(p, b, groups_to_keep).run(team); },
            dropped_barrier);
      }
    });
  });
}

// The same with a cluster per row of a chain, in the order of their jobs or in the opposite one.
template <class Rule>
void chain_rows_on_threads(const SampledAcceptParams& p, int parts, int groups_to_keep,
                           bool is_backwards) {
  constexpr int kThreads = 4;
  with_row_form(p.rows, p.sampling, [&](auto form) {
    using Form = decltype(form);
    if constexpr (!Form::kEdited) {
      int jobs = p.accept.batch_size * p.accept.num_nodes;
      for (int i = 0; i < jobs; ++i) {
        int job = is_backwards ? jobs - 1 - i : i;
        ThreadTeam::run(parts, kThreads, [&](ThreadTeam& team) {
          ChainRow<Form, Rule>(p, job, groups_to_keep).run(team);
        });
      }
    }
  });
}

}  // namespace specfast::testing
