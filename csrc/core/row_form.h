#pragma once

#include "core/accept_params.h"
#include "core/sampling_params.h"

namespace specfast {

// What is known of all rows of a batch before it runs: each form has kernels of its own.
template <class T, bool kHasEdits, bool kHasFilters>
struct RowForm {
  using Element = T;
  static constexpr bool kEdited = kHasEdits;      // edits, penalties or a bitmask
  static constexpr bool kFiltered = kHasFilters;  // top-k, top-p or min-p
};

// Calls run(form) with the RowForm of a batch. float16 has one form, the slowest: a third of the
// kernels for a type that few targets use. Edited rows may have filters.
template <class Run>
void with_row_form(const TargetRows& rows, const SamplingParams& sampling, Run run) {
  bool edited = sampling.edit_indptr != nullptr || sampling.token_bitmask != nullptr ||
                sampling.repetition_penalty != nullptr || sampling.presence_penalty != nullptr ||
                sampling.frequency_penalty != nullptr;
  bool filtered =
      sampling.top_k != nullptr || sampling.top_p != nullptr || sampling.min_p != nullptr;
  auto with_type = [&](auto type) {
    using T = decltype(type);
    if (edited) {
      run(RowForm<T, true, true>{});
    } else if (filtered) {
      run(RowForm<T, false, true>{});
    } else {
      run(RowForm<T, false, false>{});
    }
  };
  if (rows.logits_type == FloatType::kFloat32) {
    with_type(float{});
  } else if (rows.logits_type == FloatType::kBFloat16) {
    with_type(BFloat16{});
  } else {
    run(RowForm<Float16, true, true>{});
  }
}

}  // namespace specfast
