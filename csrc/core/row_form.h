#pragma once

#include <type_traits>

#include "core/accept_params.h"
#include "core/sampling_params.h"

namespace specfast {

// Calls run(type, edited) with a value of the logits' type and a std::bool_constant.
template <class Run>
void with_row_form(const TargetRows& rows, const SamplingParams& sampling, Run run) {
  bool edited = sampling.edit_indptr != nullptr || sampling.token_bitmask != nullptr ||
                sampling.repetition_penalty != nullptr || sampling.presence_penalty != nullptr ||
                sampling.frequency_penalty != nullptr;
  // float16 has one form, the slower: half as many kernels for a type that few targets use.
  auto with_type = [&](auto type) {
    if (edited) {
      run(type, std::true_type{});
    } else {
      run(type, std::false_type{});
    }
  };
  if (rows.logits_type == FloatType::kFloat32) {
    with_type(float{});
  } else if (rows.logits_type == FloatType::kBFloat16) {
    with_type(BFloat16{});
  } else {
    run(Float16{}, std::true_type{});
  }
}

}  // namespace specfast
