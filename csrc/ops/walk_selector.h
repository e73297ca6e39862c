#pragma once

#include "core/lane_sums.h"
#include "core/request_sampling.h"
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

  SPECFAST_HD float running_sum(int number) const {
    float sum = 0.0f;
    for (int32_t first = number * kLaneRun; first < rank; first += kLaneSums * kLaneRun) {
      SPECFAST_UNROLL
      for (int i = 0; i < kLaneRun; ++i) {
        float factor = to_float(before[first + i]) * keys[first + i];
        sum = fmaf(factor, to_float(after[first + i]), sum);
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
  const WalkSelectorParams& p;
  int32_t b;
  bool stages;  // whether rows of the codebooks come into scratch first

  float* unary = nullptr;      // scratch [M, K]
  float* keys = nullptr;       // scratch [M, R]
  int32_t* ids = nullptr;      // scratch [M, K] -1: no token
  uint64_t* random = nullptr;  // scratch [M]
  float* scores = nullptr;     // scratch [2, K], for one slot after the other
  W* first = nullptr;          // scratch [R] of the anchor
  W* before = nullptr;         // scratch [M, K, R] if staged
  W* after = nullptr;          // scratch [M, K, R] if staged

  template <class Arena>
  SPECFAST_HD void place(Arena& arena) {
    int32_t all = p.num_slots * p.num_candidates;
    unary = arena.template scratch<float>(all);
    keys = arena.template scratch<float>(p.num_slots * p.rank);
    ids = arena.template scratch<int32_t>(all);
    random = arena.template scratch<uint64_t>(p.num_slots);
    scores = arena.template scratch<float>(2 * kMaxCandidates);
    first = arena.template scratch<W>(p.rank);
    if (!stages) return;
    before = arena.template scratch<W>(all * p.rank);
    after = arena.template scratch<W>(all * p.rank);
  }

  template <class Team>
  SPECFAST_HD void run(Team& team) {
    place(team);
    int64_t anchor = p.anchors[b];
    if (anchor < 0) return write_padded(team);
    RequestSampling sampling = RequestSampling::load(p.sampling, b, p.vocab_size);
    sampling.random.prefix_len = max_of(p.prefix_lens[b], 0);
    int32_t status = sampling.status | (p.prefix_lens[b] < 0 ? kBadParam : kStatusOk);
    bool has_first = anchor < p.vocab_size;
    if (!has_first) status |= kBadToken;
    status |= load(team, sampling, has_first ? anchor : 0);

    const W* previous = has_first ? first : nullptr;
    for (int32_t slot = 0; slot < p.num_slots; ++slot) {
      float* now = scores + slot % 2 * kMaxCandidates;
      score(team, slot, previous, now);
      team.sync_part();  // the scores are written; those of two slots ago have been read
      int32_t taken = take(team, slot, sampling, now, &status);
      previous = taken < 0 ? nullptr : row_before(slot, taken);
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

  // What does not wait for a token. Whether an id is none, as a status.
  template <class Team>
  SPECFAST_HD int32_t load(Team& team, const RequestSampling& sampling, int64_t anchor) {
    int32_t all = p.num_slots * p.num_candidates;
    bool bad = false;
    for (int32_t i = team.rank(); i < all; i += team.size()) {
      int64_t id = p.candidates[at(0) + i];
      bool good = id >= 0 && id < p.vocab_size;
      bad |= !good;
      ids[i] = good ? static_cast<int32_t>(id) : kNoToken;
      unary[i] = p.unary[at(0) + i];
    }
    const float* from = p.keys + static_cast<int64_t>(b) * p.num_slots * p.rank;
    for (int32_t i = team.rank(); i < p.num_slots * p.rank; i += team.size()) keys[i] = from[i];
    for (int32_t i = team.rank(); i < p.num_slots; i += team.size()) {
      random[i] = sampling.random.bits(kDraftDraw, i, 0);
    }
    int32_t status = team.any(bad) ? kBadToken : kStatusOk;  // a barrier: ids are written
    copy_row(team, row(p.predecessor, static_cast<int32_t>(anchor)), first);
    if (stages) copy_rows(team, all);
    team.sync_part();  // all of it is written
    return status;
  }

  // Row elements in pieces of 16 bytes.
  static constexpr int kPiece = 16 / sizeof(W);
  struct alignas(16) Piece {
    W values[kPiece];
  };
  SPECFAST_HD static const Piece* pieces(const W* row) {
    return reinterpret_cast<const Piece*>(row);
  }

  template <class Team>
  SPECFAST_HD void copy_row(Team& team, const W* from, W* to) {
    for (int32_t i = team.rank(); i < p.rank / kPiece; i += team.size()) {
      reinterpret_cast<Piece*>(to)[i] = pieces(from)[i];
    }
  }
  template <class Team>
  SPECFAST_HD void copy_rows(Team& team, int32_t num_rows) {
    int32_t per_row = p.rank / kPiece;
    SPECFAST_UNROLL_BY_16
    for (int32_t i = team.rank(); i < num_rows * per_row; i += team.size()) {
      int32_t number = i / per_row;
      int32_t id = max_of(ids[number], 0);
      int32_t piece = i - number * per_row;
      reinterpret_cast<Piece*>(after)[i] = pieces(row(p.successor, id))[piece];
      reinterpret_cast<Piece*>(before)[i] = pieces(row(p.predecessor, id))[piece];
    }
  }

  template <class Team>
  SPECFAST_HD void score(Team& team, int32_t slot, const W* previous, float* now) {
    for (int32_t c = team.subgroup(); c < p.num_candidates; c += team.subgroups()) {
      int32_t i = slot * p.num_candidates + c;
      float score = unary[i];
      if (ids[i] < 0) {
        score = -INFINITY;
      } else if (previous != nullptr) {
        SelectorTerm<W> term{previous, keys + slot * p.rank, row_after(slot, c), p.rank};
        score = unary[i] + term.sum(team);
      }
      if (team.lane() == 0) now[c] = score;
    }
  }

  // The candidate that is drawn, or -1; every subgroup finds the same, and one writes.
  template <class Team>
  SPECFAST_HD int32_t take(Team& team, int32_t slot, const RequestSampling& sampling,
                           const float* now, int32_t* status) {
    int32_t best = -1;
    float largest = -INFINITY;
    bool has_nan = false;
    SPECFAST_UNROLL_BY_16
    for (int32_t c = 0; c < p.num_candidates; ++c) {
      float score = now[c];
      has_nan |= score != score;
      if (score > largest) {
        largest = score;
        best = c;
      }
    }
    if (has_nan) *status |= kNanLogits;
    if (best < 0 && !has_nan) *status |= kEmptySupport;
    bool is_point = best < 0 || sampling.greedy || largest == INFINITY;
    int32_t taken = best;
    uint64_t total = kUnitMass;
    Weights weights{largest, Weights::scale2_of(sampling.scale)};
    if (!is_point) {
      uint64_t mine = 0;
      for (int32_t c = team.lane(); c < p.num_candidates; c += team.lanes()) {
        mine += weights.mass(now[c]);
      }
      total = team.lane_sum(mine);
      taken = team.locate(
                      p.num_candidates, [&](int c) { return weights.mass(now[c]); },
                      scaled_draw(random[slot], total))
                  .index;
    }
    if (team.subgroup() != 0) return taken;
    float inverse = inverse_mass(total);
    for (int32_t c = team.lane(); c < p.num_candidates; c += team.lanes()) {
      float probability = c == best ? 1.0f : 0.0f;
      if (!is_point) {
        float weight = weights.weight(now[c]);
        probability = weight >= kInverseMassScale ? weight * inverse : 0.0f;
      }
      p.q[at(slot) + c] = probability;
    }
    if (team.lane() == 0) {
      p.tokens[static_cast<int64_t>(b) * p.num_slots + slot] =
          taken < 0 ? kNoToken : ids[slot * p.num_candidates + taken];
    }
    return taken;
  }
};

void walk_selector_cpu(const WalkSelectorParams& p);
void walk_selector_cuda(const WalkSelectorParams& p, CUstream_st* stream);

}  // namespace specfast
