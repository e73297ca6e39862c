#pragma once

#include "core/accept_params.h"
#include "core/argmax_key.h"
#include "core/status.h"
#include "core/team.h"

namespace specfast {

// What the target says after one verify row; an invalid row ends the path.
struct Prediction {
  int32_t token;
  bool valid;
  int32_t status;
};

// This thread's share of a row: the best key of its elements, and whether one of them is NaN.
template <class T>
SPECFAST_HD KeyFlag scan_elements(const T* row, int32_t begin, int32_t end, int32_t step) {
  float best = -INFINITY;
  int32_t best_id = 0;
  bool has_nan = false;
  SPECFAST_NO_UNROLL
  for (int32_t i = begin; i < end; i += step) {
    float value = to_float(row[i]);
    has_nan |= value != value;
    if (value > best) {
      best = value;
      best_id = i;
    }
  }
  return {argmax_key(best, best_id), has_nan};
}

}  // namespace specfast

#if defined(__CUDACC__)
#include "core/row_scan.cuh"
#endif

namespace specfast {

// Row source for greedy rules: the argmax of logits. Rows are read only when the walk asks.
template <class T>
struct GreedyLogits {
  const T* logits;
  int64_t stride;
  int32_t vocab_size;
  uint64_t* mailbox = nullptr;  // scratch [2, rows_ahead, kMaxParts]: best key of each part
  int rows_ahead = 0;           // most rows of a read; the stride of the mailbox for every read,
                                // as parts may be one read apart
  int turn = 0;
  bool started = false;

  template <class Arena>
  SPECFAST_HD void place(Arena& arena, const AcceptParams&, int most_rows) {
    rows_ahead = most_rows;
    mailbox = arena.template scratch<uint64_t>(2 * rows_ahead * kMaxParts);
  }

  template <class Team>
  SPECFAST_HD void load(Team&, int64_t, int32_t) {}

  // Reads rows first_row .. first_row + count, count <= kRows. The threads of a part split into
  // kRows groups, one row each, so that several rows cost one pass and one barrier. A barrier for
  // the whole team.
  template <int kRows, class Team>
  SPECFAST_HD void read(Team& team, int64_t first_row, int count) {
    int group_size = team.size() / kRows;
    int group = team.rank() / group_size;
    int member = team.rank() % group_size;
    KeyFlag best{0, false};
    if (group < count) {
      const T* row = logits + (first_row + group) * stride;
      int32_t thread = team.part() * group_size + member;
      int32_t threads = team.parts() * group_size;
      best = scan_row<Team>(row, thread, threads);
    }
    best = team.max_key(best.key, best.flag, group_size);
    if (!started) team.wait();
    started = true;
    turn ^= 1;
    uint64_t* word = mailbox + (turn * rows_ahead + group) * kMaxParts + team.part();
    SPECFAST_NO_UNROLL
    for (int part = member; part < team.parts(); part += group_size) {
      team.post(part, word, best.key | (best.flag ? 1u : 0u), turn);
    }
    team.collect(kRows * team.parts(), turn);
  }

  // The prediction of a row that was number `ahead` of the last read.
  template <int kRows, class Team>
  SPECFAST_HD Prediction prediction(Team& team, int64_t, int ahead) const {
    KeyFlag best = team.largest(mailbox + (turn * rows_ahead + ahead) * kMaxParts, team.parts());
    if (best.key == 0) return {0, false, best.flag ? kNanLogits : kEmptySupport};
    return {argmax_id(best.key), true, best.flag ? kNanLogits : kStatusOk};
  }

 private:
  template <class Team>
  SPECFAST_HD KeyFlag scan_row(const T* row, int32_t thread, int32_t threads) const {
#if defined(__CUDA_ARCH__)
    if constexpr (Team::kOnDevice) return scan_vectors(row, vocab_size, thread, threads);
#endif
    return scan_elements(row, thread, vocab_size, threads);
  }
};

// Row source for predictions made elsewhere.
struct GivenPredictions {
  IdView target_predict;
  int32_t vocab_size;
  int32_t* predictions = nullptr;  // scratch [N]: the window's rows, bad ids as kNoToken
  int64_t base = 0;
  bool started = false;

  template <class Arena>
  SPECFAST_HD void place(Arena& arena, const AcceptParams& p, int) {
    predictions = arena.template scratch<int32_t>(p.num_nodes);
  }
  template <class Team>
  SPECFAST_HD void load(Team& team, int64_t first_row, int32_t count) {
    base = first_row;
    SPECFAST_NO_UNROLL
    for (int i = team.rank(); i < count; i += team.size()) {
      int64_t token = target_predict[base + i];
      bool good = token >= 0 && token < vocab_size;
      predictions[i] = good ? static_cast<int32_t>(token) : kNoToken;
    }
  }

  template <int kRows, class Team>
  SPECFAST_HD void read(Team& team, int64_t, int) {
    if (!started) team.wait();
    started = true;
  }

  template <int kRows, class Team>
  SPECFAST_HD Prediction prediction(Team&, int64_t row, int) const {
    int32_t token = predictions[row - base];
    if (token == kNoToken) return {0, false, kBadToken};
    return {token, true, kStatusOk};
  }
};

}  // namespace specfast
