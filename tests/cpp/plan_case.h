#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "ops/build_verify_window.h"
#include "ops/schedule_verify_lens.h"

namespace specfast::testing {

// The storage of one call of each planning op, sound or not. Confidences are coarse: they tie.
class PlanCase {
 public:
  PlanCase(int batch_size, int num_drafts, unsigned seed, bool unsound)
      : B(batch_size), gamma(num_drafts), N(num_drafts + 1), unsound_(unsound) {
    std::mt19937 rng(seed);
    auto pick = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(rng);
    };
    int spread = unsound ? 2 : 0;
    num_pages_ = ceil_div(kContextLen, kPageSize);
    for (int b = 0; b < B; ++b) {
      for (int draft = 0; draft < gamma; ++draft) {
        float value = static_cast<float>(pick(0, 16)) / 16;
        confidence_.push_back(unsound && pick(0, 4) == 0 ? (pick(0, 1) == 0 ? NAN : 3.0f) : value);
      }
      min_lens_.push_back(pick(1 - spread, N));
      max_lens_.push_back(pick(-spread, N + spread));
      verify_lens_.push_back(pick(-spread, N + spread));
      prefix_lens_.push_back(pick(-spread, kContextLen + spread));
      anchors_.push_back(pick(-spread, 99));
      table_rows_.push_back(pick(-spread, B - 1 + spread));
      for (int node = 0; node < N; ++node) drafts_.push_back(pick(-spread, 99));
      for (int page = 0; page < num_pages_; ++page) {
        pages_.push_back(unsound && pick(0, 5) == 0 ? -1 : pick(0, 1000));
      }
    }
    for (int draft = 0; draft < gamma; ++draft) {
      temperatures_.push_back(unsound && draft == 1 ? 0.0f : 0.5f + static_cast<float>(draft) / 4);
    }
    budget_ = {pick(-spread, B * gamma + 1)};
    num_rows_ = unsound ? pick(0, B * N) : B * N + pick(0, 5);
    lens.assign(2 * B, -77);
    survival.assign(B * gamma, -77.0f);
    rows.assign(4 * num_rows_, -77);
    indptr.assign(B + 1, -77);
    status.assign(2 * B, -77);
  }

  // The parameters over this storage, or over a copy of it elsewhere: place(v) is where the first
  // element of vector v lies.
  template <class Place>
  ScheduleVerifyLensParams schedule(Place place, ConfidenceForm form) {
    ScheduleVerifyLensParams p{};
    p.batch_size = B;
    p.num_drafts = gamma;
    p.confidence = place(confidence_);
    p.confidence_stride = gamma;
    p.form = form;
    p.temperatures = form == ConfidenceForm::kLogits ? place(temperatures_) : nullptr;
    p.min_lens = place(min_lens_);
    p.max_lens = place(max_lens_);
    p.anchors = {place(anchors_), false};
    p.budget_on_device = place(budget_);
    p.epsilon = 0.01f;
    p.verify_lens = place(lens);
    p.survival = place(survival);
    p.status = place(status);
    return p;
  }
  template <class Place>
  BuildVerifyWindowParams window(Place place) {
    BuildVerifyWindowParams p{};
    p.batch_size = B;
    p.num_nodes = N;
    p.num_rows = num_rows_;
    p.vocab_size = 90;
    p.context_len = kContextLen;
    p.draft_tokens = {place(drafts_), false};
    p.draft_tokens_stride = N;
    p.anchors = {place(anchors_), false};
    p.prefix_lens = place(prefix_lens_);
    p.verify_lens = place(verify_lens_);
    p.page_table = {place(pages_), false};
    p.page_table_stride = num_pages_;
    p.num_table_rows = B;
    p.page_size = kPageSize;
    p.page_table_rows = unsound_ ? place(table_rows_) : nullptr;
    p.padding_slot = -1;
    p.window_lens = place(lens) + B;
    p.qo_indptr = place(indptr);
    int32_t* fields = place(rows);
    p.input_ids = {fields, false};
    p.positions = fields + num_rows_;
    p.out_cache_loc = {fields + 2 * num_rows_, false};
    p.window_index = fields + 3 * num_rows_;
    p.status = place(status) + B;
    return p;
  }

  // Every bit that the calls write, in one vector.
  std::vector<int32_t> written() const {
    std::vector<int32_t> all = lens;
    for (const auto* part : {&rows, &indptr, &status}) {
      all.insert(all.end(), part->begin(), part->end());
    }
    for (float value : survival) all.push_back(static_cast<int32_t>(float_bits(value)));
    return all;
  }

  const int B, gamma, N;
  std::vector<int32_t> lens, rows, indptr, status;
  std::vector<float> survival;

 private:
  static constexpr int kContextLen = 40;
  static constexpr int kPageSize = 3;

  bool unsound_;
  int num_pages_, num_rows_;
  std::vector<float> confidence_, temperatures_;
  std::vector<int32_t> min_lens_, max_lens_, budget_, verify_lens_, prefix_lens_, anchors_;
  std::vector<int32_t> table_rows_, drafts_, pages_;
};

constexpr ConfidenceForm kForms[] = {ConfidenceForm::kSurvival, ConfidenceForm::kConfidence,
                                     ConfidenceForm::kLogits};

}  // namespace specfast::testing
