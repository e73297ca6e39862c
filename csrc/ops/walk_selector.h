#pragma once

#include "core/argmax_key.h"
#include "core/lane_sums.h"
#include "core/request_sampling.h"
#include "core/row_stage.h"
#include "core/team.h"

struct CUstream_st;

namespace specfast {

// The walk of DFlash-2 over the candidates of each slot: the score of candidate c after token a is
// unary[c] + sum over k of predecessor[a, k] * keys[slot, k] * successor[c, k]. Only the scores
// after tokens that the walk takes are made.
struct WalkSelectorParams {
  int32_t batch_size;      // B
  int32_t num_slots;       // M >= 1
  int32_t num_candidates;  // K in [1, 32]
  int32_t rank;            // R, a multiple of 8
  int32_t vocab_size;      // V

  IdView candidates;           // [B, M, K] tokens, distinct within a slot
  const float* unary;          // [B, M, K]
  const float* keys;           // [B, M, R]
  const void* predecessor;     // [V, R]
  const void* successor;       // [V, R]
  FloatType codebook_type;     // float32 or bfloat16
  IdView anchors;              // [B] token before the first slot; negative: a padded slot
  SamplingParams sampling;     // temperature, seeds, and top_k where it is 1
  const int32_t* prefix_lens;  // [B]

  int32_t* tokens;  // [B, M] -1 where there is nothing to take
  float* q;         // [B, M, K] probability of each candidate after the token before it
  int32_t* status;  // [B]
};

constexpr int kMaxCandidates = 32;
constexpr int kMaxSelectorSlots = 64;

// The sum over k of before[k] * keys[k] * after[k] in the order of lane sums: the first product
// rounded, the second one fused.
template <class W>
struct SelectorTerm {
  const W* before;
  const float* keys;
  const W* after;
  int32_t rank;

  // Terms that lie at multiples of sixteen bytes.
  template <class T>
  struct alignas(16) Run {
    T values[kLaneRun];
  };
  template <class T>
  SPECFAST_HD static Run<T> run_at(const T* first) {
    return *reinterpret_cast<const Run<T>*>(first);
  }

  SPECFAST_HD float running_sum(int number) const {
    float sum = 0.0f;
    for (int32_t first = number * kLaneRun; first < rank; first += kLaneSums * kLaneRun) {
      Run<W> ahead = run_at(before + first);
      Run<float> key = run_at(keys + first);
      Run<W> behind = run_at(after + first);
      SPECFAST_UNROLL
      for (int i = 0; i < kLaneRun; ++i) {
        sum = fmaf(to_float(ahead.values[i]) * key.values[i], to_float(behind.values[i]), sum);
      }
    }
    return sum;
  }

  // By a subgroup.
  template <class Team>
  SPECFAST_HD float sum(const Team& team) const {
    return sum_of_lanes(team, [this](int number) { return running_sum(number); });
  }
};

// The walk of one request, by the threads of one part.
template <class W>
struct SelectorWalk {
  // How a slot ended.
  struct Step {
    uint64_t total;  // mass of all candidates
    float largest;
    int32_t best;   // candidate with the largest score, or -1
    int32_t taken;  // or -1
    bool is_point;  // all of q is at the best
  };

  const WalkSelectorParams& p;
  int32_t b;
  bool stages;  // whether rows of the codebooks come into scratch first

  float* unary = nullptr;      // scratch [M, K]
  float* keys = nullptr;       // scratch [M, R]
  int32_t* ids = nullptr;      // scratch [M, K] -1: no token
  uint64_t* random = nullptr;  // scratch [M]
  float* scores = nullptr;     // scratch [M, K]
  uint64_t* ranks = nullptr;  // scratch [2, kMaxCandidates] of scores, for one slot after the other
  Step* steps = nullptr;      // scratch [M]
  W* first = nullptr;         // scratch [R] of the anchor
  W* before = nullptr;        // scratch [M - 1, K, R] if staged; after the last slot comes none
  W* after = nullptr;         // scratch [M, K, R] if staged

  template <class Arena>
  SPECFAST_HD void place(Arena& arena) {
    int32_t all = p.num_slots * p.num_candidates;
    unary = arena.template scratch<float>(all);
    keys = arena.template scratch<float>(p.num_slots * p.rank);
    ids = arena.template scratch<int32_t>(all);
    random = arena.template scratch<uint64_t>(p.num_slots);
    scores = arena.template scratch<float>(all);
    ranks = arena.template scratch<uint64_t>(2 * kMaxCandidates);
    steps = arena.template scratch<Step>(p.num_slots);
    first = arena.template scratch<W>(p.rank);
    if (!stages) return;
    before = arena.template scratch<W>((all - p.num_candidates) * p.rank);
    after = arena.template scratch<W>(all * p.rank);
  }

  template <class Team>
  SPECFAST_HD void run(Team& team) {
    place(team);
    // Asked for together, since each is a long way off.
    int64_t anchor = p.anchors[b];
    RequestSampling::Given given = RequestSampling::Given::load(p.sampling, b);
    int32_t prefix_len = p.prefix_lens[b];
    int32_t mine = min_of(first_candidate(team), p.num_slots * p.num_candidates - 1);
    IdLoad id_of_mine = p.candidates.fetch(at(0) + mine);
    float unary_of_mine = p.unary[at(0) + mine];
    begin_copies(team);
    if (anchor < 0) return write_padded(team);
    bool has_first = anchor < p.vocab_size;
    if (team.rank() == 0) {
      RowStage::stage(0, row(p.predecessor, static_cast<int32_t>(has_first ? anchor : 0)), first,
                      p.rank);
    }
    load_keys(team);
    bool bad = load(team, p.candidates.value(id_of_mine), unary_of_mine);

    RequestSampling sampling = RequestSampling::of(given, p.vocab_size);
    sampling.random.prefix_len = max_of(prefix_len, 0);
    int32_t status = sampling.status | (prefix_len < 0 ? kBadParam : kStatusOk);
    if (!has_first) status |= kBadToken;
    for (int32_t i = team.rank(); i < p.num_slots; i += team.size()) {
      random[i] = sampling.random.bits(kDraftDraw, i, 0);
    }
    if (team.any(bad)) status |= kBadToken;  // a barrier: all that is not copied is here

    const W* previous = has_first ? first : nullptr;
    for (int32_t slot = 0; slot < p.num_slots; ++slot) {
      RowStage::wait(slot);
      uint64_t* now = ranks + slot % 2 * kMaxCandidates;
      score(team, slot, previous, now);
      team.sync_part();  // the scores are written; the ranks of two slots ago have been read
      Step step = take(team, slot, sampling, now, &status);
      if (team.rank() == 0) steps[slot] = step;
      bool goes_on = slot + 1 < p.num_slots && step.taken >= 0;
      previous = goes_on ? row_before(slot, step.taken) : nullptr;
    }
    team.sync_part();  // the last step is written
    for (int32_t slot = team.subgroup(); slot < p.num_slots; slot += team.subgroups()) {
      write(team, slot, sampling, steps[slot]);
    }
    if (team.rank() == 0) p.status[b] = status;
  }

 private:
  SPECFAST_HD int64_t at(int32_t slot) const {
    return (static_cast<int64_t>(b) * p.num_slots + slot) * p.num_candidates;
  }
  SPECFAST_HD const W* row(const void* codebook, int32_t id) const {
    return static_cast<const W*>(codebook) + static_cast<int64_t>(id) * p.rank;
  }
  // Of a slot that another one comes after.
  SPECFAST_HD const W* row_before(int32_t slot, int32_t candidate) const {
    int32_t i = slot * p.num_candidates + candidate;
    return stages ? before + i * p.rank : row(p.predecessor, ids[i]);
  }
  SPECFAST_HD const W* row_after(int32_t slot, int32_t candidate) const {
    int32_t i = slot * p.num_candidates + candidate;
    return stages ? after + i * p.rank : row(p.successor, ids[i]);
  }

  template <class Team>
  SPECFAST_HD void write_padded(Team& team) {
    for (int32_t slot = team.rank(); slot < p.num_slots; slot += team.size()) {
      p.tokens[static_cast<int64_t>(b) * p.num_slots + slot] = kNoToken;
    }
    int32_t all = p.num_slots * p.num_candidates;
    for (int32_t i = team.rank(); i < all; i += team.size()) p.q[at(0) + i] = 0.0f;
    if (team.rank() == 0) p.status[b] = kStatusOk;
  }

  // All candidates are dealt out so that each subgroup has as many: a copy takes a subgroup as long
  // as it takes one thread.
  template <class Team>
  SPECFAST_HD int32_t first_candidate(const Team& team) const {
    return team.lane() * team.subgroups() + team.subgroup();
  }

  // What does not wait for a token. Whether an id is none.
  template <class Team>
  SPECFAST_HD bool load(Team& team, int64_t id, float unary_of_id) {
    int32_t all = p.num_slots * p.num_candidates;
    bool bad = false;
    for (int32_t i = first_candidate(team); i < all; i += team.size()) {
      if (i >= team.size()) {
        id = p.candidates[at(0) + i];
        unary_of_id = p.unary[at(0) + i];
      }
      bool good = id >= 0 && id < p.vocab_size;
      bad |= !good;
      ids[i] = good ? static_cast<int32_t>(id) : kNoToken;
      unary[i] = unary_of_id;
      if (!stages) continue;
      int32_t slot = i / p.num_candidates;
      int32_t token = max_of(ids[i], 0);
      RowStage::stage(slot, row(p.successor, token), after + i * p.rank, p.rank);
      if (slot + 1 < p.num_slots) {
        RowStage::stage(slot, row(p.predecessor, token), before + i * p.rank, p.rank);
      }
    }
    return bad;
  }

  SPECFAST_HD bool has_aligned_keys() const {
    return reinterpret_cast<uintptr_t>(p.keys) % 16 == 0;
  }
  template <class Team>
  SPECFAST_HD void load_keys(const Team& team) const {
    const float* from = p.keys + static_cast<int64_t>(b) * p.num_slots * p.rank;
    if (has_aligned_keys()) {
      for (int32_t slot = team.rank(); slot < p.num_slots; slot += team.size()) {
        RowStage::stage(slot, from + slot * p.rank, keys + slot * p.rank, p.rank);
      }
    } else {
      for (int32_t i = team.rank(); i < p.num_slots * p.rank; i += team.size()) keys[i] = from[i];
    }
  }

  // Each slot waits for a batch of its own.
  template <class Team>
  SPECFAST_HD void begin_copies(const Team& team) const {
    for (int32_t slot = team.rank(); slot < p.num_slots; slot += team.size()) {
      int32_t rows = slot == 0 ? 1 : 0;
      if (stages) rows += p.num_candidates * (slot + 1 < p.num_slots ? 2 : 1);
      int32_t bytes = rows * p.rank * static_cast<int32_t>(sizeof(W));
      if (has_aligned_keys()) bytes += p.rank * static_cast<int32_t>(sizeof(float));
      RowStage::begin(slot, bytes);
    }
    RowStage::all_begun();
  }

  template <class Team>
  SPECFAST_HD void score(Team& team, int32_t slot, const W* previous, uint64_t* now) {
    for (int32_t c = team.subgroup(); c < p.num_candidates; c += team.subgroups()) {
      int32_t i = slot * p.num_candidates + c;
      float score = unary[i];
      if (ids[i] < 0) {
        score = -INFINITY;
      } else if (previous != nullptr) {
        SelectorTerm<W> term{previous, keys + slot * p.rank, row_after(slot, c), p.rank};
        score = unary[i] + term.sum(team);
      }
      if (team.lane() != 0) continue;
      scores[i] = score;
      now[c] = argmax_key(score, c) | (score != score ? 1u : 0u);
    }
  }

  // By every subgroup, each the same.
  template <class Team>
  SPECFAST_HD Step take(Team& team, int32_t slot, const RequestSampling& sampling,
                        const uint64_t* now, int32_t* status) const {
    KeyFlag key = team.largest(now, p.num_candidates);
    int32_t best = key.key == 0 ? -1 : argmax_id(key.key);
    float largest = key.key == 0 ? -INFINITY : argmax_value(key.key);
    if (key.flag) *status |= kNanLogits;
    if (best < 0 && !key.flag) *status |= kEmptySupport;
    bool is_point = best < 0 || sampling.greedy || largest == INFINITY;
    if (is_point) return {kUnitMass, largest, best, best, true};
    Weights weights{largest, Weights::scale2_of(sampling.scale)};
    const float* values = scores + slot * p.num_candidates;
    uint64_t mine = 0;
    for (int32_t c = team.lane(); c < p.num_candidates; c += team.lanes()) {
      mine += weights.mass(values[c]);
    }
    uint64_t total = team.lane_sum(mine);
    int32_t taken = team.locate(
                            p.num_candidates, [&](int c) { return weights.mass(values[c]); },
                            scaled_draw(random[slot], total))
                        .index;
    return {total, largest, best, taken, false};
  }

  // By a subgroup.
  template <class Team>
  SPECFAST_HD void write(const Team& team, int32_t slot, const RequestSampling& sampling,
                         const Step& step) const {
    Weights weights{step.largest, Weights::scale2_of(sampling.scale)};
    float inverse = inverse_mass(step.total);
    for (int32_t c = team.lane(); c < p.num_candidates; c += team.lanes()) {
      float probability = c == step.best ? 1.0f : 0.0f;
      if (!step.is_point) {
        float weight = weights.weight(scores[slot * p.num_candidates + c]);
        probability = weight >= kInverseMassScale ? weight * inverse : 0.0f;
      }
      p.q[at(slot) + c] = probability;
    }
    if (team.lane() == 0) {
      p.tokens[static_cast<int64_t>(b) * p.num_slots + slot] =
          step.taken < 0 ? kNoToken : ids[slot * p.num_candidates + step.taken];
    }
  }
};

void walk_selector_cpu(const WalkSelectorParams& p);
void walk_selector_cuda(const WalkSelectorParams& p, CUstream_st* stream);

}  // namespace specfast
