#pragma once

#include "core/lane_scores.h"
#include "core/request_sampling.h"
#include "core/row_stage.h"
#include "core/selector_sums.h"

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

// Threads that make a score together on a device, where each candidate has as many.
constexpr int kSelectorLanes = 8;

// The walk of one request, by the threads of one part. Rows of the codebooks come in for kAhead
// slots at a time, since which of them a slot needs is known only when it is their turn. kRank:
// fixed, with rows that come into scratch and a candidate for each group of threads; 0: any.
template <class W, int kAhead, int kRank = 0>
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
  bool may_stage;  // whether rows of the codebooks come into scratch first, if that is not fixed

  float* unary = nullptr;      // scratch [M, K]
  float* keys = nullptr;       // scratch [M, R]
  int32_t* ids = nullptr;      // scratch [M, K] -1: no token
  uint64_t* random = nullptr;  // scratch [M]
  float* scores = nullptr;     // scratch [M, K]
  Step* steps = nullptr;       // scratch [M]
  W* before = nullptr;         // scratch [kAhead, K, R] if staged, slot s at s % kAhead
  W* after = nullptr;          // scratch [kAhead, K, R] if staged

  template <class Arena>
  SPECFAST_HD void place(Arena& arena) {
    int32_t all = p.num_slots * p.num_candidates;
    unary = arena.template scratch<float>(all);
    keys = arena.template scratch<float>(p.num_slots * p.rank);
    ids = arena.template scratch<int32_t>(all);
    random = arena.template scratch<uint64_t>(p.num_slots);
    scores = arena.template scratch<float>(all);
    steps = arena.template scratch<Step>(p.num_slots);
    if (!stages()) return;
    before = arena.template scratch<W>(kAhead * p.num_candidates * p.rank);
    after = arena.template scratch<W>(kAhead * p.num_candidates * p.rank);
  }

  template <class Team>
  SPECFAST_HD void run(Team& team) {
    place(team);
    Group<Team> group(team, p);
    // Asked for together, since each is a long way off.
    int64_t anchor = p.anchors[b];
    RequestSampling::Given given = RequestSampling::Given::load(p.sampling, b);
    int32_t prefix_len = p.prefix_lens[b];
    load_keys(team);
    RowStage::end_batch();
    if (anchor < 0) return write_padded(team);
    bool has_first = anchor < p.vocab_size;
    const W* previous = has_first ? row(p.predecessor, static_cast<int32_t>(anchor)) : nullptr;
    auto factors = group.sums.load(has_first ? previous : row(p.predecessor, 0));
    int32_t status = team.any(load(team)) ? kBadToken : kStatusOk;  // a barrier: ids are here
    SPECFAST_NO_UNROLL
    for (int32_t slot = 0; slot < kAhead - 1; ++slot) stage(group, slot);

    RequestSampling sampling = RequestSampling::of(given, p.vocab_size);
    sampling.random.prefix_len = max_of(prefix_len, 0);
    status |= sampling.status | (prefix_len < 0 ? kBadParam : kStatusOk);
    if (!has_first) status |= kBadToken;
    SPECFAST_NO_UNROLL
    for (int32_t i = team.rank(); i < p.num_slots; i += team.size()) {
      random[i] = sampling.random.bits(kDraftDraw, i, 0);
    }
    RowStage::wait_for_all_but<kAhead - 2>();  // for keys and the first slot
    team.sync_part();                          // keys and random numbers are here
    auto products = own_products(group, 0);

    SPECFAST_NO_UNROLL
    for (int32_t slot = 0; slot < p.num_slots; ++slot) {
      score(group, slot, own_candidate(group), previous, factors, products);
      for (int32_t c = group.index + group.count; !Team::kOnDevice && c < p.num_candidates;
           c += group.count) {
        score(group, slot, c, previous, factors,
              group.sums.products(keys + slot * rank(), row_after(slot, c)));
      }
      RowStage::wait_for_all_but<kAhead - 3>();  // for the next slot
      team.sync_part();  // scores and rows are here; rows of the slot before have been read
      Step step = take(team, slot, sampling, &status);
      if (team.rank() == 0) steps[slot] = step;
      bool goes_on = slot + 1 < p.num_slots && step.taken >= 0;
      previous = goes_on ? row_before(slot, step.taken) : nullptr;
      if (goes_on) factors = group.sums.load(previous);
      stage(group, slot + kAhead - 1);
      if (slot + 1 < p.num_slots) products = own_products(group, slot + 1);
    }
    team.sync_part();  // the last step is written
    SPECFAST_NO_UNROLL
    for (int32_t slot = team.subgroup(); slot < p.num_slots; slot += team.subgroups()) {
      write(team, slot, sampling, steps[slot]);
    }
    if (team.rank() == 0) p.status[b] = status;
  }

 private:
  SPECFAST_HD bool stages() const { return kRank > 0 || may_stage; }
  SPECFAST_HD int32_t rank() const { return kRank > 0 ? kRank : p.rank; }

  // Threads that make a score together: each group has a candidate on a device, elsewhere some.
  template <class Team>
  struct Group {
    static constexpr int kLanes = Team::kOnDevice ? kSelectorLanes : 1;

    int32_t index;
    int32_t count;
    SelectorSums<W, kLanes, kRank> sums;

    // There may be more groups than candidates; the sums of others have no terms.
    SPECFAST_HD Group(const Team& team, const WalkSelectorParams& p)
        : index(team.rank() / kLanes),
          count(team.size() / kLanes),
          sums{index < p.num_candidates ? p.rank : 0, team.rank() % kLanes} {}
  };
  template <class Group>
  SPECFAST_HD int32_t own_candidate(const Group& group) const {
    return kRank > 0 ? group.index : min_of(group.index, p.num_candidates - 1);
  }
  template <class Group>
  SPECFAST_HD auto own_products(const Group& group, int32_t slot) const {
    return group.sums.products(keys + slot * rank(), row_after(slot, own_candidate(group)));
  }

  SPECFAST_HD int64_t at(int32_t slot) const {
    return (static_cast<int64_t>(b) * p.num_slots + slot) * p.num_candidates;
  }
  SPECFAST_HD const W* row(const void* codebook, int32_t id) const {
    return static_cast<const W*>(codebook) + static_cast<int64_t>(id) * rank();
  }
  SPECFAST_HD const W* staged(const W* rows, int32_t slot, int32_t candidate) const {
    return rows + (slot % kAhead * p.num_candidates + candidate) * rank();
  }
  SPECFAST_HD const W* row_before(int32_t slot, int32_t candidate) const {
    return stages() ? staged(before, slot, candidate)
                    : row(p.predecessor, ids[slot * p.num_candidates + candidate]);
  }
  SPECFAST_HD const W* row_after(int32_t slot, int32_t candidate) const {
    return stages() ? staged(after, slot, candidate)
                    : row(p.successor, max_of(ids[slot * p.num_candidates + candidate], 0));
  }

  template <class Team>
  SPECFAST_HD void write_padded(Team& team) {
    SPECFAST_NO_UNROLL
    for (int32_t slot = team.rank(); slot < p.num_slots; slot += team.size()) {
      p.tokens[static_cast<int64_t>(b) * p.num_slots + slot] = kNoToken;
    }
    int32_t all = p.num_slots * p.num_candidates;
    SPECFAST_NO_UNROLL
    for (int32_t i = team.rank(); i < all; i += team.size()) p.q[at(0) + i] = 0.0f;
    if (team.rank() == 0) p.status[b] = kStatusOk;
    RowStage::wait_for_all_but<0>();  // a thread may not leave before
  }

  // Asks for the rows of a group's candidates; a batch in any case. A lane has the runs that it
  // will look at itself.
  template <class Group>
  SPECFAST_HD void stage(const Group& group, int32_t slot) const {
    SPECFAST_NO_UNROLL
    for (int32_t c = group.index; stages() && slot < p.num_slots && c < p.num_candidates;
         c += group.count) {
      int32_t token = max_of(ids[slot * p.num_candidates + c], 0);
      int32_t to = (slot % kAhead * p.num_candidates + c) * rank();
      group.sums.for_each_run([&](int32_t k) {
        RowStage::copy(row(p.successor, token) + k, after + to + k, kLaneRun);
        RowStage::copy(row(p.predecessor, token) + k, before + to + k, kLaneRun);
      });
    }
    RowStage::end_batch();
  }

  // What does not wait for a token. Whether an id is none.
  template <class Team>
  SPECFAST_HD bool load(Team& team) {
    int32_t all = p.num_slots * p.num_candidates;
    bool bad = false;
    SPECFAST_NO_UNROLL
    for (int32_t i = team.rank(); i < all; i += team.size()) {
      int64_t id = p.candidates[at(0) + i];
      bool good = id >= 0 && id < p.vocab_size;
      bad |= !good;
      ids[i] = good ? static_cast<int32_t>(id) : kNoToken;
      unary[i] = p.unary[at(0) + i];
    }
    return bad;
  }
  template <class Team>
  SPECFAST_HD void load_keys(const Team& team) const {
    int32_t count = p.num_slots * p.rank;
    const float* from = p.keys + static_cast<int64_t>(b) * count;
    if (reinterpret_cast<uintptr_t>(from) % 16 == 0) {
      constexpr int32_t kPiece = 4;
      SPECFAST_NO_UNROLL
      for (int32_t i = team.rank() * kPiece; i < count; i += team.size() * kPiece) {
        RowStage::copy(from + i, keys + i, kPiece);
      }
    } else {
      SPECFAST_NO_UNROLL
      for (int32_t i = team.rank(); i < count; i += team.size()) keys[i] = from[i];
    }
  }

  template <class Group, class Factors, class Products>
  SPECFAST_HD void score(const Group& group, int32_t slot, int32_t c, const W* previous,
                         const Factors& factors, const Products& products) const {
    int32_t i = slot * p.num_candidates + c;
    float score = unary[i];
    if (previous != nullptr) {
      score +=
          group.sums.sum(factors, products, previous, keys + slot * rank(), row_after(slot, c));
    }
    bool writes = group.sums.lane == 0 && group.index <= c;
    if (writes) scores[i] = ids[i] < 0 ? -INFINITY : score;
  }

  // By every subgroup, each the same.
  template <class Team>
  SPECFAST_HD Step take(Team& team, int32_t slot, const RequestSampling& sampling,
                        int32_t* status) const {
    const float* values = scores + slot * p.num_candidates;
    BestScore best = best_score(team, values, p.num_candidates);
    if (best.has_nan) *status |= kNanLogits;
    if (best.place < 0 && !best.has_nan) *status |= kEmptySupport;
    bool is_point = best.place < 0 || sampling.greedy || best.value == INFINITY;
    if (is_point) return {kUnitMass, best.value, best.place, best.place, true};
    Weights weights{best.value, Weights::scale2_of(sampling.scale)};
    DrawnScore drawn = draw_score(team, values, p.num_candidates, weights, random[slot]);
    return {drawn.total, best.value, best.place, drawn.place, false};
  }

  // By a subgroup.
  template <class Team>
  SPECFAST_HD void write(const Team& team, int32_t slot, const RequestSampling& sampling,
                         const Step& step) const {
    Weights weights{step.largest, Weights::scale2_of(sampling.scale)};
    float inverse = inverse_mass(step.total);
    SPECFAST_NO_UNROLL
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
