#pragma once

#include <algorithm>

#include "core/argmax_key.h"
#include "fuzz_batch.h"

namespace specfast::testing {

// What a sampled or greedy row may emit, told from the logits without the library's own bodies.
class RowOracle {
 public:
  RowOracle(const TargetRows& rows, const SamplingParams* sampling, int32_t vocab)
      : rows_(rows), sampling_(sampling), vocab_(vocab) {}

  // Edits change values, so that only the bitmask is known then.
  bool edited() const {
    return sampling_ != nullptr &&
           (sampling_->edit_indptr != nullptr || sampling_->repetition_penalty != nullptr ||
            sampling_->presence_penalty != nullptr || sampling_->frequency_penalty != nullptr);
  }
  bool allows(int64_t row, int32_t id) const {
    if (sampling_ == nullptr || sampling_->token_bitmask == nullptr) return true;
    int32_t word = sampling_->token_bitmask[row * sampling_->token_bitmask_stride + id / 32];
    return (static_cast<uint32_t>(word) >> (id % 32) & 1) != 0;
  }
  // -inf where a token cannot come out.
  float value(int64_t row, int32_t id) const {
    int64_t at = row * rows_.logits_stride + id;
    float value = 0.0f;
    if (rows_.logits_type == FloatType::kFloat32) {
      value = static_cast<const float*>(rows_.logits)[at];
    } else if (rows_.logits_type == FloatType::kBFloat16) {
      value = to_float(static_cast<const BFloat16*>(rows_.logits)[at]);
    } else {
      value = to_float(static_cast<const Float16*>(rows_.logits)[at]);
    }
    return std::isnan(value) || !allows(row, id) ? -INFINITY : value;
  }
  // The lowest id of the largest value, -1 if nothing is above -inf.
  int32_t argmax(int64_t row) const {
    int32_t best = -1;
    float most = -INFINITY;
    for (int32_t id = 0; id < vocab_; ++id) {
      float here = value(row, id);
      if (here > most) most = here, best = id;
    }
    return best;
  }
  int32_t lowest_allowed(int64_t row) const {
    for (int32_t id = 0; id < vocab_; ++id) {
      if (allows(row, id)) return id;
    }
    return 0;
  }

  // What is wrong with the parameters of a request.
  bool bad_params(int b) const {
    auto outside = [&](const float* values, float low, float high) {
      return values != nullptr && !(values[b] >= low && values[b] <= high);
    };
    const SamplingParams& s = *sampling_;
    return outside(s.temperature, 0, FLT_MAX) || (s.top_k != nullptr && s.top_k[b] < -1) ||
           outside(s.top_p, 1e-45f, 1) || outside(s.min_p, 0, 1) ||
           outside(s.repetition_penalty, 1e-45f, FLT_MAX) ||
           outside(s.presence_penalty, -FLT_MAX, FLT_MAX) ||
           outside(s.frequency_penalty, -FLT_MAX, FLT_MAX);
  }
  bool greedy(int b) const {
    return sampling_ == nullptr || bad_params(b) || sampling_->temperature[b] < 1e-5f ||
           (sampling_->top_k != nullptr && sampling_->top_k[b] == 1);
  }

  // Whether request b may emit the token after the row; `last` if the path ends there.
  void check_token(int b, int64_t row, int32_t token, bool last) const {
    CHECK(token >= 0 && token < vocab_);
    CHECK(allows(row, token) || !allows(row, lowest_allowed(row)));
    if (edited()) return;
    int32_t best = argmax(row);
    if (best < 0) {
      CHECK(last);
      CHECK_EQ(token, lowest_allowed(row));
      return;
    }
    if (greedy(b) || value(row, best) == INFINITY) {
      CHECK_EQ(token, best);
      return;
    }
    check_kept(b, row, token);
  }

  // Whether a token of an ordinary row is above -inf and within top-k.
  void check_kept(int b, int64_t row, int32_t token) const {
    float mine = value(row, token);
    CHECK(mine > -INFINITY);
    if (sampling_->top_k == nullptr || sampling_->top_k[b] <= 0) return;
    int before = 0;
    for (int32_t id = 0; id < vocab_; ++id) {
      float other = value(row, id);
      before += other > mine || (other == mine && id < token) ? 1 : 0;
    }
    CHECK(before < sampling_->top_k[b]);
  }

 private:
  const TargetRows& rows_;
  const SamplingParams* sampling_;
  int32_t vocab_;
};

// Fails where the record of a call breaks what a record promises (docs/numerics.md, "Bad data").
class RecordCheck {
 public:
  explicit RecordCheck(const AcceptFuzz& fuzz)
      : f_(fuzz),
        p_(fuzz.p.accept),
        oracle_(fuzz.p.rows, fuzz.rule == Rule::kGreedy ? nullptr : &fuzz.p.sampling,
                p_.vocab_size) {}

  void run() {
    committed_.assign(p_.num_rows, kNoToken);
    for (int b = 0; b < p_.batch_size; ++b) {
      find_window(b);
      check_lengths(b);
      check_steps(b);
      check_finish(b);
      check_status(b);
      check_path(b);
    }
    for (int64_t row = 0; row < p_.num_rows; ++row) {
      if (!overlap_) CHECK_EQ(p_.predict[row], committed_[row]);
      CHECK(p_.predict[row] >= kNoToken && p_.predict[row] < p_.vocab_size);
    }
  }

  // Windows of a malformed qo_indptr may overlap, and then share rows of `predict`.
  bool windows_overlap() const { return overlap_; }

 private:
  void find_window(int b) {
    base_ = static_cast<int64_t>(b) * p_.num_nodes;
    rows_ = p_.num_nodes;
    in_range_ = true;
    if (p_.qo_indptr != nullptr) {
      int64_t begin = p_.qo_indptr[b], end = p_.qo_indptr[b + 1];
      base_ = std::min(std::max<int64_t>(begin, 0), p_.num_rows);
      int64_t stop = std::min(std::max(end, base_), p_.num_rows);
      rows_ = static_cast<int>(stop - base_);
      in_range_ = base_ == begin && stop == end;
    }
    if (base_ < end_of_last_) overlap_ = true;
    end_of_last_ = std::max(end_of_last_, base_ + rows_);
    int most = std::min(rows_, p_.num_nodes);
    int wanted = p_.verify_lens != nullptr ? p_.verify_lens[b] : rows_;
    verified_ = std::min(std::max(wanted, 0), most);
    in_range_ = in_range_ && wanted == verified_;
    int32_t prefix = p_.prefix_lens[b];
    bool good_prefix = prefix >= 0 && prefix <= INT_MAX - p_.width;
    in_range_ = in_range_ && good_prefix;
    prefix_len_ = good_prefix ? prefix : 0;
    commit_ = p_.commit_lens[b];
  }

  void check_lengths(int b) {
    int accepted = p_.accept_lens[b];
    CHECK(accepted >= (verified_ > 0 ? 1 : 0));
    CHECK(accepted <= std::min(verified_, p_.width));
    CHECK_EQ(p_.num_correct_drafts[b], std::max(accepted - 1, 0));
    CHECK(commit_ >= 0 && commit_ <= accepted);
    CHECK_EQ(p_.new_seq_lens[b], prefix_len_ + commit_);
    if (p_.cap_trim_lens == nullptr) return;
    int trimmed = p_.cap_trim_lens[b];
    CHECK(trimmed >= 0 && trimmed <= std::min(rows_, p_.num_nodes) - verified_);
    if (trimmed > 0) CHECK(verified_ > 0 && accepted == verified_);
  }

  int32_t token(int b, int i) const { return p_.out_tokens[b * p_.width + i]; }
  int64_t row(int b, int i) const { return p_.accept_index[b * p_.width + i]; }

  void check_steps(int b) {
    for (int i = 0; i < p_.width; ++i) {
      int at = b * p_.width + i;
      bool valid = i < commit_;
      CHECK_EQ(p_.positions[at], valid ? prefix_len_ + i : -1);
      if (p_.slots) {
        IdView slots{p_.slots.data, p_.slots.is_int64};
        CHECK_EQ(slots[at], valid ? p_.out_cache_loc[base_ + i] : -1);
      }
      if (f_.p.logprobs.logprobs != nullptr) {
        float logprob = f_.p.logprobs.logprobs[at];
        CHECK(valid ? logprob <= 1e-5f : logprob == 0.0f);
      }
      if (!valid) {
        CHECK_EQ(row(b, i), -1);
        CHECK_EQ(token(b, i), kNoToken);
        continue;
      }
      CHECK(row(b, i) >= base_ && row(b, i) < base_ + verified_);
      if (i > 0) CHECK(row(b, i) > row(b, i - 1));
      check_token(b, i);
      committed_[row(b, i)] = token(b, i);
    }
  }

  void check_token(int b, int i) const {
    bool last = i + 1 == p_.accept_lens[b];
    if (f_.p.rows.logits != nullptr) {
      oracle_.check_token(b, row(b, i), token(b, i), last);
      return;
    }
    int64_t given = f_.p.rows.target_predict[row(b, i)];
    bool good = given >= 0 && given < p_.vocab_size;
    CHECK_EQ(token(b, i), good ? static_cast<int32_t>(given) : 0);
    CHECK(good || last);
  }

  // EOS comes before stop ids, both before the limit.
  int32_t finish_of(int b, int32_t token) const {
    const FinishParams& finish = p_.finish;
    bool ignores = finish.ignore_eos != nullptr && finish.ignore_eos[b] != 0;
    const int32_t* eos = finish.eos_token_ids;
    if (!ignores && std::count(eos, eos + finish.num_eos, token) > 0) return kFinishedEos;
    const int32_t* stop = finish.stop_token_ids + (finish.num_stop > 0 ? b * finish.num_stop : 0);
    if (std::count(stop, stop + finish.num_stop, token) > 0) return kFinishedStop;
    return kNotFinished;
  }

  void check_finish(int b) const {
    const FinishParams& finish = p_.finish;
    int reason = p_.finish_reason[b];
    int limit =
        finish.max_tokens_left != nullptr ? std::max(finish.max_tokens_left[b], 0) : INT_MAX;
    int minimum = finish.min_tokens_left != nullptr ? finish.min_tokens_left[b] : 0;
    int expected = kNotFinished;
    for (int i = 0; i < commit_; ++i) {
      int here = i + 1 >= minimum ? finish_of(b, token(b, i)) : kNotFinished;
      if (here != kNotFinished) CHECK_EQ(i + 1, commit_);
      expected = here;
    }
    if (verified_ > 0 && expected == kNotFinished && commit_ == limit) expected = kFinishedLength;
    CHECK_EQ(reason, expected);
    if (reason == kNotFinished) CHECK_EQ(commit_, p_.accept_lens[b]);
    int32_t bonus = commit_ > 0 ? token(b, commit_ - 1) : kNoToken;
    CHECK_EQ(p_.bonus[b], bonus);
    CHECK_EQ(p_.next_anchor[b], reason == kNotFinished ? bonus : kNoToken);
  }

  void check_status(int b) const {
    int status = p_.status[b];
    if (p_.accumulate_status) {
      CHECK((status & kBadPath) != 0);
      status &= ~kBadPath;
    }
    bool sampled = f_.rule != Rule::kGreedy;
    int known = kNanLogits | kEmptySupport | kBadParam | kBadToken | kBadTree;
    if (sampled) known |= kZeroResidual;
    if (f_.rule == Rule::kRejection || f_.rule == Rule::kBlock) known |= kBadQ;
    if (f_.sound) known = kEmptySupport | (sampled ? kZeroResidual : 0);
    CHECK_EQ(status & ~known, 0);
    bool bad_params = sampled && verified_ > 0 && oracle_.bad_params(b);
    if (!in_range_ || bad_params) CHECK((status & kBadParam) != 0);
    if (verified_ == 0) CHECK_EQ(status, in_range_ ? 0 : kBadParam);
  }

  int64_t row_of_node(int b, int node) const {
    const int32_t* index = f_.p.links.retrieve_index;
    if (index == nullptr) return base_ + node;
    int64_t row = index[b * p_.num_nodes + node];
    bool inside = row >= base_ && row < base_ + verified_;
    return inside || node != 0 ? row : base_;
  }

  // Each committed row is that of a child of the one before, and its draft is what was emitted
  // there.
  void check_path(int b) const {
    if (commit_ == 0) return;
    std::vector<int> nodes{0};
    CHECK_EQ(row(b, 0), row_of_node(b, 0));
    for (int i = 1; i < commit_; ++i) {
      std::vector<int> next;
      for (int node : nodes) {
        for (int child : children(b, node)) {
          int64_t draft = p_.draft_tokens[b * p_.draft_tokens_stride + child];
          if (draft == token(b, i - 1) && row_of_node(b, child) == row(b, i)) next.push_back(child);
        }
      }
      CHECK(!next.empty());
      nodes = next;
    }
  }
  std::vector<int> children(int b, int node) const {
    std::vector<int> out;
    int previous = node;
    int child = f_.is_chain() ? node + 1 : f_.p.links.retrieve_next_token[b * p_.num_nodes + node];
    while (child > previous && child < verified_) {
      out.push_back(child);
      if (f_.is_chain()) break;
      previous = child;
      child = f_.p.links.retrieve_next_sibling[b * p_.num_nodes + child];
    }
    return out;
  }

  const AcceptFuzz& f_;
  const AcceptParams& p_;
  RowOracle oracle_;
  int64_t base_ = 0;
  int64_t end_of_last_ = 0;
  int rows_ = 0;
  int verified_ = 0;
  int prefix_len_ = 0;
  int commit_ = 0;
  bool in_range_ = true;
  bool overlap_ = false;
  std::vector<int32_t> committed_;
};

// The same of the draws from rows.
inline void check_drawn_rows(const SampleRowsFuzz& f) {
  const SampleRowsParams& p = f.p;
  RowOracle oracle(p.rows, &p.sampling, p.vocab_size);
  for (int r = 0; r < p.num_rows; ++r) {
    int wanted = p.request_of_row != nullptr ? p.request_of_row[r] : r;
    int b = std::min(std::max(wanted, 0), p.batch_size - 1);
    const RowRecord& record = p.records[r];
    bool bad = b != wanted || p.prefix_lens[b] < 0 || oracle.bad_params(b);
    int known = f.sound ? kEmptySupport : kNanLogits | kEmptySupport | kBadParam;
    CHECK_EQ(p.status[r] & ~known, 0);
    if (bad) CHECK((p.status[r] & kBadParam) != 0);

    CHECK(record.argmax >= 0 && record.argmax < p.vocab_size);
    CHECK(record.kind >= kOrdinaryRow && record.kind <= kUnusableRow);
    uint64_t most = record.kind == kOrdinaryRow ? p.vocab_size * kUnitMass : kUnitMass;
    CHECK(record.mass <= most);
    CHECK(record.kind == kUnusableRow ? record.mass == 0 : record.mass >= kUnitMass);
    if (oracle.greedy(b)) CHECK(record.kind != kOrdinaryRow);
    if (!oracle.edited()) {
      int32_t best = oracle.argmax(r);
      CHECK_EQ(record.kind == kUnusableRow, best < 0);
      CHECK_EQ(record.argmax, best < 0 ? oracle.lowest_allowed(r) : best);
    }

    const int32_t* tokens = p.tokens + static_cast<int64_t>(r) * p.num_draws;
    for (int i = 0; i < p.num_draws; ++i) {
      if (tokens[i] == kNoToken) {
        CHECK(i > 0);
        continue;
      }
      CHECK(i == 0 || tokens[i - 1] != kNoToken);
      CHECK_EQ(std::count(tokens, tokens + i, tokens[i]), 0);
      oracle.check_token(b, r, tokens[i], true);
    }
  }
}

}  // namespace specfast::testing
