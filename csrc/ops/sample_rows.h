#pragma once

#include "core/accept_params.h"
#include "core/sampling_params.h"

struct CUstream_st;

namespace specfast {

// Draws tokens from rows of logits, without replacement within a row, and records the distribution
// that they were drawn from: q for a later accept, or first tokens after a prefill.
struct SampleRowsParams {
  int32_t num_rows;     // R
  int32_t batch_size;   // B
  int32_t vocab_size;
  TargetRows rows;      // logits
  SamplingParams sampling;
  const int32_t* request_of_row;  // [R], or null: row r is request r
  const int32_t* prefix_lens;     // [B]
  int32_t node;                   // of the random counter: the draft level, 0 for first tokens
  const int32_t* slot_of_row;     // [R] number of the row among those of its request, or null: 0
  int32_t purpose;                // Purpose
  int32_t num_draws;              // K >= 0

  int32_t* tokens;     // [R, K] -1 where a row has fewer tokens
  RowRecord* records;  // [R]
  int32_t* status;     // [R]
};

void sample_rows_cpu(const SampleRowsParams& p);
void sample_rows_cuda(const SampleRowsParams& p, CUstream_st* stream);

}  // namespace specfast
