#pragma once

#include <cstdint>

#include "core/types.h"

namespace specfast {

// How each request samples. Null pointers switch a filter or penalty off; what is out of range
// makes the request greedy and sets kBadParam (docs/numerics.md, "Sampling").
struct SamplingParams {
  const float* temperature;         // [B] < 1e-5: greedy
  const int32_t* top_k;             // [B] 0 or -1: off; 1: greedy
  const float* top_p;               // [B] in (0, 1]
  const float* min_p;               // [B] in [0, 1]
  const float* repetition_penalty;  // [B] > 0
  const float* presence_penalty;    // [B]
  const float* frequency_penalty;   // [B]
  const int64_t* seeds;             // [B]

  // Edits of single logits, per request a range of entries with ascending ids.
  const int32_t* edit_indptr;  // [B + 1], or null: no edits
  const int32_t* edit_ids;     // [num_edits]
  const int32_t* edit_counts;  // [num_edits] occurrences in the output; 0: only in the prompt; -1:
                               // in neither (a bias alone)
  const float* edit_biases;    // [num_edits], or null: 0
  int32_t num_edits;

  const int32_t* token_bitmask;  // [R, token_bitmask_stride] bit id % 32 of word id / 32: 1 =
                                 // allowed; or null
  int64_t token_bitmask_stride;  // words between rows

  // Coins in place of the request's own random numbers, used exactly; or null.
  const float* accept_coins;  // [B, N]
  const float* final_coins;   // [B]
};

// What one row's distribution is once filtered: 8 words per row, [R, 8]. Token x is kept iff
// v > cut_value or (v == cut_value and x <= cut_id), and its mass is not 0.
struct RowRecord {
  float scale;  // 1 / T; 0 for a point mass
  float max;
  float cut_value;
  int32_t cut_id;
  uint64_t mass;  // of all kept tokens, units of 2^-40 of the largest
  int32_t argmax;
  int32_t kind;  // RowKind
};

// A RowRecord between two launches, with the status bits of reading the row.
struct alignas(16) StoredRow {
  RowRecord record;
  int32_t status;
  int32_t unused[3];
};

enum RowKind : int32_t { kOrdinaryRow = 0, kPointMass = 1, kUnusableRow = 2 };

// The proposal q that the drafts were drawn from. One of: logits with records, dense probabilities,
// sparse probabilities; or nothing, for rules without q.
struct ProposalParams {
  const void* logits;  // [Q, logits_stride]
  FloatType logits_type;
  int64_t logits_stride;
  const RowRecord* records;  // [Q]

  const float* probs;  // [Q, probs_stride]
  int64_t probs_stride;

  IdView sparse_ids;           // [Q, num_sparse] target ids, distinct; others have probability 0
  const float* sparse_values;  // [Q, num_sparse]
  int32_t num_sparse;

  const int32_t* row_of_node;  // [B, N] row of q for the children of a node, -1 = none; or null: b
                               // * rows_per_request + node
  int32_t rows_per_request;    // N or N - 1
  int32_t num_rows;            // Q
  int32_t vocab_size;          // columns of logits or probs; the target's without a map
  const int64_t* d2t;  // [vocab_size] target id of draft id i is i + d2t[i], ascending; or null
};

}  // namespace specfast
