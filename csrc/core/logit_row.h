#pragma once

#include <type_traits>

#include "core/argmax_key.h"
#include "core/logit_edits.h"
#include "core/team.h"

namespace specfast {

// Rows are read in groups of eight neighbouring ids. A part owns a range of tiles of 32 groups; its
// threads share the groups evenly, and the same thread meets the same ids in every pass.
constexpr int kGroupIds = 8;
constexpr int kTileGroups = 32;
constexpr int kTileIds = kGroupIds * kTileGroups;

// Eight logits as they lie in memory.
template <class T>
struct alignas(16) LogitGroup {
  T values[kGroupIds];
};

}  // namespace specfast

#if defined(__CUDACC__)
#include "core/group_scan.cuh"
#endif

namespace specfast {

SPECFAST_HD int32_t num_tiles(int32_t vocab_size) { return ceil_div(vocab_size, kTileIds); }

// Tiles [begin, end) of one part.
struct TileRange {
  int32_t begin;
  int32_t end;

  SPECFAST_HD static TileRange of(int32_t tiles, int part, int parts) {
    return {static_cast<int32_t>(static_cast<int64_t>(tiles) * part / parts),
            static_cast<int32_t>(static_cast<int64_t>(tiles) * (part + 1) / parts)};
  }
  SPECFAST_HD int32_t size() const { return end - begin; }
};

// One row of logits with the edits of its request, and the first tiles of this part's share kept in
// scratch once they were read.
template <class T, bool kEdited>
class LogitRow {
 public:
  using Element = T;

  LogitEdits edits;

  SPECFAST_HD LogitRow(int32_t vocab_size, int32_t tiles_to_keep)
      : vocab_size_(vocab_size), kept_groups_(tiles_to_keep * kTileGroups) {}

  template <class Arena>
  SPECFAST_HD void place(Arena& arena, int32_t max_path) {
    kept_ = arena.template scratch<LogitGroup<T>>(kept_groups_);
    if (kEdited) edits.place(arena, vocab_size_, max_path);
  }

  template <class Team>
  SPECFAST_HD void open(const Team& team, const T* data) {
    data_ = data;
    aligned_ = reinterpret_cast<uintptr_t>(data) % 16 == 0;
    tiles_ = TileRange::of(num_tiles(vocab_size_), team.part(), team.parts());
    is_kept_ = false;
  }

  SPECFAST_HD int32_t vocab_size() const { return vocab_size_; }
  SPECFAST_HD TileRange tiles() const { return tiles_; }

  SPECFAST_HD float raw_value(int32_t id) const { return to_float(data_[id]); }
  SPECFAST_HD float value(int32_t id) const {
    float value = raw_value(id);
    if constexpr (kEdited) value = edits.apply(id, value);
    return value;
  }

  // Calls visit(first_id, values) for this thread's groups. Past the vocabulary values are -inf.
  template <class Team, class Visit>
  SPECFAST_HD void for_each_group(Team& team, Visit visit) {
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
  SPECFAST_HD void for_each_raw_group(Team& team, Visit visit) {
    for_each_stored_group(team, [&](int32_t id, const LogitGroup<T>& group) {
      float values[kGroupIds];
      unpack(group, values);
      visit(id, values);
    });
  }

  // The same as they lie in memory: visit(first_id, LogitGroup).
  template <class Team, class Visit>
  SPECFAST_HD void for_each_stored_group(Team& team, Visit visit) {
    constexpr int kInFlight = Team::kOnDevice ? 4 : 1;
    int32_t step = team.size();
    int32_t groups = tiles_.size() * kTileGroups;
    int32_t first_id = tiles_.begin * kTileIds;
    SPECFAST_NO_UNROLL
    for (int32_t begin = team.rank(); begin < groups; begin += kInFlight * step) {
      // All loads are asked for before the first is looked at.
      LogitGroup<T> loaded[kInFlight];
      SPECFAST_UNROLL
      for (int k = 0; k < kInFlight; ++k) {
        int32_t group = begin + k * step;
        if (group < groups) loaded[k] = fetch(group, first_id + group * kGroupIds);
      }
      SPECFAST_UNROLL
      for (int k = 0; k < kInFlight; ++k) {
        int32_t group = begin + k * step;
        if (group >= groups) break;
        if (!is_kept_ && group < kept_groups_) kept_[group] = loaded[k];
        visit(first_id + group * kGroupIds, loaded[k]);
      }
    }
    is_kept_ = true;
  }

  // The values of one group of a tile of this part, after a barrier since the row was first read.
  SPECFAST_HD void group_of_tile(int32_t tile, int group, float (&values)[kGroupIds]) const {
    int32_t id = tile * kTileIds + group * kGroupIds;
    unpack(fetch((tile - tiles_.begin) * kTileGroups + group, id), values);
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

  // Group `group` of this part, from scratch if it is there.
  SPECFAST_HD LogitGroup<T> fetch(int32_t group, int32_t id) const {
    return is_kept_ && group < kept_groups_ ? kept_[group] : load(id);
  }

  SPECFAST_HD LogitGroup<T> load(int32_t id) const {
#if defined(__CUDA_ARCH__)
    if (aligned_ && id + kGroupIds <= vocab_size_) {
      LogitGroup<T> group;
      const uint4* words = reinterpret_cast<const uint4*>(data_ + id);
      uint4* out = reinterpret_cast<uint4*>(&group);
      SPECFAST_UNROLL
      for (size_t i = 0; i < sizeof(group) / sizeof(uint4); ++i) out[i] = __ldg(words + i);
      return group;
    }
#endif
    return load_one_by_one(id);
  }
  SPECFAST_HD_OUTLINED LogitGroup<T> load_one_by_one(int32_t id) const {
    LogitGroup<T> group;
    for (int i = 0; i < kGroupIds; ++i) {
      group.values[i] = id + i < vocab_size_ ? data_[id + i] : minus_infinity();
    }
    return group;
  }

  const T* data_ = nullptr;
  int32_t vocab_size_;
  int32_t kept_groups_;
  LogitGroup<T>* kept_ = nullptr;  // scratch [kept_groups]
  TileRange tiles_{0, 0};
  bool aligned_ = false;
  bool is_kept_ = false;
};

}  // namespace specfast
