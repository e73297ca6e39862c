#pragma once

#include "core/accept_params.h"
#include "core/row_distribution.h"
#include "core/row_form.h"

struct CUstream_st;

namespace specfast {

// Draws tokens from rows of logits, without replacement within a row, and records the distribution
// that they were drawn from: q for a later accept, or first tokens after a prefill.
struct SampleRowsParams {
  int32_t num_rows;    // R
  int32_t batch_size;  // B
  int32_t vocab_size;
  TargetRows rows;  // logits
  SamplingParams sampling;
  const int32_t* request_of_row;  // [R], or null: row r is request r
  const int32_t* prefix_lens;     // [B]
  int32_t node;                   // of the random counter: the draft level, 0 for first tokens
  const int32_t* slot_of_row;     // [R] number of the row among those of its request, or null: 0
  int32_t purpose;                // Purpose
  int32_t num_draws;              // K >= 0

  int32_t* tokens;     // [R, K] -1 where a row has fewer tokens
  RowRecord* records;  // [R]
  int32_t* status;     // [R]
};

// One row, for a team.
template <class Form>
struct RowSampler {
  using Element = typename Form::Element;

  const SampleRowsParams& p;
  int64_t r;
  RowDistribution<Form> row;
  int32_t* drawn = nullptr;          // scratch [K]
  uint64_t* drawn_masses = nullptr;  // scratch [K]

  SPECFAST_HD RowSampler(const SampleRowsParams& params, int64_t index, int32_t groups_to_keep)
      : p(params), r(index), row(params.vocab_size, groups_to_keep) {}

  template <class Arena>
  SPECFAST_HD void place(Arena& arena) {
    row.place(arena, 0);
    drawn = arena.template scratch<int32_t>(p.num_draws);
    drawn_masses = arena.template scratch<uint64_t>(p.num_draws);
  }

  template <class Team>
  SPECFAST_HD void run(Team& team) {
    team.arrive();
    place(team);
    row.logits.divide(team);
    int32_t wanted = p.request_of_row != nullptr ? p.request_of_row[r] : static_cast<int32_t>(r);
    int32_t b = clamp_to(wanted, 0, p.batch_size - 1);
    RequestSampling sampling = RequestSampling::load(p.sampling, b, p.vocab_size);
    sampling.random.prefix_len = max_of(p.prefix_lens[b], 0);
    int32_t status = sampling.status;
    if (wanted != b || p.prefix_lens[b] < 0) status |= kBadParam;
    if constexpr (Form::kEdited) {
      row.logits.edits.load(team, p.sampling, b, p.vocab_size);
      team.sync_part();  // edits are marked
    }
    const int32_t* bitmask = p.sampling.token_bitmask;
    if (bitmask != nullptr) bitmask += r * p.sampling.token_bitmask_stride;
    const Element* logits = static_cast<const Element*>(p.rows.logits) + r * p.rows.logits_stride;
    row.begin_open(team, logits, bitmask);
    row.finish_open(team, sampling);
    status |= row.status;
    for (int32_t draw = 0; draw < p.num_draws; ++draw) draw_token(team, sampling, b, draw, &status);
    if (team.part() != 0 || team.rank() != 0) return;
    p.records[r] = row.record(sampling.scale);
    p.status[r] = status;
  }

 private:
  template <class Team>
  SPECFAST_HD void draw_token(Team& team, const RequestSampling& sampling, int32_t b, int32_t draw,
                              int32_t* status) {
    int32_t slot = p.slot_of_row != nullptr ? p.slot_of_row[r] : 0;
    auto target = [&](uint64_t total) {
      if (p.sampling.final_coins == nullptr) {
        Purpose purpose = static_cast<Purpose>(p.purpose);
        // Lanes count modulo 2^32, for slots that are none.
        uint32_t lane = static_cast<uint32_t>(slot) * static_cast<uint32_t>(p.num_draws) +
                        static_cast<uint32_t>(draw);
        uint64_t bits = sampling.random.bits(purpose, p.node, static_cast<int32_t>(lane));
        return scaled_draw(bits, total);
      }
      GivenCoin coin = GivenCoin::of(p.sampling.final_coins[b]);
      *status |= coin.status;
      return fraction_of(coin.value, total);
    };
    int32_t token =
        draw == 0 ? row.draw(team, Exclusions{}, target).token : next_token(team, draw, target);
    if (team.rank() == 0) {
      drawn[draw] = token;
      bool has_mass = token >= 0 && row.kind == kOrdinaryRow;
      drawn_masses[draw] = has_mass ? row.mass_of(token, row.logits.value(token)) : 0;
      if (team.part() == 0) p.tokens[r * p.num_draws + draw] = token;
    }
    team.sync_part();  // written before the next draw excludes it
  }

  template <class Team, class Target>
  SPECFAST_HD int32_t next_token(Team& team, int32_t draw, Target target) {
    if (row.kind != kOrdinaryRow) return kNoToken;
    Exclusions excluded{drawn, drawn_masses, draw};
    TokenWeights rest{[&](int32_t id, float value) {
      return excluded.contain(id) ? 0.0f : row.weight_of(id, value);
    }};
    uint64_t total = row.sum(team, rest);
    return total == 0 ? kNoToken : row.find(team, rest, target(total));
  }
};

void sample_rows_cpu(const SampleRowsParams& p);
void sample_rows_cuda(const SampleRowsParams& p, CUstream_st* stream);

}  // namespace specfast
