#pragma once

#include <type_traits>

#include "core/argmax_key.h"
#include "core/logit_edits.h"
#include "core/team.h"

namespace specfast {

// Rows are read in groups of eight neighbouring ids. A part owns a range of groups and each of its
// subgroups a range of those, so that subgroups in order hold ids in order; the lanes of a subgroup
// take its groups in turn.
constexpr int kGroupIds = 8;

// Eight logits as they lie in memory.
template <class T>
struct alignas(16) LogitGroup {
  static constexpr int kPerWord = sizeof(uint32_t) / sizeof(T);
  uint32_t words[kGroupIds / kPerWord];

  SPECFAST_HD T get(int i) const {
    if constexpr (kPerWord == 1) {
      return bits_float(words[i]);
    } else {
      return T{static_cast<uint16_t>(words[i / kPerWord] >> (i % kPerWord * 16))};
    }
  }
  SPECFAST_HD void set(int i, T value) {
    if constexpr (kPerWord == 1) {
      words[i] = float_bits(value);
    } else {
      int shift = i % kPerWord * 16;
      uint32_t& word = words[i / kPerWord];
      word = (word & ~(0xffffu << shift)) | static_cast<uint32_t>(value.bits) << shift;
    }
  }
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
// kWritten: the launch that reads the rows also writes them, so that no load may take a value that
// the read-only cache had before.
template <class T, bool kEdited, bool kWritten = false>
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

  // This part's and this subgroup's share of every row.
  template <class Team>
  SPECFAST_HD void divide(const Team& team) {
    groups_ = GroupRange::of(vocab_size_, team.part(), team.parts());
    of_subgroup_ = ceil_div(groups_.size(), static_cast<int32_t>(team.subgroups()));
    mine_ = subgroup_range(team.subgroup());
#if defined(__CUDA_ARCH__)
    // A wait costs more than a look at a few groups.
    constexpr int32_t kLeast = 5;
    int32_t of_lane = ceil_div(of_subgroup_, team.lanes());
    batch_ = max_of(ceil_div(of_lane, BatchedCopy::kBatches), kLeast) * team.lanes();
    BatchedCopy::init();
#endif
  }

  // What single values are read from.
  SPECFAST_HD void aim(const T* data) {
    data_ = data;
    aligned_ = reinterpret_cast<uintptr_t>(data) % 16 == 0;
  }
  // Opens the row that is aimed at, and waits for it.
  template <class Team>
  SPECFAST_HD void bring(Team& team) {
    open(team, data_);
    await_copy();
    team.sync_part();  // a search looks at the groups of other threads
  }

  // A thread may not leave before the row that it has asked for is here.
  SPECFAST_HD void await_copy() const {
#if defined(__CUDA_ARCH__)
    SPECFAST_NO_UNROLL
    for (int i = 0; i < BatchedCopy::kBatches; ++i) wait_for_batch(i);
#endif
  }

  // Asks for the row that the next `open` will be of.
  template <class Team>
  SPECFAST_HD void open_early([[maybe_unused]] const Team& team, [[maybe_unused]] const T* data) {
#if defined(__CUDA_ARCH__)
    aim(data);
    start_copy(team);
    is_asked_for_ = true;
#endif
  }

  // Asks for the row; `largest` waits for it. No thread looks at the row before any more.
  template <class Team>
  SPECFAST_HD void open(const Team& team, const T* data) {
    aim(data);
#if defined(__CUDA_ARCH__)
    if (!is_asked_for_) start_copy(team);
    is_asked_for_ = false;
    int32_t copied = copied_groups(mine_).end;
#else
    int32_t copied = mine_.begin;
#endif
    if (copied == min_of(mine_.end, kept_groups_)) return;
    for_each_in(team, mine_, [&](int32_t group) {
      if (group >= copied && group < kept_groups_) kept_[group] = load(first_id(group));
    });
#if defined(__CUDA_ARCH__)
    BatchedCopy::hand_over();
#endif
  }

  // Takes over what a copy of this has done.
  SPECFAST_HD void absorb(const LogitRow& done) { turn_ = done.turn_; }

  SPECFAST_HD int32_t vocab_size() const { return vocab_size_; }

  // Groups of a subgroup, numbered within the part; their ids begin at first_id(begin).
  SPECFAST_HD GroupRange subgroup_range(int subgroup) const {
    int32_t begin = min_of(subgroup * of_subgroup_, groups_.size());
    return {begin, min_of(begin + of_subgroup_, groups_.size())};
  }
  SPECFAST_HD int32_t first_id(int32_t group) const { return (groups_.begin + group) * kGroupIds; }

  SPECFAST_HD float raw_value(int32_t id) const { return to_float(data_[id]); }
  SPECFAST_HD float value(int32_t id) const {
    float value = raw_value(id);
    if constexpr (kEdited) value = edits.apply(id, value);
    return value;
  }

  // The same of a token of this part.
  SPECFAST_HD float stored_value(int32_t id) const {
    int32_t group = id / kGroupIds - groups_.begin;
    float value = group < kept_groups_ ? to_float(kept_[group].get(id % kGroupIds)) : raw_value(id);
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

  // This thread's best key, and whether one of its values is NaN. Comes before any other look at
  // the groups, and leaves them readable for this thread, for others after a barrier.
  template <class Team>
  SPECFAST_HD KeyFlag largest(Team& team) {
#if defined(__CUDA_ARCH__)
    if constexpr (!kEdited) return largest_of_groups(*this, team);
#endif
    float best = -INFINITY;
    int32_t best_id = 0;
    bool has_nan = false;
    for_each_arriving_group(team, [&](int32_t id, const LogitGroup<T>& group) {
      float values[kGroupIds];
      unpack(group, values);
      edit(id, values);
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

  // This thread's groups that may hold a value from `lowest` up.
  template <class Team, class Visit>
  SPECFAST_HD void for_each_high_group(Team& team, float lowest, Visit visit) const {
    for_each_stored_group(team, [&](int32_t id, const LogitGroup<T>& group) {
      float values[kGroupIds];
#if defined(__CUDA_ARCH__)
      if constexpr (!kEdited) {
        if (!(largest_number(group) >= lowest)) return;  // as nearly all groups
      }
#endif
      unpack(group, values);
      edit(id, values);
      float largest = values[0];
      SPECFAST_UNROLL
      for (int i = 1; i < kGroupIds; ++i) largest = fmaxf(largest, values[i]);
      if (largest >= lowest) visit(id, values);
    });
  }

  // The same as they lie in memory: visit(first_id, LogitGroup).
  template <class Team, class Visit>
  SPECFAST_HD void for_each_stored_group(Team& team, Visit visit) const {
    for_each_in(team, mine_, [&](int32_t group) { visit(first_id(group), stored(group)); });
  }
  // While they arrive.
  template <class Team, class Visit>
  SPECFAST_HD void for_each_arriving_group(Team& team, Visit visit) const {
#if defined(__CUDA_ARCH__)
    SPECFAST_NO_UNROLL
    for (int i = 0; i < BatchedCopy::kBatches; ++i) {
      wait_for_batch(i);
      for_each_in(team, batch_range(i),
                  [&](int32_t group) { visit(first_id(group), stored(group)); });
    }
#else
    for_each_stored_group(team, visit);
#endif
  }

  // The group of an id of this part.
  SPECFAST_HD LogitGroup<T> group_of(int32_t id) const {
    return stored(id / kGroupIds - groups_.begin);
  }

  // A group from memory, -inf past the vocabulary; and one that is whole, in an aligned row.
  SPECFAST_HD LogitGroup<T> read(int32_t id) const { return load(id); }
  SPECFAST_HD LogitGroup<T> read_whole(int32_t id) const {
    return *reinterpret_cast<const LogitGroup<T>*>(data_ + id);
  }
  SPECFAST_HD bool is_aligned() const { return aligned_; }

  // The values of one group of this part.
  SPECFAST_HD void group_values(int32_t group, float (&values)[kGroupIds]) const {
    unpack(stored(group), values);
    edit(first_id(group), values);
  }

 private:
#if defined(__CUDA_ARCH__)
  // Number i of the batches of this subgroup's groups.
  __device__ GroupRange batch_range(int i) const {
    int32_t begin = min_of(mine_.begin + i * batch_, mine_.end);
    return {begin, min_of(begin + batch_, mine_.end)};
  }
  // Those that a copy brings: whole, and with room.
  __device__ GroupRange copied_groups(GroupRange range) const {
    int32_t whole = aligned_ ? vocab_size_ / kGroupIds - groups_.begin : 0;
    int32_t end = clamp_to(min_of(whole, kept_groups_), range.begin, range.end);
    return {range.begin, end};
  }
  // What is waited for is what was started: a batch without groups is neither.
  __device__ void wait_for_batch(int i) const {
    if (batch_range(i).size() > 0) BatchedCopy::wait(i, turn_);
  }
  template <class Team>
  __device__ void start_copy(const Team& team) {
    turn_ ^= 1;
    if (team.lane() >= BatchedCopy::kBatches || batch_range(team.lane()).size() == 0) return;
    GroupRange batch = copied_groups(batch_range(team.lane()));
    BatchedCopy::start(team.lane(), kept_ + batch.begin, data_ + first_id(batch.begin),
                       batch.size() * static_cast<int>(sizeof(LogitGroup<T>)));
  }
#endif
  template <class Team, class Visit>
  SPECFAST_HD static void for_each_in(const Team& team, GroupRange range, Visit visit) {
    SPECFAST_NO_UNROLL
    for (int32_t group = range.begin + team.lane(); group < range.end; group += team.lanes()) {
      visit(group);
    }
  }

  SPECFAST_HD LogitGroup<T> stored(int32_t group) const {
    return group < kept_groups_ ? kept_[group] : load(first_id(group));
  }

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
    for (int i = 0; i < kGroupIds; ++i) values[i] = to_float(group.get(i));
  }

  SPECFAST_HD void edit(int32_t id, float (&values)[kGroupIds]) const {
    if constexpr (kEdited) {
      if (id < vocab_size_) edits.apply(id, values);
    }
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
      for (size_t i = 0; i < sizeof(group) / sizeof(uint4); ++i) {
        out[i] = kWritten ? words[i] : __ldg(words + i);
      }
      return group;
    }
#endif
    return load_one_by_one(data_, id, vocab_size_);
  }
  // Takes no `this`, so that the row can stay in registers.
  SPECFAST_HD_OUTLINED static LogitGroup<T> load_one_by_one(const T* data, int32_t id,
                                                            int32_t vocab_size) {
    LogitGroup<T> group{};
    for (int i = 0; i < kGroupIds; ++i) {
      group.set(i, id + i < vocab_size ? data[id + i] : minus_infinity());
    }
    return group;
  }

  const T* data_ = nullptr;
  int32_t vocab_size_;
  int32_t kept_groups_;
  LogitGroup<T>* kept_ = nullptr;  // scratch [kept_groups]
  GroupRange groups_{0, 0};        // of this part
  GroupRange mine_{0, 0};          // of this subgroup, numbered within the part
  int32_t of_subgroup_ = 0;        // groups of each subgroup
  int32_t batch_ = 0;              // groups of a subgroup that arrive together
  int turn_ = 1;                   // of the copies
  bool is_asked_for_ = false;      // open_early came last
  bool aligned_ = false;
};

}  // namespace specfast
