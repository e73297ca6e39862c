#pragma once

#include "core/exchange.h"
#include "core/logit_row.h"
#include "core/mass.h"

namespace specfast {

// Tokens that are out of a draw, with the mass that each had.
struct Exclusions {
  const int32_t* ids = nullptr;
  const uint64_t* masses = nullptr;
  int32_t count = 0;

  SPECFAST_HD bool contain(int32_t id) const {
    for (int32_t i = 0; i < count; ++i) {
      if (ids[i] == id) return true;
    }
    return false;
  }
  // Mass of those with ids in [begin, end).
  SPECFAST_HD uint64_t mass(int32_t begin = 0, int32_t end = INT32_MAX) const {
    uint64_t sum = 0;
    for (int32_t i = 0; i < count; ++i) {
      if (ids[i] >= begin && ids[i] < end) sum += masses[i];
    }
    return sum;
  }
};

// Mass of eight weights in [0, 1].
SPECFAST_HD uint64_t sum_of_masses(const float (&weights)[kGroupIds]) {
#if defined(__CUDA_ARCH__)
  // Conversions to 64 bits are slow, so a weight splits into multiples of 2^-20 and what is below:
  // adding 1.5 * 2^23 leaves an integer in the low bits of a float.
  constexpr float kInteger = 12582912.0f;
  constexpr float kHigh = 1048576.0f;
  uint32_t high = 0;
  uint32_t low = 0;
#pragma unroll
  for (int i = 0; i < kGroupIds; ++i) {
    float scaled = weights[i] * kHigh;
    float rounded = scaled + kInteger;
    float rest = scaled - (rounded - kInteger);
    high += __float_as_uint(rounded);
    low += __float_as_uint(__fmaf_rd(rest, kHigh, kInteger));
  }
  constexpr uint32_t kIntegers = 0x4b400000u * kGroupIds;
  int32_t multiples = static_cast<int32_t>(high - kIntegers);
  int32_t below = static_cast<int32_t>(low - kIntegers);
  return static_cast<uint64_t>(static_cast<int64_t>(multiples) * 1048576 + below);
#else
  uint64_t sum = 0;
  for (float weight : weights) sum += to_mass(weight);
  return sum;
#endif
}

// Sums of masses over a row, by tile and by part, and the search for a token in them.
class RowMasses {
 public:
  template <class Arena>
  SPECFAST_HD void place(Arena& arena, int32_t vocab_size) {
    tile_masses_ = arena.template scratch<uint64_t>(num_tiles(vocab_size));
    left_ = arena.template scratch<uint64_t>(kMaxParts);
    found_ = arena.template scratch<int32_t>(1);
  }

  // Sum over the row of the masses of weight_of(id, value), which is in [0, 1].
  template <class Team, class Row, class WeightOf>
  SPECFAST_HD uint64_t sum(Team& team, Exchange& exchange, Row& row, const WeightOf& weight_of) {
    uint64_t mine = 0;
    row.for_each_group(team, [&](int32_t id, const float (&values)[kGroupIds]) {
      mine += mass_of_group(id, values, weight_of);
    });
    uint64_t words[1] = {static_cast<uint64_t>(team.sum(static_cast<int64_t>(mine)))};
    part_masses_ = exchange.all_gather(team, words);
    uint64_t total = 0;
    for (int part = 0; part < team.parts(); ++part) total += part_masses_[part];
    return total;
  }

  // The smallest id whose running sum of masses exceeds `at`, which is below their sum; the
  // excluded ids count nothing. `sum` came before, over the same weights.
  template <class Team, class Row, class WeightOf>
  SPECFAST_HD int32_t find(Team& team, Exchange& exchange, Row& row, const WeightOf& weight_of,
                           const Exclusions& excluded, uint64_t at) {
    int32_t tiles = num_tiles(row.vocab_size());
    SPECFAST_NO_UNROLL
    for (int part = team.rank(); part < team.parts(); part += team.size()) {
      TileRange range = TileRange::of(tiles, part, team.parts());
      left_[part] =
          part_masses_[part] - excluded.mass(range.begin * kTileIds, range.end * kTileIds);
    }
    team.sync_part();  // left_ is written
    int owner = 0;
    for (; owner < team.parts() - 1 && at >= left_[owner]; ++owner) at -= left_[owner];
    if (team.part() == owner) {
      sum_tiles(team, row, weight_of, excluded);
      if (team.subgroup() == 0) find_in_part(team, row, weight_of, excluded, at);
    }
    team.sync_part();  // found_ is written
    uint64_t words[1] = {static_cast<uint64_t>(found_[0])};
    return static_cast<int32_t>(exchange.all_gather(team, words)[owner]);
  }

 private:
  template <class WeightOf>
  SPECFAST_HD static uint64_t mass_of_group(int32_t id, const float (&values)[kGroupIds],
                                            const WeightOf& weight_of) {
    float weights[kGroupIds];
    SPECFAST_UNROLL
    for (int i = 0; i < kGroupIds; ++i) weights[i] = weight_of(id + i, values[i]);
    return sum_of_masses(weights);
  }

  // The weights of a group of a tile of this part.
  template <class Row, class WeightOf>
  SPECFAST_HD static void weigh(const Row& row, int32_t tile, int group, const WeightOf& weight_of,
                                const Exclusions& excluded, float (&weights)[kGroupIds]) {
    float values[kGroupIds];
    row.group_of_tile(tile, group, values);
    int32_t id = tile * kTileIds + group * kGroupIds;
    SPECFAST_UNROLL
    for (int i = 0; i < kGroupIds; ++i) weights[i] = weight_of(id + i, values[i]);
    SPECFAST_NO_UNROLL
    for (int32_t k = 0; k < excluded.count; ++k) {
      int32_t at = excluded.ids[k] - id;
      SPECFAST_UNROLL
      for (int i = 0; i < kGroupIds; ++i) weights[i] = at == i ? 0.0f : weights[i];
    }
  }

  template <class Team, class Row, class WeightOf>
  SPECFAST_HD void sum_tiles(Team& team, const Row& row, const WeightOf& weight_of,
                             const Exclusions& excluded) {
    TileRange range = row.tiles();
    SPECFAST_NO_UNROLL
    for (int32_t tile = range.begin + team.subgroup(); tile < range.end; tile += team.subgroups()) {
      uint64_t mine = 0;
      SPECFAST_NO_UNROLL
      for (int group = team.lane(); group < kTileGroups; group += team.lanes()) {
        float weights[kGroupIds];
        weigh(row, tile, group, weight_of, excluded, weights);
        mine += sum_of_masses(weights);
      }
      uint64_t of_tile = team.lane_sum(mine);
      if (team.lane() == 0) tile_masses_[tile - range.begin] = of_tile;
    }
    team.sync_part();  // tile masses are written
  }

  // By one subgroup: the tile, the group in it, the id in that.
  template <class Team, class Row, class WeightOf>
  SPECFAST_HD void find_in_part(Team& team, const Row& row, const WeightOf& weight_of,
                                const Exclusions& excluded, uint64_t at) {
    TileRange range = row.tiles();
    auto of_tile = [&](int32_t i) { return i < range.size() ? tile_masses_[i] : 0; };
    int32_t tile = range.begin + search(team, range.size(), of_tile, &at);
    float weights[kGroupIds];
    auto of_group = [&](int32_t group) {
      weigh(row, tile, group, weight_of, excluded, weights);
      return sum_of_masses(weights);
    };
    int32_t group = search(team, kTileGroups, of_group, &at);
    weigh(row, tile, group, weight_of, excluded, weights);
    int32_t found = -1;
    SPECFAST_UNROLL
    for (int i = 0; i < kGroupIds; ++i) {
      uint64_t here = to_mass(weights[i]);
      if (found < 0 && at < here) found = tile * kTileIds + group * kGroupIds + i;
      at -= here;
    }
    if (team.lane() == 0) found_[0] = found;
  }

  // The number of the mass in which `at` falls, and `at` within it.
  template <class Team, class MassOf>
  SPECFAST_HD static int32_t search(Team& team, int32_t count, const MassOf& mass_of,
                                    uint64_t* at) {
    SPECFAST_NO_UNROLL
    for (int32_t first = 0; first < count; first += team.lanes()) {
      int32_t i = first + team.lane();
      uint64_t here = mass_of(i);
      uint64_t all;
      uint64_t before = team.lane_prefix(here, &all);
      if (*at < all) {
        bool mine = *at >= before && *at - before < here;
        int32_t found = static_cast<int32_t>(team.lane_sum(mine ? static_cast<uint64_t>(i) : 0));
        *at -= team.lane_sum(mine ? before : 0);
        return found;
      }
      *at -= all;
    }
    return count - 1;  // `at` was not below the sum
  }

  uint64_t* tile_masses_ = nullptr;  // scratch, of this part's tiles
  uint64_t* left_ = nullptr;         // scratch [kMaxParts], of each part without exclusions
  int32_t* found_ = nullptr;         // scratch [1]
  const uint64_t* part_masses_ = nullptr;
};

}  // namespace specfast
