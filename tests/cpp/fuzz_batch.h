#pragma once

#include <algorithm>

#include "core/mass.h"
#include "fuzz_sampling.h"
#include "ops/accept_block.h"
#include "ops/accept_chain.h"
#include "ops/accept_rejection.h"
#include "ops/accept_target_only.h"
#include "ops/accept_tree.h"
#include "ops/sample_rows.h"

namespace specfast::testing {

enum class Rule { kGreedy, kTargetOnly, kRejection, kBlock };

// A random accept call under any rule; greedy ones take what they know of it.
struct AcceptFuzz {
  SampledAcceptParams p{};
  Rule rule;
  bool sound;

  bool is_chain() const { return p.links.retrieve_next_token == nullptr; }
};

class AcceptFuzzBuilder {
 public:
  AcceptFuzzBuilder(Dice& dice_, FuzzMemory& memory_, Rule rule, int batch_size, int percent_large)
      : dice(dice_), memory(memory_), fuzz(dice_, memory_, dice_.chance(40)) {
    a.vocab_size = fuzz.vocab_size(percent_large);
    out.rule = rule;
    out.sound = fuzz.sound;
    a.batch_size = B = batch_size;
    a.num_nodes = N = dice.chance(80) ? dice.pick(1, 6) : dice.pick(7, 16);
  }

  AcceptFuzz build() {
    add_rows();
    a.draft_tokens_stride = N + dice.pick(0, 2);
    a.draft_tokens = fuzz.ids(B * a.draft_tokens_stride, 0, min_of(a.vocab_size, 300) - 1);
    a.prefix_lens = fuzz.filled(B, [&](int64_t) {
      if (out.sound || dice.chance(80)) return dice.pick(0, 100);
      return dice.choose({-1, INT_MIN, INT_MAX, INT_MAX - N, INT_MAX - 1});
    });
    if (dice.chance(60)) a.out_cache_loc = fuzz.ids(a.num_rows, 0, 1000);
    add_finish();
    bool chain = out.rule == Rule::kBlock || dice.chance(40);
    a.width = chain ? N : dice.pick(1, N);
    if (!chain) add_links();
    if (out.rule != Rule::kGreedy) {
      out.p.sampling = fuzz.sampling(B, a.num_rows, a.vocab_size);
      if (dice.chance(50)) out.p.sampling.accept_coins = fuzz.coins(B * N);
      if (dice.chance(50)) out.p.sampling.final_coins = fuzz.coins(B);
      if (dice.chance(30)) out.p.stored_rows = memory.output<StoredRow>(B * N);
      if (dice.chance(50)) {
        out.p.outcomes = memory.input<RowOutcome>(B * N);
        std::fill_n(out.p.outcomes, B * N, RowOutcome{});
      }
    }
    auto threshold = [&] {
      bool lossy = out.rule == Rule::kTargetOnly && dice.chance(40);
      return lossy ? dice.choose({0.0f, 1e-45f, 0.3f, 0.99f, 1.0f}) : 1.0f;
    };
    out.p.threshold_single = threshold();
    out.p.threshold_acc = threshold();
    if (out.rule == Rule::kRejection || out.rule == Rule::kBlock) add_proposal();
    bool trims = chain && a.qo_indptr == nullptr && out.rule != Rule::kBlock && dice.chance(50);
    add_record(trims);
    return out;
  }

 private:
  // Strided or ragged, of logits or, for greedy rules, of predictions.
  void add_rows() {
    a.num_rows = B * N;
    if (dice.chance(40)) {
      int32_t row = dice.pick(0, 2);
      int32_t* indptr = memory.input<int32_t>(B + 1);
      for (int b = 0; b <= B; ++b) {
        indptr[b] = row;
        row += dice.pick(0, out.sound ? N : N + 1);
      }
      a.num_rows = indptr[B] + dice.pick(0, 2);
      for (int b = 0; b <= B; ++b) indptr[b] = fuzz.wild_int(indptr[b], indptr[b]);
      a.qo_indptr = indptr;
    }
    if (dice.chance(60)) {
      a.verify_lens = fuzz.filled(B, [&](int64_t b) {
        int most = N;
        if (out.sound && a.qo_indptr != nullptr) {
          most = min_of(N, a.qo_indptr[b + 1] - a.qo_indptr[b]);
        }
        return fuzz.wild_int(0, most);
      });
    }
    if (out.rule == Rule::kGreedy && dice.chance(30)) {
      out.p.rows.target_predict = fuzz.ids(a.num_rows, 0, a.vocab_size - 1);
      if (dice.chance(20)) a.vocab_size = INT_MAX;
    } else {
      out.p.rows = fuzz.logits(a.num_rows, a.vocab_size);
    }
  }

  void add_finish() {
    FinishParams& f = a.finish;
    int largest = min_of(a.vocab_size, 300) - 1;
    if (dice.chance(50)) {
      f.num_eos = dice.pick(0, 3);
      f.eos_token_ids = fuzz.filled(f.num_eos, [&](int64_t) { return dice.pick(-1, largest); });
    }
    if (dice.chance(40)) {
      f.num_stop = dice.pick(0, 3);
      f.stop_token_ids =
          fuzz.filled(B * f.num_stop, [&](int64_t) { return dice.pick(-1, largest); });
    }
    auto counts = [&](int percent) -> int32_t* {
      if (!dice.chance(percent)) return nullptr;
      return fuzz.filled(B, [&](int64_t) { return fuzz.wild_int(0, N + 2); });
    };
    f.max_tokens_left = counts(50);
    f.min_tokens_left = counts(40);
    if (dice.chance(40)) {
      f.ignore_eos = fuzz.filled(B, [&](int64_t) { return static_cast<uint8_t>(dice.pick(0, 1)); });
    }
  }

  void add_links() {
    int32_t* next_token = fuzz.filled(B * N, [](int64_t) { return -1; });
    int32_t* next_sibling = fuzz.filled(B * N, [](int64_t) { return -1; });
    for (int b = 0; b < B; ++b) {
      std::vector<int> last_child(N, -1);
      for (int node = 1; node < N; ++node) {
        int parent = dice.pick(max_of(0, node - 4), node - 1);
        int previous = last_child[parent];
        (previous < 0 ? next_token[b * N + parent] : next_sibling[b * N + previous]) = node;
        last_child[parent] = node;
      }
    }
    for (int i = 0; !out.sound && i < B * N; ++i) {
      if (dice.chance(10)) next_token[i] = fuzz.wild_int(-1, N);
      if (dice.chance(10)) next_sibling[i] = fuzz.wild_int(-1, N);
    }
    out.p.links = {next_token, next_sibling, nullptr};
    if (!dice.chance(30)) return;
    out.p.links.retrieve_index = fuzz.filled(B * N, [&](int64_t i) {
      int64_t base = a.qo_indptr == nullptr ? i / N * N : a.qo_indptr[i / N];
      int row = static_cast<int>(clamp_to<int64_t>(base, 0, a.num_rows) + i % N);
      return fuzz.wild_int(row, row);
    });
  }

  // q in one of its forms; of records such that belong to their logits, and garbage.
  void add_proposal() {
    ProposalParams& q = out.p.proposal;
    q.rows_per_request = N - dice.pick(0, 1);
    q.num_rows = B * q.rows_per_request;
    if (q.rows_per_request == 0 || dice.chance(40)) {
      q.num_rows = dice.pick(1, 5);
      q.row_of_node = fuzz.filled(B * N, [&](int64_t) { return fuzz.wild_int(0, q.num_rows - 1); });
    }
    int form = dice.pick(0, 3);
    q.vocab_size = a.vocab_size;
    if (form < 3 && dice.chance(25)) {
      q.vocab_size = dice.pick(1, a.vocab_size);
      int step = a.vocab_size / q.vocab_size;
      q.d2t = fuzz.filled(q.vocab_size, [&](int64_t i) -> int64_t {
        if (out.sound || dice.chance(90)) return i * (step - 1);
        return dice.choose<int64_t>({-1, 1, INT64_MIN, INT64_MAX, INT64_MAX - 7, int64_t{1} << 31});
      });
    }
    if (form < 2) {
      add_q_logits(q);
    } else if (form == 2) {
      q.probs_stride = q.vocab_size + dice.pick(0, 3);
      float scale = dice.choose({0.05f, 0.4f, 1.0f});
      q.probs =
          fuzz.filled(q.num_rows * q.probs_stride, [&](int64_t) { return probability(scale); });
    } else {
      q.num_sparse = dice.pick(1, min_of(a.vocab_size, 5));
      q.sparse_ids = fuzz.ids(int64_t{q.num_rows} * q.num_sparse, 0, a.vocab_size - 1);
      q.sparse_values = fuzz.filled(int64_t{q.num_rows} * q.num_sparse,
                                    [&](int64_t) { return probability(0.6f); });
    }
  }

  float probability(float scale) {
    if (dice.chance(20)) return dice.choose({0.0f, -0.0f, 1.0f, 1.0004f, 1e-45f});
    if (!out.sound && dice.chance(15)) return dice.choose({NAN, INFINITY, -INFINITY, -1.0f, 1.01f});
    return dice.uniform() * scale;
  }

  void add_q_logits(ProposalParams& q) {
    TargetRows rows = fuzz.logits(q.num_rows, q.vocab_size);
    q.logits = rows.logits;
    q.logits_type = rows.logits_type;
    q.logits_stride = rows.logits_stride;
    RowRecord* records = memory.input<RowRecord>(q.num_rows);
    q.records = records;
    if (!out.sound && dice.chance(40)) {
      for (int i = 0; i < q.num_rows; ++i) records[i] = garbage_record(q.vocab_size);
      return;
    }
    SampleRowsParams drawn{};
    drawn.num_rows = drawn.batch_size = q.num_rows;
    drawn.vocab_size = q.vocab_size;
    drawn.rows = rows;
    drawn.sampling = fuzz.sampling(q.num_rows, q.num_rows, q.vocab_size);
    drawn.prefix_lens = fuzz.filled(q.num_rows, [](int64_t) { return 0; });
    drawn.records = records;
    drawn.status = memory.input<int32_t>(q.num_rows);
    sample_rows_cpu(drawn);
  }

  RowRecord garbage_record(int vocab) {
    auto value = [&] {
      return dice.choose({0.0f, 1.0f, -1.0f, 1e-45f, FLT_MAX, -FLT_MAX, NAN, INFINITY, -INFINITY});
    };
    auto id = [&] { return dice.choose({0, -1, vocab - 1, vocab, INT_MAX, INT_MIN}); };
    uint64_t mass = dice.chance(50) ? dice.bits() >> dice.pick(0, 63) : uint64_t{0};
    return {value(), value(), value(), id(), mass, id(), dice.choose({0, 1, 2, 3, -1, INT_MAX})};
  }

  void add_record(bool trims) {
    auto per_request = [&] { return memory.output<int32_t>(B); };
    auto per_step = [&] { return memory.output<int32_t>(B * a.width); };
    a.predict = memory.output<int32_t>(a.num_rows);
    a.accept_index = per_step();
    a.num_correct_drafts = per_request();
    a.accept_lens = per_request();
    a.commit_lens = per_request();
    a.new_seq_lens = per_request();
    a.out_tokens = per_step();
    a.bonus = per_request();
    a.next_anchor = per_request();
    a.positions = per_step();
    a.finish_reason = per_request();
    a.status = per_request();
    if (trims) a.cap_trim_lens = per_request();
    if (a.out_cache_loc) {
      bool wide = a.out_cache_loc.is_int64;
      a.slots = {wide ? static_cast<void*>(memory.output<int64_t>(B * a.width)) : per_step(), wide};
    }
    a.accumulate_status = dice.chance(30);
    for (int b = 0; a.accumulate_status && b < B; ++b) a.status[b] = kBadPath;
    if (out.rule != Rule::kGreedy && dice.chance(40)) {
      out.p.logprobs = {memory.output<float>(B * a.width), dice.chance(50)};
    }
  }

  Dice& dice;
  FuzzMemory& memory;
  SamplingFuzz fuzz;
  AcceptFuzz out{};
  AcceptParams& a = out.p.accept;
  int B = 0;
  int N = 0;
};

struct SampleRowsFuzz {
  SampleRowsParams p{};
  bool sound;
};

inline SampleRowsFuzz random_sample_rows(Dice& dice, FuzzMemory& memory, int num_rows,
                                         int percent_large) {
  SamplingFuzz fuzz(dice, memory, dice.chance(40));
  SampleRowsFuzz out{};
  SampleRowsParams& p = out.p;
  out.sound = fuzz.sound;
  p.num_rows = num_rows;
  p.batch_size = num_rows;
  if (num_rows > 0 && dice.chance(50)) {
    p.batch_size = dice.pick(1, 3);
    p.request_of_row =
        fuzz.filled(num_rows, [&](int64_t) { return fuzz.wild_int(0, p.batch_size - 1); });
  }
  p.vocab_size = fuzz.vocab_size(percent_large);
  p.rows = fuzz.logits(num_rows, p.vocab_size);
  p.sampling = fuzz.sampling(p.batch_size, num_rows, p.vocab_size);
  if (dice.chance(40)) p.sampling.final_coins = fuzz.coins(p.batch_size);
  p.prefix_lens = fuzz.filled(p.batch_size, [&](int64_t) { return fuzz.wild_int(0, 100); });
  p.node = dice.pick(0, 5);
  if (dice.chance(50)) {
    p.slot_of_row = fuzz.filled(num_rows, [&](int64_t) { return fuzz.wild_int(0, 9); });
  }
  p.purpose = dice.choose({kDraftDraw, kFinalDraw});
  p.num_draws = dice.pick(0, 5);
  p.tokens = memory.output<int32_t>(int64_t{num_rows} * p.num_draws);
  p.records = memory.output<RowRecord>(num_rows);
  p.status = memory.output<int32_t>(num_rows);
  return out;
}

}  // namespace specfast::testing
