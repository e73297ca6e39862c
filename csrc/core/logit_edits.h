#pragma once

#include <cmath>

#include "core/mass.h"
#include "core/sampling_params.h"
#include "core/team.h"

namespace specfast {

// What changes a request's logits before they are sampled from: bias and penalties of single ids,
// the tokens of the path so far, and the grammar's bitmask of the row at hand.
class LogitEdits {
 public:
  template <class Arena>
  SPECFAST_HD void place(Arena& arena, int32_t vocab_size, int32_t max_path) {
    touched_ = arena.template scratch<uint32_t>(ceil_div(vocab_size, 32));
    path_ = arena.template scratch<int32_t>(max_path);
  }

  // The request's entries, once before its first row. A barrier follows before touched_ is read.
  template <class Team>
  SPECFAST_HD void load(Team& team, const SamplingParams& p, int b, int32_t vocab_size) {
    vocab_size_ = vocab_size;
    SPECFAST_NO_UNROLL
    for (int i = team.rank(); i < ceil_div(vocab_size, 32); i += team.size()) touched_[i] = 0;
    team.sync_part();  // cleared before entries are marked
    repetition_ = p.repetition_penalty != nullptr ? p.repetition_penalty[b] : 1.0f;
    presence_ = p.presence_penalty != nullptr ? p.presence_penalty[b] : 0.0f;
    frequency_ = p.frequency_penalty != nullptr ? p.frequency_penalty[b] : 0.0f;
    if (p.edit_indptr == nullptr) return;
    int32_t begin = clamp_to(p.edit_indptr[b], 0, p.num_edits);
    int32_t end = clamp_to(p.edit_indptr[b + 1], begin, p.num_edits);
    ids_ = p.edit_ids + begin;
    counts_ = p.edit_counts + begin;
    biases_ = p.edit_biases != nullptr ? p.edit_biases + begin : nullptr;
    num_entries_ = end - begin;
    SPECFAST_NO_UNROLL
    for (int i = team.rank(); i < num_entries_; i += team.size()) mark(team, ids_[i]);
  }

  // A draft was accepted: later rows see its token. A barrier follows before it is looked at.
  template <class Team>
  SPECFAST_HD void append(Team& team, int32_t token) {
    if (team.rank() == 0) {
      path_[path_length_] = token;
      mark(team, token);
    }
    ++path_length_;
  }
  SPECFAST_HD void truncate_path(int32_t length) { path_length_ = length; }

  SPECFAST_HD void set_bitmask(const int32_t* words) { allowed_ = words; }
  SPECFAST_HD bool allows(int32_t id) const {
    return allowed_ == nullptr ||
           ((static_cast<uint32_t>(allowed_[id / 32]) >> (id % 32)) & 1) != 0;
  }

  SPECFAST_HD float apply(int32_t id, float value) const {
    if (((touched_[id / 32] >> (id % 32)) & 1) != 0) value = penalised(*this, id, value);
    return allows(id) ? value : -INFINITY;
  }

  // Edits eight neighbouring ids, the first one a multiple of eight.
  SPECFAST_HD void apply(int32_t first_id, float (&values)[8]) const {
    uint32_t touched = (touched_[first_id / 32] >> (first_id % 32)) & 0xffu;
    while (touched != 0) {
      int i = 0;
      while (((touched >> i) & 1) == 0) ++i;
      touched &= touched - 1;
      SPECFAST_UNROLL
      for (int k = 0; k < 8; ++k) {
        if (k == i) values[k] = penalised(*this, first_id + k, values[k]);
      }
    }
    if (allowed_ == nullptr) return;
    uint32_t allowed = static_cast<uint32_t>(allowed_[first_id / 32]) >> (first_id % 32);
    SPECFAST_UNROLL
    for (int k = 0; k < 8; ++k) {
      if (((allowed >> k) & 1) == 0) values[k] = -INFINITY;
    }
  }

 private:
  template <class Team>
  SPECFAST_HD void mark(Team& team, int32_t id) {
    if (id < 0 || id >= vocab_size_) return;
    team.atomic_or(&touched_[id / 32], 1u << (id % 32));
  }

  // Takes no `this`, so that the edits can stay in registers.
  SPECFAST_HD_OUTLINED static float penalised(LogitEdits edits, int32_t id, float value) {
    int64_t count = -1;  // of an entry up to INT32_MAX, and the path's tokens
    int32_t entry = edits.find(id);
    if (entry >= 0) {
      count = edits.counts_[entry];
      if (edits.biases_ != nullptr) value = value + edits.biases_[entry];
    }
    int32_t on_path = 0;
    for (int32_t i = 0; i < edits.path_length_; ++i) on_path += edits.path_[i] == id ? 1 : 0;
    if (on_path > 0) count = max_of<int64_t>(count, 0) + on_path;
    if (count < 0) return value;
    float repetition = edits.repetition_;
    if (repetition != 1.0f) value = value > 0.0f ? value / repetition : value * repetition;
    if (count == 0) return value;
    float frequency = edits.frequency_ * static_cast<float>(count);
    value = value - frequency;
    return value - edits.presence_;
  }

  // Entry of an id, -1 if none: binary search.
  SPECFAST_HD int32_t find(int32_t id) const {
    int32_t low = 0;
    int32_t high = num_entries_;
    while (low < high) {
      int32_t middle = low + (high - low) / 2;
      if (ids_[middle] < id) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low < num_entries_ && ids_[low] == id ? low : -1;
  }

  uint32_t* touched_ = nullptr;  // scratch, a bit per id
  int32_t* path_ = nullptr;      // scratch
  int32_t path_length_ = 0;
  int32_t vocab_size_ = 0;
  int32_t num_entries_ = 0;
  const int32_t* ids_ = nullptr;
  const int32_t* counts_ = nullptr;
  const float* biases_ = nullptr;
  const int32_t* allowed_ = nullptr;
  float repetition_ = 1.0f;
  float presence_ = 0.0f;
  float frequency_ = 0.0f;
};

}  // namespace specfast
