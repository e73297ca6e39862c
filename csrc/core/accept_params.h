#pragma once

#include <climits>
#include <cstdint>

#include "core/types.h"

namespace specfast {

constexpr int64_t kMaxNodes = 1024;
constexpr int64_t kMaxRequests = int64_t{1} << 20;

// When a request ends. Null pointers switch a rule off.
struct FinishParams {
  const int32_t* eos_token_ids;  // [num_eos]
  int32_t num_eos;
  const int32_t* stop_token_ids;  // [B, num_stop], padded with -1
  int32_t num_stop;
  const int32_t* max_tokens_left;  // [B] tokens the request may still emit
  const int32_t* min_tokens_left;  // [B] new tokens before EOS or a stop id may end it
  const uint8_t* ignore_eos;       // [B]
};

// What every accept rule reads besides the rows themselves, and the record that it writes. B
// requests of N nodes (node 0 is the anchor), S = width of the path, R verify rows.
struct AcceptParams {
  int32_t batch_size;  // B
  int32_t num_nodes;   // N >= 1
  int32_t width;       // S >= 1: at most S rows are committed
  int64_t num_rows;    // R
  int32_t vocab_size;  // ids at or past it are bad; INT32_MAX if unknown

  IdView draft_tokens;  // [B, N]; column 0 is not read
  int64_t draft_tokens_stride;
  const int32_t* prefix_lens;  // [B] committed KV; 0 where outside [0, 2^31 - 1 - S], kBadParam
  const int32_t* qo_indptr;    // [B + 1] first row of each request, or null: row b * N
  const int32_t* verify_lens;  // [B] nodes verified, anchor included; 0 = padded slot; or null: all
  IdView out_cache_loc;        // [R] KV slot of each row, or null
  FinishParams finish;
  bool accumulate_status;  // OR into status instead of writing it

  int32_t* predict;             // [R]
  int32_t* accept_index;        // [B, S]
  int32_t* num_correct_drafts;  // [B]
  int32_t* accept_lens;         // [B]
  int32_t* commit_lens;         // [B]
  int32_t* new_seq_lens;        // [B]
  int32_t* out_tokens;          // [B, S]
  int32_t* bonus;               // [B]
  int32_t* next_anchor;         // [B]
  int32_t* positions;           // [B, S]
  IdSpan slots;                 // [B, S], or null
  int32_t* finish_reason;       // [B]
  int32_t* status;              // [B]
  int32_t* cap_trim_lens;       // [B], or null; chains only
};

// Where the verify rows come from: logits or, if `logits` is null, predictions.
struct TargetRows {
  const void* logits;  // [R, >= vocab_size]
  FloatType logits_type;
  int64_t logits_stride;  // elements between rows
  IdView target_predict;  // [R]
};

}  // namespace specfast
