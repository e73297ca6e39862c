#pragma once

#include <type_traits>

#include "core/argmax_key.h"
#include "core/logit_edits.h"
#include "core/team.h"

namespace specfast {

// Rows are read in groups of eight neighbouring ids. A part owns a range of groups and each of its
// threads a run of them, so that threads in order hold ids in order.
constexpr int kGroupIds = 8;

// Eight logits as they lie in memory.
template <class T>
struct alignas(16) LogitGroup {
  T values[kGroupIds];
};

}  // namespace specfast

#if defined(__CUDACC__)
#include "core/group_scan.cuh"
#include "core/shared_copy.cuh"
#endif

namespace specfast {

// Groups [begin, end) of one part.
struct GroupRange {
  int32_t begin;
  int32_t end;

  SPECFAST_HD static GroupRange of(int32_t vocab_size, int part, int parts) {
    int32_t groups = ceil_div(vocab_size, kGroupIds);
    int32_t share = ceil_div(groups, parts);
    return {min_of(part * share, groups), min_of((part + 1) * share, groups)};
  }
  SPECFAST_HD int32_t size() const { return end - begin; }
};

// One row of logits with the edits of its request. The first groups of this part's share are
// brought into scratch; what has no room there is read from memory by every pass.
template <class T, bool kEdited>
class LogitRow {
 public:
  using Element = T;

  LogitEdits edits;

  SPECFAST_HD LogitRow(int32_t vocab_size, int32_t groups_to_keep)
      : vocab_size_(vocab_size), kept_groups_(groups_to_keep) {}

  template <class Arena>
  SPECFAST_HD void place(Arena& arena, int32_t max_path) {
    kept_ = arena.template scratch<LogitGroup<T>>(kept_groups_);
    if (kEdited) edits.place(arena, vocab_size_, max_path);
  }

  // This part's and this thread's share of every row.
  template <class Team>
  SPECFAST_HD void divide(const Team& team) {
    groups_ = GroupRange::of(vocab_size_, team.part(), team.parts());
    // An odd run keeps threads that step through their runs together in different banks.
    run_ = ceil_div(groups_.size(), static_cast<int32_t>(team.size())) | 1;
  }

  // Asks for the row; `ready` waits for it. No thread looks at the row before any more.
  template <class Team>
  SPECFAST_HD void open(const Team& team, const T* data) {
    data_ = data;
    aligned_ = reinterpret_cast<uintptr_t>(data) % 16 == 0;
    int32_t kept = min_of(groups_.size(), kept_groups_);
    SPECFAST_NO_UNROLL
    for (int32_t group = team.rank(); group < kept; group += team.size()) {
      fetch(&kept_[group], (groups_.begin + group) * kGroupIds);
    }
  }
  template <class Team>
  SPECFAST_HD void ready(Team& team) {
#if defined(__CUDA_ARCH__)
    wait_for_copies();
#endif
    team.sync_part();  // the groups of all threads are there
  }

  SPECFAST_HD int32_t vocab_size() const { return vocab_size_; }

  // Groups of this thread, numbered within the part; their ids begin at first_id(run.begin).
  template <class Team>
  SPECFAST_HD GroupRange run(const Team& team) const {
    int32_t begin = min_of(team.rank() * run_, groups_.size());
    return {begin, min_of(begin + run_, groups_.size())};
  }
  SPECFAST_HD int32_t first_id(int32_t group) const { return (groups_.begin + group) * kGroupIds; }

  SPECFAST_HD float raw_value(int32_t id) const { return to_float(data_[id]); }
  SPECFAST_HD float value(int32_t id) const {
    float value = raw_value(id);
    if constexpr (kEdited) value = edits.apply(id, value);
    return value;
  }

  // Calls visit(first_id, values) for this thread's groups. Past the vocabulary values are -inf.
  template <class Team, class Visit>
  SPECFAST_HD void for_each_group(Team& team, Visit visit) const {
    for_each_stored_group(team, [&](int32_t id, const LogitGroup<T>& group) {
      float values[kGroupIds];
      unpack(group, values);
      edit(id, values);
      visit(id, values);
    });
  }

  // This thread's best key, and whether one of its values is NaN.
  template <class Team>
  SPECFAST_HD KeyFlag largest(Team& team) {
#if defined(__CUDA_ARCH__)
    if constexpr (!kEdited) return largest_of_groups(*this, team);
#endif
    float best = -INFINITY;
    int32_t best_id = 0;
    bool has_nan = false;
    for_each_group(team, [&](int32_t id, const float (&values)[kGroupIds]) {
      SPECFAST_UNROLL
      for (int i = 0; i < kGroupIds; ++i) {
        has_nan |= values[i] != values[i];
        if (values[i] > best) {
          best = values[i];
          best_id = id + i;
        }
      }
    });
    return {argmax_key(best, best_id), has_nan};
  }

  // The logits as they came, without edits.
  template <class Team, class Visit>
  SPECFAST_HD void for_each_raw_group(Team& team, Visit visit) const {
    for_each_stored_group(team, [&](int32_t id, const LogitGroup<T>& group) {
      float values[kGroupIds];
      unpack(group, values);
      visit(id, values);
    });
  }

  // The same as they lie in memory: visit(first_id, LogitGroup).
  template <class Team, class Visit>
  SPECFAST_HD void for_each_stored_group(Team& team, Visit visit) const {
    GroupRange mine = run(team);
    SPECFAST_NO_UNROLL
    for (int32_t group = mine.begin; group < mine.end; ++group) {
      int32_t id = first_id(group);
      visit(id, group < kept_groups_ ? kept_[group] : load(id));
    }
  }

  // The values of one group of this part.
  SPECFAST_HD void group_values(int32_t group, float (&values)[kGroupIds]) const {
    int32_t id = first_id(group);
    unpack(group < kept_groups_ ? kept_[group] : load(id), values);
    edit(id, values);
  }

 private:
  SPECFAST_HD static T minus_infinity() {
    if constexpr (std::is_same_v<T, float>) {
      return -INFINITY;
    } else if constexpr (std::is_same_v<T, BFloat16>) {
      return BFloat16{0xff80};
    } else {
      return Float16{0xfc00};
    }
  }

  SPECFAST_HD static void unpack(const LogitGroup<T>& group, float (&values)[kGroupIds]) {
    SPECFAST_UNROLL
    for (int i = 0; i < kGroupIds; ++i) values[i] = to_float(group.values[i]);
  }

  SPECFAST_HD void edit(int32_t id, float (&values)[kGroupIds]) const {
    if constexpr (kEdited) {
      if (id < vocab_size_) edits.apply(id, values);
    }
  }

  // Brings a group to scratch, perhaps only after `ready`.
  SPECFAST_HD void fetch(LogitGroup<T>* target, int32_t id) const {
#if defined(__CUDA_ARCH__)
    if (is_whole(id)) {
      copy_to_shared<sizeof(LogitGroup<T>)>(target, data_ + id);
      return;
    }
#endif
    *target = load_one_by_one(data_, id, vocab_size_);
  }

  // Whether a group can be read as vectors.
  SPECFAST_HD bool is_whole(int32_t id) const { return aligned_ && id + kGroupIds <= vocab_size_; }

  SPECFAST_HD LogitGroup<T> load(int32_t id) const {
#if defined(__CUDA_ARCH__)
    if (is_whole(id)) {
      LogitGroup<T> group;
      const uint4* words = reinterpret_cast<const uint4*>(data_ + id);
      uint4* out = reinterpret_cast<uint4*>(&group);
      SPECFAST_UNROLL
      for (size_t i = 0; i < sizeof(group) / sizeof(uint4); ++i) out[i] = __ldg(words + i);
      return group;
    }
#endif
    return load_one_by_one(data_, id, vocab_size_);
  }
  // Takes no `this`, so that the row can stay in registers.
  SPECFAST_HD_OUTLINED static LogitGroup<T> load_one_by_one(const T* data, int32_t id,
                                                            int32_t vocab_size) {
    LogitGroup<T> group;
    for (int i = 0; i < kGroupIds; ++i) {
      group.values[i] = id + i < vocab_size ? data[id + i] : minus_infinity();
    }
    return group;
  }

  const T* data_ = nullptr;
  int32_t vocab_size_;
  int32_t kept_groups_;
  LogitGroup<T>* kept_ = nullptr;  // scratch [kept_groups]
  GroupRange groups_{0, 0};        // of this part
  int32_t run_ = 1;                // groups of a thread
  bool aligned_ = false;
};

}  // namespace specfast
