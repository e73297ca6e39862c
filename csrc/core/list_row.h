#pragma once

#include <cfloat>

#include "core/request_sampling.h"
#include "core/row_distribution.h"

namespace specfast {

// Lists of keys, one per shard of a vocabulary: best first, zeros behind the last.
struct ShardLists {
  const uint64_t* first;
  int64_t stride;  // words between lists
  int num_shards;
  int32_t length;

  // As LogitRow::for_each_high_group, for the best `most` tokens of all lists: each comes with a
  // group to itself. A key's place is its place in its own list, and in others the number of larger
  // keys.
  template <class Team, class Visit>
  SPECFAST_HD void for_each_best(Team& team, int32_t most, Visit visit) const {
    int step = team.parts() * team.size();
    SPECFAST_NO_UNROLL
    for (int i = team.part() * team.size() + team.rank(); i < num_shards * length; i += step) {
      int own = i / length;
      int32_t place = i - own * length;
      uint64_t key = first[own * stride + place];
      SPECFAST_NO_UNROLL
      for (int other = 0; key != 0 && other < num_shards && place < most; ++other) {
        if (other != own) place += count_above(first + other * stride, key);
      }
      if (key == 0 || place >= most) continue;
      float values[kGroupIds];
      SPECFAST_UNROLL
      for (int k = 0; k < kGroupIds; ++k) values[k] = k == 0 ? argmax_value(key) : -INFINITY;
      visit(argmax_id(key), values);
    }
  }

 private:
  SPECFAST_HD int32_t count_above(const uint64_t* list, uint64_t key) const {
    int32_t low = 0;
    int32_t high = length;
    while (low < high) {
      int32_t middle = (low + high) / 2;
      if (list[middle] > key) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

// The filtered distribution of a row that no part has: all that is known of it is its largest key
// and, with top-k, its best tokens. Does with these what RowDistribution does.
class ListRow {
 public:
  RowKind kind = kUnusableRow;
  int32_t argmax = 0;
  int32_t status = kStatusOk;
  Weights weights{0.0f, 0.0f};
  uint64_t mass = 0;  // of the kept tokens; without top-k the caller's to set

  template <class Arena>
  SPECFAST_HD void place(Arena& arena) {
    exchange_.place(arena);
    candidates_.place(arena);
  }

  // Is a barrier of the team.
  template <class Team>
  SPECFAST_HD void open(Team& team, const RequestSampling& sampling, KeyFlag of_row,
                        const ShardLists& lists) {
    status = of_row.flag ? kNanLogits : kStatusOk;
    if (of_row.key == 0 && status == kStatusOk) status = kEmptySupport;
    argmax = argmax_id(of_row.key);
    weights = {argmax_value(of_row.key), Weights::scale2_of(sampling.scale)};
    kind = of_row.key == 0 ? kUnusableRow : kOrdinaryRow;
    if (kind == kOrdinaryRow && (sampling.greedy || weights.max == INFINITY)) kind = kPointMass;
    if (kind != kOrdinaryRow || sampling.top_k == 0) {
      team.wait();
      return;
    }
    BestTokens best{lists, sampling.top_k};
    bool collected = candidates_.collect(
        team, exchange_, best, -FLT_MAX, sampling.top_k,
        [&](int32_t, float value) { return value <= weights.max && weights.mass(value) > 0; },
        [&](float value) { return weights.weight(value); });
    // Lists that no shard wrote may hold anything but the largest key.
    if (!collected || candidates_.count() == 0 || candidates_.key(0) != of_row.key) {
      kind = kPointMass;
      return;
    }
    if (candidates_.count() >= sampling.top_k) cut_after(sampling.top_k - 1);
    if (sampling.has_top_p) {
      cut_after(candidates_.reach(team, fraction_above(sampling.top_p, candidates_.mass())));
    }
    if (sampling.min_mass > 1) cut_after(candidates_.last_with(team, sampling.min_mass));
    mass = candidates_.mass();
  }

  SPECFAST_HD uint64_t mass_of(int32_t id, float value) const {
    return argmax_key(value, id) >= cut_key_ ? weights.mass(value) : 0;
  }

  // As RowDistribution::draw, of an ordinary row with top-k.
  template <class Team, class Target>
  SPECFAST_HD Drawn draw(Team& team, const Exclusions& excluded, Target target) {
    // Candidates that are in no list, as no shard writes them, may have more mass than the lists.
    uint64_t gone = excluded.mass();
    if (gone >= mass) return {candidates_.last_id(team), kZeroResidual};
    uint64_t total = mass - gone;
    candidates_.sum(team, Rest{excluded, weights});
    return {candidates_.find(team, target(total)), kStatusOk};
  }

 private:
  struct BestTokens {
    const ShardLists& lists;
    int32_t most;

    template <class Team, class Visit>
    SPECFAST_HD void for_each_high_group(Team& team, float, Visit visit) const {
      lists.for_each_best(team, most, visit);
    }
  };
  struct Rest {
    const Exclusions& excluded;
    const Weights& weights;

    SPECFAST_HD float one(int32_t id, float value) const {
      return excluded.contain(id) ? 0.0f : weights.weight(value);
    }
  };

  // Keeps the tokens up to number `last`.
  SPECFAST_HD void cut_after(int32_t last) {
    cut_key_ = candidates_.key(last);
    candidates_.truncate(last + 1);
  }

  Exchange exchange_;
  RowCandidates candidates_;
  uint64_t cut_key_ = 0;  // of the last kept token; 0: nothing is cut
};

}  // namespace specfast
