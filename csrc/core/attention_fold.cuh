#pragma once

#include "core/attention_instructions.cuh"

namespace specfast {

// A softmax over some of a row's keys: with scores s and values v, sum = Σ 2^(c (s - max)), and
// beside it, wherever it is kept, Σ 2^(c (s - max)) v. c is the scale in units of log2(e).
struct RowSoftmax {
  float max = -INFINITY;
  float sum = 0;  // 0: no key
};

// total = total * of_total + part * of_part, for the weighted values.
struct FoldWeights {
  float of_total;
  float of_part;
};

// Adds a part behind the total. Every merge of two softmaxes is this one, so that it does not
// matter where it happens. Without branches: code that few CTAs run often is dear to fetch.
__device__ inline FoldWeights fold(RowSoftmax& total, RowSoftmax part, float c) {
  // Where there is no key the largest score is -inf, and so may that of two.
  const float max = fmaxf(total.max, part.max);
  const float of_total = fast_exp2((total.max - max) * c);
  const float of_part = fast_exp2((part.max - max) * c);
  const FoldWeights weights{total.sum == 0 ? 0 : of_total, part.sum == 0 ? 0 : of_part};
  total.max = max;
  total.sum = __fmaf_rn(total.sum, weights.of_total, part.sum * weights.of_part);
  return weights;
}

__device__ inline float fold_value(float total, float part, FoldWeights weights) {
  return __fmaf_rn(total, weights.of_total, part * weights.of_part);
}

// What weighted values are multiplied by in the end.
__device__ inline float normalizer(const RowSoftmax& row) {
  return row.sum == 0 ? 0.0f : 1 / row.sum;
}

}  // namespace specfast
