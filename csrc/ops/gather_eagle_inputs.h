#pragma once

#include "core/normed_row.h"
#include "core/team.h"
#include "core/types.h"

struct CUstream_st;

namespace specfast {

// What EAGLE's layer reads of each node: the embedding of its token beside the features of its
// parent, each normed where a weight is there (EAGLE-3), as NormedRow says.
//
// A token that has no embedding, or a parent that has no features, makes zeros.
struct GatherEagleInputsParams {
  int32_t batch_size;    // B
  int32_t num_nodes;     // n
  int32_t num_features;  // m; n without `parents`
  int32_t width;         // W
  FloatType type;        // of all floating-point tensors
  // Addresses and strides are multiples of 16 bytes, W is one of 8.
  bool has_wide_rows;

  IdView tokens;  // [B, n]
  int64_t tokens_stride;
  const int64_t* d2t;  // [num_draft_tokens] or null: tokens are the target's
  int64_t num_draft_tokens;
  const void* embedding;  // [vocab_size, W]
  int64_t vocab_size;
  const void* features;  // [B, m, W]
  int64_t features_request_stride;
  int64_t features_stride;
  IdView parents;  // [B, n], rows of features; null: node i has row i
  int64_t parents_stride;
  const void* embedding_norm_weight;  // [W] or null
  const void* features_norm_weight;   // [W] or null
  float eps;

  void* out;       // [B n, 2 W], dense
  void* gathered;  // [B n, W], dense: the features of each node as they are; null: not needed
};

// One node; the parts of the team divide the two halves of its row.
template <class T>
struct EagleInput {
  const GatherEagleInputsParams& p;
  int32_t index;  // of B n

  template <class Team>
  SPECFAST_HD void run(Team& team) {
    float* scratch = NormedRow<T>::scratch_of(team);
    int32_t b = index / p.num_nodes;
    int32_t node = index - b * p.num_nodes;
    T* out = static_cast<T*>(p.out) + int64_t{index} * 2 * p.width;
    for (int half = team.part(); half < 2; half += team.parts()) {
      NormedRow<T> row{};
      row.width = p.width;
      row.eps = p.eps;
      row.out = out + half * p.width;
      if (half == 0) {
        row.x = embedding_of(b, node);
        row.weight = static_cast<const T*>(p.embedding_norm_weight);
      } else {
        row.x = features_of(b, node);
        row.weight = static_cast<const T*>(p.features_norm_weight);
        if (p.gathered != nullptr) {
          row.sum = static_cast<T*>(p.gathered) + int64_t{index} * p.width;
        }
      }
      if (p.has_wide_rows) {
        store<kWidePiece>(team, row, scratch);
      } else {
        store<1>(team, row, scratch);
      }
      team.sync_part();  // a single part uses the scratch of its first half again
    }
  }

 private:
  // Null where there is none.
  SPECFAST_HD const T* embedding_of(int32_t b, int32_t node) const {
    int64_t token = p.tokens[b * p.tokens_stride + node];
    if (p.d2t != nullptr) {
      if (token < 0 || token >= p.num_draft_tokens) return nullptr;
      token += p.d2t[token];
    }
    if (token < 0 || token >= p.vocab_size) return nullptr;
    return static_cast<const T*>(p.embedding) + token * p.width;
  }
  SPECFAST_HD const T* features_of(int32_t b, int32_t node) const {
    int64_t parent = p.parents ? p.parents[b * p.parents_stride + node] : node;
    if (parent < 0 || parent >= p.num_features) return nullptr;
    return static_cast<const T*>(p.features) + b * p.features_request_stride +
           parent * p.features_stride;
  }

  template <int kPiece, class Team>
  SPECFAST_HD void store(Team& team, const NormedRow<T>& row, float* scratch) const {
    if (row.x != nullptr) return row.template store<kPiece>(team, scratch);
    SPECFAST_NO_UNROLL
    for (int32_t d = team.rank() * kPiece; d < p.width; d += team.size() * kPiece) {
      put_piece(row.out + d, RowPiece<T, kPiece>{});
      if (row.sum != nullptr) put_piece(row.sum + d, RowPiece<T, kPiece>{});
    }
  }
};

void gather_eagle_inputs_cpu(const GatherEagleInputsParams& p);
void gather_eagle_inputs_cuda(const GatherEagleInputsParams& p, CUstream_st* stream);

}  // namespace specfast
