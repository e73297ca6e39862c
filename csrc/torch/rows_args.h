#pragma once

#include <cstdint>
#include <initializer_list>

#include "torch/tensor_args.h"

namespace specfast {

// Whether the rows of a tensor begin at multiples of 16 bytes.
inline bool has_wide_rows(const Tensor& tensor) {
  bool wide = reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0;
  int64_t item_bytes = static_cast<int64_t>(tensor.element_size());
  for (int64_t dim = 0; dim + 1 < tensor.dim(); ++dim) {
    wide &= tensor.size(dim) <= 1 || tensor.stride(dim) * item_bytes % 16 == 0;
  }
  return wide;
}

inline bool has_wide_rows(const OptionalTensor& tensor) {
  return !tensor.has_value() || has_wide_rows(*tensor);
}

// The size that a symbol stands for, as an op's parameters have it.
inline int32_t int32_size(const ArgChecks& args, const char* name, const char* symbol, int64_t low,
                          int64_t high = INT32_MAX) {
  args.require_range(name, args[symbol], low, high);
  return static_cast<int32_t>(args[symbol]);
}

}  // namespace specfast
