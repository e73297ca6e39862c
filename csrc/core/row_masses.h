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

// A mass function of single tokens as RowMasses takes it: for one token, and for a group of them.
template <class OfOne>
struct TokenMasses {
  OfOne of_one;

  SPECFAST_HD uint64_t operator()(int32_t id, float value) const { return of_one(id, value); }
  SPECFAST_HD void operator()(int32_t first_id, const float (&values)[kGroupIds],
                              uint64_t (&masses)[kGroupIds]) const {
    SPECFAST_UNROLL
    for (int i = 0; i < kGroupIds; ++i) masses[i] = of_one(first_id + i, values[i]);
  }
};

template <class OfOne>
SPECFAST_HD TokenMasses<OfOne> token_masses(OfOne of_one) {
  return {of_one};
}

// Sums of masses over a row, by tile and by part, and the search for a token in them.
class RowMasses {
 public:
  template <class Arena>
  SPECFAST_HD void place(Arena& arena, int32_t vocab_size) {
    tile_masses_ = arena.template scratch<uint64_t>(num_tiles(vocab_size));
    found_ = arena.template scratch<int32_t>(1);
  }

  // Sum of the masses over the row.
  template <class Team, class Row, class Masses>
  SPECFAST_HD uint64_t sum(Team& team, Exchange& exchange, Row& row, const Masses& masses_of) {
    uint64_t mine = 0;
    uint64_t in_tile = 0;
    int32_t first_tile = row.tiles().begin;
    row.for_each_group(
        team,
        [&](int32_t id, const float (&values)[kGroupIds]) {
          uint64_t masses[kGroupIds];
          masses_of(id, values, masses);
          SPECFAST_UNROLL
          for (int i = 0; i < kGroupIds; ++i) in_tile += masses[i];
        },
        [&](int32_t tile) {
          uint64_t of_tile = team.lane_sum(in_tile);
          in_tile = 0;
          if (team.lane() != 0) return;
          tile_masses_[tile - first_tile] = of_tile;
          mine += of_tile;
        });
    uint64_t words[1] = {static_cast<uint64_t>(team.sum(static_cast<int64_t>(mine)))};
    part_masses_ = exchange.all_gather(team, words);
    uint64_t total = 0;
    for (int part = 0; part < team.parts(); ++part) total += part_masses_[part];
    return total;
  }

  // The smallest id whose running sum of masses exceeds `at`, which is below their sum. `sum` came
  // before, over the same masses or over those that the excluded ids had on top.
  template <class Team, class Row, class Masses>
  SPECFAST_HD int32_t find(Team& team, Exchange& exchange, Row& row, const Masses& masses_of,
                           const Exclusions& excluded, uint64_t at) {
    int32_t tiles = num_tiles(row.vocab_size());
    int owner = 0;
    for (; owner < team.parts() - 1; ++owner) {
      TileRange range = TileRange::of(tiles, owner, team.parts());
      uint64_t here = part_masses_[owner] - excluded_in(excluded, range);
      if (at < here) break;
      at -= here;
    }
    if (team.part() == owner && team.subgroup() == 0)
      find_in_part(team, row, masses_of, excluded, at);
    team.sync_part();  // found_ is written, and the part masses have been looked at
    uint64_t words[1] = {static_cast<uint64_t>(found_[0])};
    return static_cast<int32_t>(exchange.all_gather(team, words)[owner]);
  }

 private:
  SPECFAST_HD static uint64_t excluded_in(const Exclusions& excluded, TileRange range) {
    return excluded.mass(range.begin * kTileIds, range.end * kTileIds);
  }

  // By one subgroup: the tile, the group in it, the id in that.
  template <class Team, class Row, class Masses>
  SPECFAST_HD void find_in_part(Team& team, Row& row, const Masses& masses_of,
                                const Exclusions& excluded, uint64_t at) {
    TileRange range = row.tiles();
    int32_t tile = range.begin;
    for (; tile < range.end - 1; ++tile) {
      uint64_t here = tile_masses_[tile - range.begin] - excluded_in(excluded, {tile, tile + 1});
      if (at < here) break;
      at -= here;
    }
    row.for_each_group_of(team, tile, [&](int32_t id, const float (&values)[kGroupIds]) {
      uint64_t masses[kGroupIds];
      masses_of(id, values, masses);
      uint64_t of_group = 0;
      SPECFAST_UNROLL
      for (int i = 0; i < kGroupIds; ++i) of_group += masses[i];
      uint64_t of_lanes;
      uint64_t before = team.lane_prefix(of_group, &of_lanes);
      if (at >= before && at - before < of_group) {
        uint64_t rest = at - before;
        int i = 0;
        while (rest >= masses[i]) rest -= masses[i++];
        found_[0] = id + i;
      }
      at = at >= of_lanes ? at - of_lanes : UINT64_MAX;  // found: nothing else can match
    });
  }

  uint64_t* tile_masses_ = nullptr;  // scratch, of this part's tiles
  int32_t* found_ = nullptr;         // scratch [1]
  const uint64_t* part_masses_ = nullptr;
};

}  // namespace specfast
