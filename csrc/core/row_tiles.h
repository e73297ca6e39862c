#pragma once

#include <algorithm>

#include "core/lane_sums.h"
#include "core/logit_row.h"
#include "core/mass.h"

namespace specfast {

// A row of logits in tiles of so many neighbouring ids. Each has a maximum and a sum of its own, so
// that a row is read once and nobody waits for its maximum; the order of a sum is that of lane
// sums, whoever makes it.
constexpr int kTileIds = 1024;

struct TileSum {
  float max;  // -inf: no number
  float sum;  // of tile_weight(value - max)
};

// exp(below), of a number that is not above 0, and 2^-64 for all that would be less and for NaN.
// Relative error below 5e-6, of which 3e-6 is that of the polynomial.
SPECFAST_HD float tile_weight(float below) {
  constexpr float kLowest = 64.0f;
  constexpr float kLog2e = 0x1.715476p+0f / kLowest;
  // 1.5 * 2^23 less what `share` is above the exponent: adding it rounds to an integer.
  constexpr float kRound = 12582912.0f - kLowest;
#if defined(__CUDA_ARCH__)
  float share;
  asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(share) : "f"(below), "f"(kLog2e), "f"(1.0f));
#else
  float share = fmaf(below, kLog2e, 1.0f);
  share = share > 0.0f ? std::min(share, 1.0f) : 0.0f;
#endif
  float shifted = fmaf(share, kLowest, kRound);
  float f = fmaf(share, kLowest, kRound - shifted);
  float y = fmaf(0x1.3a02b8p-7f, f, 0x1.c9fc46p-5f);
  y = fmaf(y, f, 0x1.ec0378p-3f);
  y = fmaf(y, f, 0x1.62e12cp-1f);
  y = fmaf(y, f, 1.0f);
  uint32_t exponent = float_bits(shifted) << 23;  // the constant leaves no bit of its own
  return bits_float(float_bits(y) + exponent);
}

template <class T>
class RowTiles {
 public:
  SPECFAST_HD explicit RowTiles(int32_t vocab_size) : logits_(vocab_size, 0) {}

  // Tiles of a part, at most.
  SPECFAST_HD static int32_t share(int32_t vocab_size, int parts) {
    return ceil_div(ceil_div(vocab_size, kTileIds), static_cast<int32_t>(parts));
  }
  template <class Arena>
  SPECFAST_HD void place(Arena& arena, int parts) {
    int32_t tiles = share(logits_.vocab_size(), parts);
    sums_ = arena.template scratch<TileSum>(tiles);
    maxima_ = arena.template scratch<float>(tiles * kLaneSums);
  }

  template <class Team>
  SPECFAST_HD void open(const Team& team, const T* data) {
    int32_t tiles = ceil_div(logits_.vocab_size(), kTileIds);
    int32_t most = share(logits_.vocab_size(), team.parts());
    first_ = min_of(team.part() * most, tiles);
    count_ = min_of(most, tiles - first_);
    logits_.aim(data);
  }

  // Reads this part's tiles. What is left of them can be looked at behind a barrier. This thread's
  // largest number, as a key without an id, and whether it met a NaN.
  template <class Team>
  SPECFAST_HD KeyFlag sum_up(Team& team) {
    KeyFlag of_thread{0, false};
    Share<Team> next;
    if (team.subgroup() < count_) load(team, team.subgroup(), next);
    SPECFAST_NO_UNROLL
    for (int32_t tile = team.subgroup(); tile < count_; tile += team.subgroups()) {
      Share<Team> share = next;
      if (tile + team.subgroups() < count_) load(team, tile + team.subgroups(), next);
      float largest = largest_of(share, of_thread.flag);
      maxima_[tile * Share<Team>::kLanes + team.lane()] = largest;
      uint32_t order = value_order(largest);
      of_thread.key = max_of(of_thread.key, static_cast<uint64_t>(order) << 32);
#if defined(__CUDA_ARCH__)
      order = __reduce_max_sync(~0u, order);
#endif
      TileSum sum{order == 0 ? -INFINITY : ordered_value(order), 0.0f};
      sum.sum = sum_of(share, sum.max);
      if (team.lane() == 0) sums_[tile] = sum;
    }
    return of_thread;
  }

  // This thread's part of the masses of this part under the largest value of the row: of each tile
  // that of its weight times its sum.
  template <class Team>
  SPECFAST_HD uint64_t mass(const Team& team, float max) const {
    Weights weights{max, Weights::scale2_of(1.0f)};
    uint64_t mass = 0;
    SPECFAST_NO_UNROLL
    for (int32_t tile = team.rank(); tile < count_; tile += team.size()) {
      mass += to_mass(weights.weight(sums_[tile].max) * sums_[tile].sum);
    }
    return mass;
  }

  // visit(first_id, values) for this thread's groups of eight, -inf past the vocabulary, of runs
  // that may hold a value from `lowest` up.
  template <class Team, class Visit>
  SPECFAST_HD void for_each_high_group(const Team& team, float lowest, const Visit& visit) const {
    SPECFAST_NO_UNROLL
    for (int32_t tile = team.subgroup(); tile < count_; tile += team.subgroups()) {
      if (!(maxima_[tile * Share<Team>::kLanes + team.lane()] >= lowest)) continue;
      SPECFAST_NO_UNROLL
      for (int i = 0; i < Share<Team>::kGroups; ++i) {
        int32_t id = first_id<Team>(team, tile, i);
        LogitGroup<T> group = logits_.read(id);
        float values[kGroupIds];
        SPECFAST_UNROLL
        for (int k = 0; k < kGroupIds; ++k) values[k] = to_float(group.get(k));
        visit(id, values);
      }
    }
  }
  // Of all runs.
  template <class Team, class Visit>
  SPECFAST_HD void for_each_group(const Team& team, const Visit& visit) const {
    for_each_high_group(team, -INFINITY, visit);
  }

 private:
  static constexpr int kRuns = kTileIds / (kLaneSums * kLaneRun);  // of each sum
  static_assert(kLaneRun == kGroupIds);

  // A lane's share of a tile: the runs of its sums.
  template <class Team>
  struct Share {
    static constexpr int kLanes = Team::kOnDevice ? kLaneSums : 1;
    static constexpr int kSums = kLaneSums / kLanes;
    static constexpr int kGroups = kRuns * kSums;
    LogitGroup<T> groups[kGroups];  // number i: run i / kSums of the lane's sum i % kSums
  };

  template <class Team>
  SPECFAST_HD int32_t first_id(const Team& team, int32_t tile, int i) const {
    constexpr int kSums = Share<Team>::kSums;
    int32_t run = i / kSums * kLaneSums + i % kSums * Share<Team>::kLanes + team.lane();
    return (first_ + tile) * kTileIds + run * kLaneRun;
  }

  template <class Team>
  SPECFAST_HD void load(const Team& team, int32_t tile, Share<Team>& out) const {
    if (logits_.is_aligned() && (first_ + tile + 1) * kTileIds <= logits_.vocab_size()) {
      SPECFAST_UNROLL
      for (int i = 0; i < Share<Team>::kGroups; ++i) {
        out.groups[i] = logits_.read_whole(first_id(team, tile, i));
      }
    } else {
      SPECFAST_UNROLL
      for (int i = 0; i < Share<Team>::kGroups; ++i) {
        out.groups[i] = logits_.read(first_id(team, tile, i));
      }
    }
  }

  // NaN does not count, but is told.
  template <class Share>
  SPECFAST_HD static float largest_of(const Share& share, bool& has_nan) {
#if defined(__CUDA_ARCH__)
    float largest = largest_or_nan(share.groups);
    if (largest == largest) return largest;
    has_nan = true;
    largest = -INFINITY;
    SPECFAST_UNROLL
    for (int i = 0; i < Share::kGroups; ++i) {
      largest = fmaxf(largest, largest_number(share.groups[i]));
    }
    return largest != largest ? -INFINITY : largest;
#else
    float largest = -INFINITY;
    for (const LogitGroup<T>& group : share.groups) {
      for (int k = 0; k < kGroupIds; ++k) {
        float value = to_float(group.get(k));
        has_nan |= value != value;
        if (value > largest) largest = value;
      }
    }
    return largest;
#endif
  }

  template <class Share>
  SPECFAST_HD static float sum_of(const Share& share, float max) {
    float sums[Share::kSums] = {};
    SPECFAST_UNROLL
    for (int i = 0; i < Share::kGroups; ++i) {
      SPECFAST_UNROLL
      for (int k = 0; k < kGroupIds; ++k) {
        sums[i % Share::kSums] += tile_weight(to_float(share.groups[i].get(k)) - max);
      }
    }
    return folded_sums<Share::kLanes>(sums);
  }

  LogitRow<T, false> logits_;
  int32_t first_ = 0;  // tile of this part
  int32_t count_ = 0;
  TileSum* sums_ = nullptr;  // scratch [share]
  float* maxima_ = nullptr;  // scratch [share, lanes] of a lane's share of each tile
};

}  // namespace specfast
