#pragma once

#include "core/list_row.h"
#include "core/shard_record.h"
#include "core/target_only_rule.h"

struct CUstream_st;

namespace specfast {

constexpr int kMaxShards = 1024;

// The target's token after every verify row, by the target-only rule, from the records of all
// shards. The records are data: whatever they hold, the outputs are legal.
struct MergeRowStatsParams {
  AcceptParams accept;  // the batch without drafts, width 0; num_nodes where rows are not ragged
  SamplingParams sampling;
  ShardRecord record;
  int32_t num_shards;     // G >= 1
  const uint64_t* stats;  // [G, R, record.words()]
  float threshold_single;
  float threshold_acc;

  int32_t* target_predict;  // [R] -1: the row gives no token
  int32_t* status;          // [R]
};

// One row, for a team whose parts all do the same. The state that TargetOnlyRule asks, as
// SampledState is.
struct MergedRow {
  const MergeRowStatsParams& p;
  int64_t r;
  RequestSampling sampling{};
  ListRow row;
  DraftChildren children{};
  uint64_t* rests =
      nullptr;  // scratch [G] mass of each shard's rest, in units of the row's largest

  SPECFAST_HD MergedRow(const MergeRowStatsParams& params, int64_t index) : p(params), r(index) {}

  template <class Arena>
  SPECFAST_HD void place(Arena& arena) {
    row.place(arena);
    children.place(arena, p.record.max_candidates);
    rests = arena.template scratch<uint64_t>(p.num_shards);
  }

  template <class Team>
  SPECFAST_HD void run(Team& team) {
    team.arrive();
    place(team);
    RowOwner owner = RowOwner::of(team, p.accept, r);
    Drawn out{kNoToken, kStatusOk};
    if (owner.request >= 0) {
      sampling = load_shard_sampling(p.sampling, p.accept, owner.request, p.record);
      out = token_after(team, owner.node);
      out.status |= sampling.status;
      if (sampling.random.prefix_len != p.accept.prefix_lens[owner.request]) {
        out.status |= kBadParam;
      }
    } else {
      team.wait();  // as opening a row does
    }
    if (out.token >= p.accept.vocab_size || out.token < kNoToken) {
      out = {kNoToken, out.status | kBadParam};
    }
    if (team.part() != 0 || team.rank() != 0) return;
    p.target_predict[r] = out.token;
    p.status[r] = out.status;
  }

  // What TargetOnlyRule asks.
  SPECFAST_HD Fraction accept_coin(int32_t node, int32_t lane, int32_t) const {
    return Fraction::coin(sampling.random.words(kAcceptCoin, node, lane).word[0]);
  }
  SPECFAST_HD uint64_t final_target(int32_t node, uint64_t total) const {
    return scaled_draw(sampling.random.bits(kFinalDraw, node, 0), total);
  }
  SPECFAST_HD int32_t child_with(int32_t, int32_t*) const { return -1; }  // the accept finds it

 private:
  SPECFAST_HD const uint64_t* record_of(int shard) const {
    return p.stats + (shard * p.accept.num_rows + r) * p.record.words();
  }
  SPECFAST_HD uint64_t largest_of(int shard) const {
    return record_of(shard)[ShardRecord::kLargest] & ~uint64_t{1};
  }
  // Records that no shard wrote may hold values above the largest.
  SPECFAST_HD float legal(float value) const { return min_of(value, row.weights.max); }

  SPECFAST_HD bool has_candidate() const {
    bool found = false;
    for (int32_t i = 0; i < children.count; ++i) found |= children.tokens[i] != kNoToken;
    return found;
  }

  template <class Team>
  SPECFAST_HD Drawn token_after(Team& team, int32_t node) {
    uint64_t key = 0;
    bool has_nan = false;
    SPECFAST_NO_UNROLL
    for (int shard = team.rank(); shard < p.num_shards; shard += team.size()) {
      key = max_of(key, largest_of(shard));
      has_nan |= (record_of(shard)[ShardRecord::kLargest] & 1) != 0;
    }
    ShardLists lists{record_of(0) + p.record.first_best(), p.accept.num_rows * p.record.words(),
                     p.num_shards, p.record.max_top_k};
    row.open(team, sampling, team.max_key(key, has_nan, team.size()), lists);
    if (row.kind == kUnusableRow) return {kNoToken, row.status};
    if (row.kind == kPointMass) return {row.argmax, row.status};
    list_candidates(team);
    team.sync_part();  // candidates are listed
    children.has_token = has_candidate();
    if (sampling.top_k == 0) add_rests(team);
    TargetOnlyRule rule(p);
    rule.weigh(team, *this);
    team.sync_part();  // masses are written
    int32_t ignored = kStatusOk;
    int32_t child = rule.choose(team, *this, node, &ignored);
    if (child >= 0) return {children.tokens[child], row.status};
    Drawn last = sampling.top_k > 0 ? rule.finish(team, *this, node) : draw_shard(node);
    return {last.token, last.status | row.status};
  }

  // A candidate is known to the shard that has its token, and to no other.
  template <class Team>
  SPECFAST_HD void list_candidates(Team& team) {
    children.count = p.record.max_candidates;
    children.end_status = kStatusOk;
    SPECFAST_NO_UNROLL
    for (int32_t i = team.rank(); i < children.count; i += team.size()) {
      uint64_t key = 0;
      SPECFAST_NO_UNROLL
      for (int shard = 0; shard < p.num_shards; ++shard) {
        key = max_of(key, record_of(shard)[ShardRecord::kFirstKey + i]);
      }
      children.tokens[i] = key == 0 ? kNoToken : argmax_id(key);
      children.values[i] = key == 0 ? -INFINITY : legal(argmax_value(key));
    }
  }

  // Sets the mass of the row: every shard's rest, on the scale of all, and the candidates.
  template <class Team>
  SPECFAST_HD void add_rests(Team& team) {
    uint64_t mine = 0;
    SPECFAST_NO_UNROLL
    for (int shard = team.rank(); shard < p.num_shards; shard += team.size()) {
      uint64_t key = largest_of(shard);
      float weight = key == 0 ? 0.0f : row.weights.weight(argmax_value(key));
      rests[shard] = fraction_of(Fraction::of(weight), record_of(shard)[ShardRecord::kRest]);
      mine += rests[shard];
    }
    SPECFAST_NO_UNROLL
    for (int32_t i = team.rank(); i < children.count; i += team.size()) {
      if (children.tokens[i] != kNoToken) mine += row.weights.mass(children.values[i]);
    }
    row.mass = static_cast<uint64_t>(team.sum(static_cast<int64_t>(mine)));
  }

  // The token that a shard has drawn stands for all of its rest.
  SPECFAST_HD Drawn draw_shard(int32_t node) const {
    uint64_t total = row.mass - children.excluded().mass();
    if (total == 0) return {row.argmax, kZeroResidual};
    uint64_t at = final_target(node, total);
    int shard = 0;
    for (; shard < p.num_shards - 1 && at >= rests[shard]; ++shard) at -= rests[shard];
    return {static_cast<int32_t>(record_of(shard)[ShardRecord::kDrawn]), kStatusOk};
  }
};

void merge_row_stats_cpu(const MergeRowStatsParams& p);
void merge_row_stats_cuda(const MergeRowStatsParams& p, CUstream_st* stream);

}  // namespace specfast
