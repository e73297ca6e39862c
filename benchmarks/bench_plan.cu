// What a round plans on the device: lengths of confidence logits under half of the drafts as
// budget, and the window of such lengths, padded to what all drafts would take.

#include "ops/build_verify_window.h"
#include "ops/schedule_verify_lens.h"
#include "random.h"
#include "set_array.cuh"
#include "workload.h"

namespace specfast::bench {
namespace {

constexpr int kSets = 64;

// Variant "logits" compares what fp32 logits are, "ties" those that a bf16 head gives.
class ScheduleVerifyLens : public Workload {
 public:
  explicit ScheduleVerifyLens(const Point& point)
      : batch_(point.batch),
        drafts_(point.nodes - 1),
        confidence_(kSets, batch_ * drafts_),
        temperatures_(1, drafts_),
        max_lens_(kSets, batch_),
        budget_(kSets, 1),
        verify_lens_(kSets, batch_),
        survival_(kSets, batch_ * drafts_),
        status_(kSets, batch_) {
    bool ties = point.variant.rfind("ties", 0) == 0;
    for (int draft = 0; draft < drafts_; ++draft) temperatures_.host(0)[draft] = 1.1f;
    for (int set = 0; set < kSets; ++set) {
      Random random(set);
      for (int i = 0; i < batch_ * drafts_; ++i) {
        float logit = 8 * random.uniform() - 2;
        confidence_.host(set)[i] = ties ? static_cast<int>(logit * 4) / 4.0f : logit;
      }
      for (int b = 0; b < batch_; ++b) max_lens_.host(set)[b] = point.nodes;
      *budget_.host(set) = batch_ * drafts_ / 2;
    }
    confidence_.upload();
    temperatures_.upload();
    max_lens_.upload();
    budget_.upload();
  }

  int sets() const override { return kSets; }
  void launch(int set, CUstream_st* stream) override {
    schedule_verify_lens_cuda(params(Side::kDevice, set), stream);
  }
  void check(int set) override {
    schedule_verify_lens_cpu(params(Side::kHost, set));
    verify_lens_.expect_equal(set, "verify_lens");
    survival_.expect_equal(set, "survival");
    status_.expect_equal(set, "status");
  }
  Traffic traffic() override {
    return {confidence_.bytes() + survival_.bytes() + 3 * status_.bytes(), 0, 0};
  }

 private:
  ScheduleVerifyLensParams params(Side side, int set) {
    ScheduleVerifyLensParams p{};
    p.batch_size = batch_;
    p.num_drafts = drafts_;
    p.confidence = confidence_.on(side, set);
    p.confidence_stride = drafts_;
    p.form = ConfidenceForm::kLogits;
    p.temperatures = temperatures_.on(side, 0);
    p.max_lens = max_lens_.on(side, set);
    p.budget_on_device = budget_.on(side, set);
    p.epsilon = 1e-6f;
    p.verify_lens = verify_lens_.on(side, set);
    p.survival = survival_.on(side, set);
    p.status = status_.on(side, set);
    return p;
  }

  int batch_;
  int drafts_;
  SetArray<float> confidence_, temperatures_;
  SetArray<int32_t> max_lens_, budget_, verify_lens_;
  SetArray<float> survival_;
  SetArray<int32_t> status_;
};

class BuildVerifyWindow : public Workload {
 public:
  explicit BuildVerifyWindow(const Point& point)
      : batch_(point.batch),
        nodes_(point.nodes),
        rows_(point.batch * point.nodes),
        drafts_(kSets, rows_),
        pages_(1, batch_ * kPages),
        prefix_lens_(kSets, batch_),
        verify_lens_(kSets, batch_),
        table_rows_(kSets, batch_),
        window_lens_(kSets, batch_),
        indptr_(kSets, batch_ + 1),
        positions_(kSets, rows_),
        slots_(kSets, rows_),
        window_index_(kSets, rows_),
        status_(kSets, batch_),
        input_ids_(kSets, rows_) {
    for (int i = 0; i < batch_ * kPages; ++i) pages_.host(0)[i] = i;
    for (int set = 0; set < kSets; ++set) {
      Random random(set);
      for (int i = 0; i < rows_; ++i) drafts_.host(set)[i] = random.below(151936);
      for (int b = 0; b < batch_; ++b) {
        prefix_lens_.host(set)[b] = random.below(kPages * kPageSize - nodes_);
        verify_lens_.host(set)[b] = 1 + random.below(nodes_);
        table_rows_.host(set)[b] = batch_ - 1 - b;
      }
    }
    drafts_.upload();
    pages_.upload();
    prefix_lens_.upload();
    verify_lens_.upload();
    table_rows_.upload();
  }

  int sets() const override { return kSets; }
  void launch(int set, CUstream_st* stream) override {
    build_verify_window_cuda(params(Side::kDevice, set), stream);
  }
  void check(int set) override {
    build_verify_window_cpu(params(Side::kHost, set));
    window_lens_.expect_equal(set, "verify_lens");
    indptr_.expect_equal(set, "qo_indptr");
    input_ids_.expect_equal(set, "input_ids");
    positions_.expect_equal(set, "positions");
    slots_.expect_equal(set, "out_cache_loc");
    window_index_.expect_equal(set, "window_index");
    status_.expect_equal(set, "status");
  }
  Traffic traffic() override {
    double read = 4 * status_.bytes() + drafts_.bytes() / 2;
    return {read + 3 * status_.bytes() + input_ids_.bytes() + 3 * positions_.bytes(), 0, 0};
  }

 private:
  static constexpr int kPages = 512;
  static constexpr int kPageSize = 16;

  BuildVerifyWindowParams params(Side side, int set) {
    BuildVerifyWindowParams p{};
    p.batch_size = batch_;
    p.num_nodes = nodes_;
    p.num_rows = rows_;
    p.vocab_size = 151936;
    p.context_len = kPages * kPageSize;
    p.draft_tokens = {drafts_.on(side, set), true};
    p.draft_tokens_stride = nodes_;
    p.prefix_lens = prefix_lens_.on(side, set);
    p.verify_lens = verify_lens_.on(side, set);
    p.page_table = {pages_.on(side, 0), false};
    p.page_table_stride = kPages;
    p.num_table_rows = batch_;
    p.page_size = kPageSize;
    p.page_table_rows = table_rows_.on(side, set);
    p.padding_slot = -1;
    p.window_lens = window_lens_.on(side, set);
    p.qo_indptr = indptr_.on(side, set);
    p.input_ids = {input_ids_.on(side, set), true};
    p.positions = positions_.on(side, set);
    p.out_cache_loc = {slots_.on(side, set), false};
    p.window_index = window_index_.on(side, set);
    p.status = status_.on(side, set);
    return p;
  }

  int batch_;
  int nodes_;
  int rows_;
  SetArray<int64_t> drafts_;
  SetArray<int32_t> pages_, prefix_lens_, verify_lens_, table_rows_;
  SetArray<int32_t> window_lens_, indptr_, positions_, slots_, window_index_, status_;
  SetArray<int64_t> input_ids_;
};

std::vector<Point> points(const char* variant) {
  std::vector<Point> points;
  for (int batch : {1, 8, 64, 256, 1024}) {
    points.push_back({variant, batch, 8, 0, "", batch == 256 ? 4.0 : 0.0});
  }
  return points;
}

Registrar logits(benchmark<ScheduleVerifyLens>("schedule_verify_lens", points("logits")));
Registrar ties(benchmark<ScheduleVerifyLens>("schedule_verify_lens", points("ties, logits")));
Registrar window(benchmark<BuildVerifyWindow>("build_verify_window", points("pages of 16 slots")));

}  // namespace
}  // namespace specfast::bench
