#pragma once

#include "core/argmax_key.h"
#include "core/logit_row.h"
#include "core/mass.h"
#include "core/sampling_params.h"

namespace specfast {

// One row of the proposal q, in terms of the target's ids: a base value per token and a factor
// that makes probabilities of them, whichever form q comes in.
class ProposalRow {
 public:
  SPECFAST_HD explicit ProposalRow(const ProposalParams& p) : p_(p) {}

  SPECFAST_HD void open(int b, int32_t node, int32_t num_nodes) {
    int64_t row = static_cast<int64_t>(b) * p_.rows_per_request + node;
    if (p_.row_of_node != nullptr) row = p_.row_of_node[static_cast<int64_t>(b) * num_nodes + node];
    exists_ =
        row >= 0 && row < p_.num_rows && (p_.row_of_node != nullptr || node < p_.rows_per_request);
    row_ = exists_ ? row : 0;
    is_vector_ = exists_ && p_.d2t == nullptr && p_.sparse_values == nullptr &&
                 reinterpret_cast<uintptr_t>(first_element()) % 16 == 0;
    factor_ = 1.0f;
    if (p_.records == nullptr || !exists_) return;
    record_ = p_.records[row_];
    weights_ = {record_.max, Weights::scale2_of(record_.scale)};
    factor_ = inverse_mass(record_.mass);
    if (record_.kind == kPointMass) factor_ = 1.0f;
  }

  // Lets what a part's subgroup will read of the row come nearer: the bases of ids [first, end),
  // the first a multiple of eight.
  template <class Team>
  SPECFAST_HD void bring_near([[maybe_unused]] const Team& team, [[maybe_unused]] int32_t first,
                              [[maybe_unused]] int32_t end) const {
#if defined(__CUDA_ARCH__)
    int32_t bytes = (min_of(end, p_.vocab_size) - first) * element_bytes() / 16 * 16;
    if (!is_vector_ || team.lane() != 0 || bytes <= 0) return;
    const char* data =
        static_cast<const char*>(first_element()) + static_cast<int64_t>(first) * element_bytes();
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(data), "r"(bytes));
#endif
  }

  SPECFAST_HD bool has_record() const { return p_.records != nullptr; }
  SPECFAST_HD float factor() const { return factor_; }
  SPECFAST_HD uint64_t record_mass() const { return record_.mass; }

  // The base of one token: its weight, or its probability as given (0 and bad if that is not one,
  // or if there is no row).
  SPECFAST_HD float base(int32_t id) const {
    bool bad;
    return base(id, &bad);
  }
  SPECFAST_HD float base(int32_t id, bool* bad) const {
    *bad = !exists_;
    if (!exists_) return 0.0f;
    if (p_.sparse_values != nullptr) return sparse(id, bad);
    int32_t column = column_of(id);
    if (column < 0) return 0.0f;
    if (has_record()) return record_weight(column, logit(column));
    return legal(p_.probs[row_ * p_.probs_stride + column], bad);
  }

  // The bases of eight neighbouring tokens, the first id a multiple of eight, in two steps: what
  // memory has to say, and what it means.
  SPECFAST_HD void fetch(int32_t first_id, float (&out)[kGroupIds]) const {
    if (!is_whole(first_id)) {
      FloatGroup group = bases_one_by_one(*this, first_id);
      SPECFAST_UNROLL
      for (int i = 0; i < kGroupIds; ++i) out[i] = group.values[i];
      return;
    }
    if (!has_record()) {
      load_group(static_cast<const float*>(p_.probs) + row_ * p_.probs_stride + first_id, out);
      return;
    }
    int64_t at = row_ * p_.logits_stride + first_id;
    if (p_.logits_type == FloatType::kFloat32) {
      load_group(static_cast<const float*>(p_.logits) + at, out);
    } else if (p_.logits_type == FloatType::kBFloat16) {
      load_group(static_cast<const BFloat16*>(p_.logits) + at, out);
    } else {
      load_group(static_cast<const Float16*>(p_.logits) + at, out);
    }
  }
  SPECFAST_HD void make_bases(int32_t first_id, float (&fetched)[kGroupIds]) const {
    if (!is_whole(first_id)) return;
    if (!has_record()) {
      bool ignored = false;
      SPECFAST_UNROLL
      for (int i = 0; i < kGroupIds; ++i) fetched[i] = legal(fetched[i], &ignored);
      return;
    }
    SPECFAST_UNROLL
    for (int i = 0; i < kGroupIds; ++i) fetched[i] = record_weight(first_id + i, fetched[i]);
  }

 private:
  // Whether a group can be read as vectors.
  SPECFAST_HD bool is_whole(int32_t first_id) const {
    return is_vector_ && first_id + kGroupIds <= p_.vocab_size;
  }
  struct FloatGroup {
    float values[kGroupIds];
  };
  SPECFAST_HD_OUTLINED static FloatGroup bases_one_by_one(ProposalRow row, int32_t first_id) {
    FloatGroup out;
    for (int i = 0; i < kGroupIds; ++i) out.values[i] = row.base(first_id + i);
    return out;
  }

  template <class T>
  SPECFAST_HD static void load_group(const T* data, float (&out)[kGroupIds]) {
    LogitGroup<T> group;
#if defined(__CUDA_ARCH__)
    uint4* words = reinterpret_cast<uint4*>(&group);
    SPECFAST_UNROLL
    for (size_t i = 0; i < sizeof(group) / sizeof(uint4); ++i) {
      words[i] = __ldg(reinterpret_cast<const uint4*>(data) + i);
    }
#else
    memcpy(&group, data, sizeof(group));
#endif
    SPECFAST_UNROLL
    for (int i = 0; i < kGroupIds; ++i) out[i] = to_float(group.get(i));
  }

  SPECFAST_HD int element_bytes() const {
    return has_record() && p_.logits_type != FloatType::kFloat32 ? 2 : 4;
  }
  SPECFAST_HD const void* first_element() const {
    if (!has_record()) return p_.probs + row_ * p_.probs_stride;
    return static_cast<const char*>(p_.logits) + row_ * p_.logits_stride * element_bytes();
  }

  SPECFAST_HD static float legal(float q, bool* bad) {
    constexpr float kRoundedUp = 1.0f + 5e-4f;
    // Without branches, as all of this is once per token.
    bool good = static_cast<int>(q >= 0.0f) & static_cast<int>(q <= kRoundedUp);
    *bad |= !good;
    return good ? fminf(q, 1.0f) : 0.0f;
  }

  SPECFAST_HD float sparse(int32_t id, bool* bad) const {
    int64_t first = row_ * p_.num_sparse;
    for (int32_t i = 0; i < p_.num_sparse; ++i) {
      if (p_.sparse_ids[first + i] == id) return legal(p_.sparse_values[first + i], bad);
    }
    return 0.0f;
  }

  SPECFAST_HD float logit(int32_t column) const {
    int64_t at = row_ * p_.logits_stride + column;
    if (p_.logits_type == FloatType::kFloat32) return static_cast<const float*>(p_.logits)[at];
    if (p_.logits_type == FloatType::kBFloat16) {
      return to_float(static_cast<const BFloat16*>(p_.logits)[at]);
    }
    return to_float(static_cast<const Float16*>(p_.logits)[at]);
  }

  SPECFAST_HD float record_weight(int32_t column, float value) const {
    if (record_.kind != kOrdinaryRow) {
      return record_.kind == kPointMass && column == record_.argmax ? 1.0f : 0.0f;
    }
    // Without branches, as all of this is once per token.
    bool kept =
        static_cast<int>(value > record_.cut_value) |
        (static_cast<int>(value == record_.cut_value) & static_cast<int>(column <= record_.cut_id));
    // A record that belongs to another row must not lead out of the exponential's range.
    float weight = weights_.weight(value > record_.max ? record_.max : value);
    return kept && weight >= kInverseMassScale ? weight : 0.0f;
  }

  // Column of a target id, -1 if the draft does not know it: binary search in the map.
  SPECFAST_HD int32_t column_of(int32_t id) const {
    if (p_.d2t == nullptr) return id < p_.vocab_size ? id : -1;
    int32_t low = 0;
    int32_t high = p_.vocab_size;
    while (low < high) {
      int32_t middle = low + (high - low) / 2;
      if (target_id(middle) < id) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low < p_.vocab_size && target_id(low) == id ? low : -1;
  }
  // Wraps around, so that no offset is undefined.
  SPECFAST_HD int64_t target_id(int32_t column) const {
    return static_cast<int64_t>(static_cast<uint64_t>(p_.d2t[column]) +
                                static_cast<uint64_t>(column));
  }

  const ProposalParams& p_;
  int64_t row_ = 0;
  bool exists_ = false;
  bool is_vector_ = false;  // groups can be read as vectors
  RowRecord record_{};
  Weights weights_{};
  float factor_ = 1.0f;
};

}  // namespace specfast
