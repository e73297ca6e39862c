#pragma once

#include "core/draft_links.h"
#include "core/row_distribution.h"
#include "core/row_form.h"
#include "core/shard_record.h"

struct CUstream_st;

namespace specfast {

// One shard's record of every verify row, of which merge_row_stats makes a decision.
struct RowStatsParams {
  AcceptParams accept;  // the batch, width 0: no path here; vocab_size of all shards together
  TargetRows rows;      // logits [R, >= shard_size]; column 0 is id vocab_offset
  DraftLinks links;     // rows lie in node order
  SamplingParams sampling;
  ShardRecord record;
  int32_t vocab_offset;
  int32_t shard_size;  // ids of this shard, may be 0

  uint64_t* stats;  // [R, record.words()]
};

// One row, for a team.
template <class Form>
struct ShardRow {
  using Element = typename Form::Element;

  const RowStatsParams& p;
  int64_t r;
  RowDistribution<Form> row;
  RowCandidates best;  // what top-k keeps
  RequestLinks<false> links;
  DraftChildren children;
  int32_t* columns = nullptr;  // scratch [max_candidates] kNoToken where the token is not here
  uint64_t* masses = nullptr;  // scratch [max_candidates]

  SPECFAST_HD ShardRow(const RowStatsParams& params, int64_t index, int32_t groups_to_keep)
      : p(params), r(index), row(params.shard_size, groups_to_keep), links(params.links) {}

  template <class Arena>
  SPECFAST_HD void place(Arena& arena) {
    row.place(arena, 0);
    best.place(arena);
    links.place(arena, p.accept);
    children.place(arena, p.accept.num_nodes);
    columns = arena.template scratch<int32_t>(p.record.max_candidates);
    masses = arena.template scratch<uint64_t>(p.record.max_candidates);
  }

  template <class Team>
  SPECFAST_HD void run(Team& team) {
    team.arrive();
    place(team);
    row.logits.divide(team);
    RowOwner owner = RowOwner::of(team, p.accept, r);
    if (owner.request < 0) {
      team.wait();  // as the first exchange of other rows does
      write(team, 0, 0, kNoToken, 0, 0);
      return;
    }
    RequestSampling sampling = load_shard_sampling(p.sampling, p.accept, owner.request, p.record);
    sampling.has_top_p = false;  // filters of masses come after the merge, which knows all of them
    sampling.min_mass = 1;
    links.load(team, p.accept, owner.request);
    if constexpr (Form::kEdited)
      row.logits.edits.load(team, p.sampling, owner.request, p.shard_size);
    team.sync_part();  // links are loaded
    row.begin_open(team, static_cast<const Element*>(p.rows.logits) + r * p.rows.logits_stride,
                   nullptr);
    links.list_children(team, owner.node, owner.window.verified, owner.window.num_nodes, children);
    team.sync_part();  // children are listed
    int32_t count = min_of(children.count, p.record.max_candidates);
    find_candidates(team, count);
    row.finish_open(team, sampling);
    uint64_t flag = (row.status & kNanLogits) != 0 ? 1 : 0;
    RowRecord of_shard = row.record(sampling.scale);
    uint64_t largest =
        row.kind == kUnusableRow ? 0 : argmax_key(of_shard.max, row.argmax + p.vocab_offset);
    if (row.kind != kOrdinaryRow) {
      write(team, largest | flag, 0, kNoToken, 0, 0);
      return;
    }
    if (sampling.top_k > 0) {
      best.collect(
          team, row.exchange, row.logits, max_of(of_shard.cut_value, -FLT_MAX),
          RowCandidates::kMost, [&](int32_t id, float value) { return row.mass_of(id, value) > 0; },
          [](float) { return 0.0f; });
      write(team, largest | flag, 0, kNoToken, count, best.count());
      return;
    }
    SPECFAST_NO_UNROLL
    for (int32_t i = team.rank(); i < count; i += team.size()) {
      masses[i] = columns[i] == kNoToken ? 0 : row.mass_of(columns[i], children.values[i]);
    }
    team.sync_part();  // masses are written
    Exclusions candidates{columns, masses, count};
    uint64_t rest = row.mass - candidates.mass();
    int32_t drawn = kNoToken;
    if (rest > 0) {
      auto target = [&](uint64_t total) {
        return scaled_draw(sampling.random.bits(kFinalInnerDraw, owner.node, 0), total);
      };
      drawn = row.draw(team, candidates, target).token + p.vocab_offset;
    }
    write(team, largest | flag, rest, drawn, count, 0);
  }

 private:
  // Which children count, and their values here.
  template <class Team>
  SPECFAST_HD void find_candidates(Team& team, int32_t count) {
    SPECFAST_NO_UNROLL
    for (int32_t i = team.rank(); i < count; i += team.size()) {
      int32_t token = children.tokens[i];
      int32_t column = token - p.vocab_offset;
      bool here = token != kNoToken && column >= 0 && column < p.shard_size;
      for (int32_t j = 0; here && j < i; ++j) here = children.tokens[j] != token;
      columns[i] = here ? column : kNoToken;
      children.values[i] = here ? row.logits.value(column) : -INFINITY;
    }
  }

  template <class Team>
  SPECFAST_HD void write(Team& team, uint64_t largest, uint64_t rest, int32_t drawn,
                         int32_t num_candidates, int32_t num_best) {
    if (team.part() != 0) return;
    uint64_t* out = p.stats + r * p.record.words();
    uint64_t offset = static_cast<uint64_t>(p.vocab_offset) << 1;  // between keys of one token
    SPECFAST_NO_UNROLL
    for (int32_t word = team.rank(); word < p.record.words(); word += team.size()) {
      int32_t candidate = word - ShardRecord::kFirstKey;
      int32_t place = word - p.record.first_best();
      uint64_t value = 0;
      if (word == ShardRecord::kLargest) {
        value = largest;
      } else if (word == ShardRecord::kRest) {
        value = rest;
      } else if (word == ShardRecord::kDrawn) {
        value = static_cast<uint64_t>(static_cast<int64_t>(drawn));
      } else if (place < 0) {
        if (candidate < num_candidates && columns[candidate] != kNoToken) {
          value = argmax_key(children.values[candidate], columns[candidate] + p.vocab_offset);
        }
      } else if (place < num_best) {
        value = best.key(place) - offset;
      }
      out[word] = value;
    }
  }
};

void row_stats_cpu(const RowStatsParams& p);
void row_stats_cuda(const RowStatsParams& p, CUstream_st* stream);

}  // namespace specfast
