#pragma once

#include "core/request_sampling.h"
#include "core/row_answers.h"
#include "core/row_candidates.h"
#include "core/row_form.h"

namespace specfast {

// The distribution of one row after another. What decides is the same on all threads of the team.
// kRestorable: a row may also come from a record of it. kWritten: see LogitRow.
template <class Form, bool kRestorable = false, bool kWritten = false>
class RowDistribution {
 public:
  using Element = typename Form::Element;
  static constexpr bool kEdited = Form::kEdited;
  static constexpr bool kFiltered = Form::kFiltered;
  using Kept = std::conditional_t<kFiltered, KeptWeights, PlainWeights>;

  LogitRow<Element, kEdited, kWritten> logits;
  Exchange exchange;
  RowMasses masses;

  // Of the row that was opened last.
  RowKind kind = kUnusableRow;
  int32_t argmax = 0;
  int32_t status = kStatusOk;
  Kept kept;
  uint64_t mass = 0;  // S

  SPECFAST_HD RowDistribution(int32_t vocab_size, int32_t groups_to_keep)
      : logits(vocab_size, groups_to_keep) {}

  template <class Arena>
  SPECFAST_HD void place(Arena& arena, int32_t max_path) {
    exchange.place(arena);
    masses.place(arena);
    if constexpr (kFiltered) candidates_.place(arena);
    logits.place(arena, max_path);
  }

  // Asks for a row. What does not need it may come before `finish_open`.
  template <class Team>
  SPECFAST_HD void begin_open(const Team& team, const Element* data, const int32_t* bitmask) {
    logits.open(team, data);
    if constexpr (kEdited) logits.edits.set_bitmask(bitmask);
    kept.clear_cut();
    has_candidates_ = false;
    if constexpr (kRestorable) is_restored_ = false;
    if constexpr (kRestorable) is_here_ = true;
  }

  // Takes a row from its record instead; its logits are brought when they are needed.
  SPECFAST_HD void restore(const RowRecord& record, int32_t row_status, const Element* data) {
    logits.aim(data);
    kind = static_cast<RowKind>(record.kind);
    argmax = record.argmax;
    status = row_status;
    kept.weights = {record.max, Weights::scale2_of(record.scale)};
    kept.cut_after(record.cut_value, record.cut_id);
    mass = record.mass;
    has_candidates_ = false;
    is_restored_ = true;
    is_here_ = false;
  }
  SPECFAST_HD bool is_restored() const { return kRestorable && is_restored_; }

  // Reads the row: its largest value, then its mass or, with top-k, its few kept tokens. Is a
  // barrier of the part. `meanwhile` runs where threads would wait for other parts, `weigh` once
  // `mass_of` answers; a barrier follows it.
  template <class Team, class Meanwhile = Nothing, class Weigh = Nothing>
  SPECFAST_HD void finish_open(Team& team, const RequestSampling& sampling,
                               Meanwhile meanwhile = {}, Weigh weigh = {}) {
    int32_t top_k = !kFiltered || sampling.greedy ? 0 : sampling.top_k;
    uint32_t bound = read_largest(team, top_k, meanwhile);
    if (kind == kUnusableRow) return;
    if (sampling.greedy || kept.weights.max == INFINITY) {
      kind = kPointMass;
      mass = kUnitMass;
      return;
    }
    kept.weights.scale2 = Weights::scale2_of(sampling.scale);
    if constexpr (kFiltered) {
      if (top_k > 0) cut_by_count(team, top_k, bound);
      if (sampling.has_top_p) cut_by_mass(team, sampling.top_p);
      if (sampling.min_mass > 1) raise_cut(team, sampling.min_mass);
    }
    weigh();
    mass = kept_mass(team);
    if (has_candidates()) team.sync_part();  // what was weighed can be looked at
  }

  SPECFAST_HD uint64_t mass_of(int32_t id, float value) const {
    return to_mass(weight_of(id, value));
  }
  // Weight of a kept token; 0 where its mass is.
  SPECFAST_HD float weight_of(int32_t id, float value) const {
    if (kind != kOrdinaryRow) return kind == kPointMass && id == argmax ? 1.0f : 0.0f;
    return kept.one(id, value);
  }

  SPECFAST_HD RowRecord record(float scale) const {
    if (kind == kUnusableRow) return {0.0f, 0.0f, 0.0f, -1, 0, argmax, kind};
    if (kind == kPointMass) {
      return {0.0f, kept.weights.max, kept.weights.max, argmax, kUnitMass, argmax, kind};
    }
    return {scale, kept.weights.max, kept.last_value(), kept.last_id(), mass, argmax, kind};
  }

  // Draws from the kept tokens but the excluded ones. `target(total)` maps their mass to a number
  // below it.
  template <class Team, class Target>
  SPECFAST_HD Drawn draw(Team& team, const Exclusions& excluded, Target target) {
    if (kind != kOrdinaryRow) {
      bool gone = kind == kPointMass && excluded.contain(argmax);
      return {argmax, gone ? kZeroResidual : kStatusOk};
    }
    uint64_t total = mass - excluded.mass();
    if (total == 0) return {last_kept(team), kZeroResidual};
    if (has_candidates()) {
      candidates_.sum(team, TokenWeights{[&](int32_t id, float value) {
                        return excluded.contain(id) ? 0.0f : kept.weights.weight(value);
                      }});
      return {candidates_.find(team, target(total)), kStatusOk};
    }
    if (is_restored()) sum(team, kept);  // of which the search needs the shares
    return {masses.find(team, exchange, logits, kept, excluded, target(total)), kStatusOk};
  }

  // Mass of other weights over the kept tokens, and a token by its place in the running sum of the
  // same masses; both on ordinary rows.
  template <class Team, class WeightsOf>
  SPECFAST_HD uint64_t sum(Team& team, const WeightsOf& other) {
    if (has_candidates()) return candidates_.sum(team, other);
    return sum_of_row(team, other);
  }
  // The same over all tokens of any row.
  template <class Team, class WeightsOf>
  SPECFAST_HD uint64_t sum_of_row(Team& team, const WeightsOf& other) {
    bring_row(team);
    return masses.sum(team, exchange, logits, other);
  }
  template <class Team, class WeightsOf>
  SPECFAST_HD int32_t find(Team& team, const WeightsOf& other, uint64_t at) {
    if (has_candidates()) return candidates_.find(team, at);
    return masses.find(team, exchange, logits, other, {}, at);
  }

  // The last id among the kept ones.
  template <class Team>
  SPECFAST_HD int32_t last_kept(Team& team) {
    if (kind != kOrdinaryRow) return argmax;
    int32_t last = 0;
    out_of_line(*this, team,
                [&last](RowDistribution& self, Team& in) { last = self.find_last_kept(in); });
    return last;
  }

  // Of the keys of all threads of the team.
  template <class Team>
  SPECFAST_HD uint64_t largest(Team& team, uint64_t key) {
    uint64_t words[1] = {team.max_key(key, false, team.size()).key};
    return team.largest(exchange.all_gather(team, words), team.parts()).key;
  }

  // Takes over what a copy of this has done out of line.
  SPECFAST_HD void absorb(const RowDistribution& done) {
    exchange.absorb(done.exchange);
    masses.absorb(done.masses);
    if constexpr (kFiltered) {
      candidates_.absorb(done.candidates_);
      has_candidates_ = done.has_candidates_;
      kept.cut_after(done.kept.last_value(), done.kept.last_id());
    }
    if constexpr (kRestorable) {
      logits.absorb(done.logits);
      is_here_ = done.is_here_;
    }
  }

  // Before a pass over the row; a restored row is not there yet.
  template <class Team>
  SPECFAST_HD void bring_row(Team& team) {
    if constexpr (kRestorable) {
      if (!is_here_) logits.bring(team);
      is_here_ = true;
    }
  }

 private:
  SPECFAST_HD bool has_candidates() const { return kFiltered && has_candidates_; }

  template <class Team>
  SPECFAST_HD int32_t find_last_kept(Team& team) {
    if (has_candidates()) return candidates_.last_id(team);
    bring_row(team);
    int32_t last = 0;
    logits.for_each_group(team, [&](int32_t id, const float (&values)[kGroupIds]) {
      SPECFAST_UNROLL
      for (int i = 0; i < kGroupIds; ++i) {
        if (mass_of(id + i, values[i]) > 0) last = max_of(last, id + i);
      }
    });
    return static_cast<int32_t>(largest(team, static_cast<uint64_t>(last) << 1) >> 1);
  }

  // The first pass: largest value, argmax, NaN, and a value that at least top_k tokens reach.
  template <class Team, class Meanwhile>
  SPECFAST_HD uint32_t read_largest(Team& team, int32_t top_k, Meanwhile meanwhile) {
    KeyFlag best = logits.largest(team);
    uint64_t key = best.key;
    uint32_t bound = 0;
    if (top_k > 0) {
      int32_t share = ceil_div(top_k, team.parts());
      bound = team.lower_bound_of_nth(static_cast<uint32_t>(key >> 32), share);
    }
    KeyFlag of_part = team.max_key(key, best.flag, team.size());
    uint64_t words[kFiltered ? 2 : 1] = {of_part.key | (of_part.flag ? 1u : 0u)};
    if constexpr (kFiltered) words[1] = bound;
    const uint64_t* answers = exchange.all_gather(team, words, meanwhile);
    KeyFlag of_row = team.largest(answers, team.parts());
    for (int part = 0; top_k > 0 && part < team.parts(); ++part) {
      bound = min_of(bound, static_cast<uint32_t>(answers[kMaxParts + part]));
    }
    status = of_row.flag ? kNanLogits : kStatusOk;
    if (of_row.key == 0) {
      kind = kUnusableRow;
      mass = 0;
      argmax = 0;
      if (status == kStatusOk) status = kEmptySupport;
      if constexpr (kEdited) argmax = lowest_allowed(team);
    } else {
      kind = kOrdinaryRow;
      argmax = argmax_id(of_row.key);
      kept.weights.max = argmax_value(of_row.key);
    }
    return bound;
  }

  template <class Team>
  SPECFAST_HD int32_t lowest_allowed(Team& team) {
    int32_t lowest = logits.vocab_size();
    for (int32_t id = team.rank(); id < lowest; id += team.size()) {
      if (logits.edits.allows(id)) lowest = id;
    }
    lowest = team.min(lowest);
    return lowest < logits.vocab_size() ? lowest : 0;
  }

  template <class Team>
  SPECFAST_HD uint64_t kept_mass(Team& team) {
    if (has_candidates()) return candidates_.mass();
    if constexpr (kFiltered) {
      if (!kept.has_cut()) return masses.sum(team, exchange, logits, PlainWeights{kept.weights});
    }
    return masses.sum(team, exchange, logits, kept);
  }
  SPECFAST_HD void set_cut(uint64_t key) { kept.cut_after(argmax_value(key), argmax_id(key)); }

  template <class Team>
  SPECFAST_HD void cut_by_count(Team& team, int32_t count, uint32_t bound) {
    if (bound > 0 && collect_from(team, bound, UINT32_MAX, count)) {
      has_candidates_ = true;
      if (candidates_.count() >= count) cut_after(count - 1);
    } else {
      out_of_line(*this, team,
                  [=](RowDistribution& self, Team& in) { self.narrow(in, false, count, bound); });
    }
  }

  template <class Team>
  SPECFAST_HD void cut_by_mass(Team& team, Fraction top_p) {
    uint64_t target = fraction_above(top_p, kept_mass(team));
    if (has_candidates()) {
      cut_after(candidates_.reach(team, target));
    } else {
      out_of_line(*this, team,
                  [=](RowDistribution& self, Team& in) { self.narrow(in, true, target, 0); });
    }
  }

  // Keeps the candidates up to number `last`.
  SPECFAST_HD void cut_after(int32_t last) {
    set_cut(candidates_.key(last));
    candidates_.truncate(last + 1);
  }

  // Takes out what has less mass than `least`.
  template <class Team>
  SPECFAST_HD void raise_cut(Team& team, uint64_t least) {
    if (has_candidates()) {
      cut_after(candidates_.last_with(team, least));
      return;
    }
    out_of_line(*this, team,
                [=](RowDistribution& self, Team& in) { self.raise_cut_of_row(in, least); });
  }
  template <class Team>
  SPECFAST_HD void raise_cut_of_row(Team& team, uint64_t least) {
    uint64_t lowest = UINT64_MAX;
    logits.for_each_group(team, [&](int32_t id, const float (&values)[kGroupIds]) {
      SPECFAST_UNROLL
      for (int i = 0; i < kGroupIds; ++i) {
        if (mass_of(id + i, values[i]) >= least) {
          lowest = min_of(lowest, argmax_key(values[i], id + i));
        }
      }
    });
    set_cut(~largest(team, ~lowest & ~uint64_t{1}) & ~uint64_t{1});
  }

  // Makes candidates of the kept tokens with low <= value_order < high.
  template <class Team>
  SPECFAST_HD bool collect_from(Team& team, uint32_t low, uint32_t high, int32_t limit) {
    return candidates_.collect(
        team, exchange, logits, ordered_value(low), limit,
        [&](int32_t id, float value) {
          return value_order(value) < high && mass_of(id, value) > 0;
        },
        [&](float value) { return kept.weights.weight(value); });
  }

  // Sets the cut to the kept token at which the running measure reaches `target`, if it does: by
  // bisection until few enough tokens are left to look at each, or only equal ones. `bound`: where
  // the measure may already suffice, or 0.
  template <class Team>
  SPECFAST_HD void narrow(Team& team, bool by_mass, uint64_t target, uint32_t bound) {
    uint32_t floor =
        value_order(kept.weights.max - 42.0f / kept.weights.scale2);  // nothing below has mass
    uint32_t lowest = max_of(floor, kLowestOrder);
    uint32_t low = max_of(lowest, bound);
    uint32_t high = value_order(kept.weights.max) + 1;
    Extent from_low = extent_from(team, low);
    Extent from_high{0, 0};
    if (from_low.measure(by_mass) < target) {
      if (low == lowest) return;
      high = low;
      from_high = from_low;
      low = lowest;
      from_low = extent_from(team, low);
      if (from_low.measure(by_mass) < target) return;
    }
    while (from_low.count - from_high.count > RowCandidates::kMost && high - low > 1) {
      uint32_t middle = low + (high - low) / 2;
      Extent extent = extent_from(team, middle);
      if (extent.measure(by_mass) >= target) {
        low = middle;
        from_low = extent;
      } else {
        high = middle;
        from_high = extent;
      }
    }
    uint64_t rest = target - from_high.measure(by_mass);
    if (from_low.count - from_high.count <= RowCandidates::kMost) {
      collect_from(team, low, high, RowCandidates::kMost);
      int32_t last = by_mass ? candidates_.reach(team, rest) : static_cast<int32_t>(rest) - 1;
      has_candidates_ = from_high.count == 0;
      cut_after(last);
      return;
    }
    float value = ordered_value(low);
    uint64_t each = by_mass ? kept.weights.mass(value) : 1;
    TokenWeights is_equal{[&](int32_t id, float other) {
      return value_order(other) == low && kept.keeps(id, other) ? kInverseMassScale
                                                                : 0.0f;  // mass 1
    }};
    masses.sum(team, exchange, logits, is_equal);
    uint64_t before = (rest + each - 1) / each - 1;
    set_cut(argmax_key(value, masses.find(team, exchange, logits, is_equal, {}, before)));
  }

  template <class Team>
  SPECFAST_HD Extent extent_from(Team& team, uint32_t order) {
    int64_t count = 0;
    uint64_t of_thread = 0;
    logits.for_each_group(team, [&](int32_t id, const float (&values)[kGroupIds]) {
      SPECFAST_UNROLL
      for (int i = 0; i < kGroupIds; ++i) {
        if (value_order(values[i]) < order) continue;
        uint64_t mass = mass_of(id + i, values[i]);
        count += mass > 0 ? 1 : 0;
        of_thread += mass;
      }
    });
    uint64_t words[2] = {
        static_cast<uint64_t>(team.sum(count)),
        static_cast<uint64_t>(team.sum(static_cast<int64_t>(of_thread))),
    };
    const uint64_t* answers = exchange.all_gather(team, words);
    return {sum_of_parts(team, answers), sum_of_parts(team, answers + kMaxParts)};
  }

  RowCandidates candidates_;
  bool has_candidates_ = false;
  bool is_restored_ = false;
  bool is_here_ = true;
};

}  // namespace specfast
