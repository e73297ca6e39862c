#pragma once

#include "core/accept_tail.h"

namespace specfast {

// Accept of one request: the walk, then the tail that all rules share. Links and source are by
// value: each team points its copies at its own scratch.
template <int kAhead, class Team, class Links, class Source>
SPECFAST_HD void accept_request(Team& team, const AcceptParams& p, Links links, Source source,
                                int b) {
  Path path;
  team.arrive();
  source.place(team, p, kAhead);
  links.place(team, p);
  path.place(team, p);

  Window window = request_window(p, b);
  TailInputs<Team> tail(team, p, b, window);
  links.load(team, p, b);
  source.load(team, window.base, min_of(window.rows, p.num_nodes));

  if (window.verified > 0) {
    walk<kAhead>(team, p, window, links, source, path);
  } else {
    team.wait();
  }
  if constexpr (Links::kIsChain) {
    if (p.cap_trim_lens != nullptr) {
      int32_t trimmed = count_trimmed(team, p, window, links, source, path);
      if (team.part() == 0 && team.rank() == 0) p.cap_trim_lens[b] = trimmed;
    }
  }
  // The last read was the last access to another part's scratch: parts may leave on their own.
  if (team.part() == 0) write_record(team, p, b, window, tail, path);
}

// Shared memory of one part.
template <class Links, class Source>
size_t accept_scratch_bytes(const AcceptParams& p, Links links, Source source, int ahead) {
  ScratchSizer sizer;
  Path path;
  source.place(sizer, p, ahead);
  links.place(sizer, p);
  path.place(sizer, p);
  return sizer.bytes();
}

// Calls run(source) with the row source that `rows` describes.
template <class Run>
void with_source(const AcceptParams& p, const TargetRows& rows, Run run) {
  auto logits = [&](auto* typed) {
    using T = std::remove_cv_t<std::remove_pointer_t<decltype(typed)>>;
    run(GreedyLogits<T>{typed, rows.logits_stride, p.vocab_size});
  };
  if (rows.logits == nullptr) {
    run(GivenPredictions{rows.target_predict, p.vocab_size});
  } else if (rows.logits_type == FloatType::kFloat32) {
    logits(static_cast<const float*>(rows.logits));
  } else if (rows.logits_type == FloatType::kBFloat16) {
    logits(static_cast<const BFloat16*>(rows.logits));
  } else {
    logits(static_cast<const Float16*>(rows.logits));
  }
}

// The whole batch on the calling thread: the CPU ops.
template <class Links>
void accept_on_cpu(const AcceptParams& p, const TargetRows& rows, const Links& links) {
  clear_rows_of_no_request(p);
  with_source(p, rows, [&](auto source) {
    for (int b = 0; b < p.batch_size; ++b) {
      SerialTeam team;
      accept_request<1>(team, p, links, source, b);
    }
  });
}

}  // namespace specfast
