// Rows of draft logits, one draw each at T = 1, without edits and filters: every row is read, and
// nothing else counts.

#include "logit_pool.cuh"
#include "ops/sample_rows.h"
#include "random.h"
#include "set_array.cuh"
#include "workload.h"

namespace specfast::bench {
namespace {

// Several times the L2 cache.
int sets_for(int rows) {
  constexpr double kColdBytes = 256e6;
  return max_of(4, static_cast<int>(kColdBytes / (rows * LogitPool::kRowBytes)));
}

class SampleRows : public Workload {
 public:
  explicit SampleRows(const Point& point)
      : rows_(point.batch),
        sets_(sets_for(rows_)),
        temperature_(1, rows_),
        seeds_(1, rows_),
        prefix_lens_(sets_, rows_),
        tokens_(sets_, rows_),
        status_(sets_, rows_),
        records_(sets_, rows_ * kRecordWords) {
    for (int row = 0; row < rows_; ++row) {
      temperature_.host(0)[row] = 1.0f;
      seeds_.host(0)[row] = row * 7919;
    }
    for (int set = 0; set < sets_; ++set) {
      Random random(set);
      for (int row = 0; row < rows_; ++row) {
        prefix_lens_.host(set)[row] = random.below(8192);
        LogitPool::shared().fetch(first_row(set) + row);
      }
    }
    temperature_.upload();
    seeds_.upload();
    prefix_lens_.upload();
  }

  int sets() const override { return sets_; }
  void launch(int set, CUstream_st* stream) override {
    sample_rows_cuda(params(Side::kDevice, set), stream);
  }
  void check(int set) override {
    sample_rows_cpu(params(Side::kHost, set));
    tokens_.expect_equal(set, "tokens");
    records_.expect_equal(set, "records");
    status_.expect_equal(set, "status");
  }
  Traffic traffic() override {
    return {rows_ * LogitPool::kRowBytes + records_.bytes() + 5 * status_.bytes(), 1, 1};
  }

 private:
  static constexpr int kRecordWords = sizeof(RowRecord) / sizeof(int32_t);

  int64_t first_row(int set) const { return LogitPool::window_begin(set, sets_, rows_); }

  SampleRowsParams params(Side side, int set) {
    const LogitPool& pool = LogitPool::shared();
    SampleRowsParams p{};
    p.num_rows = rows_;
    p.batch_size = rows_;
    p.vocab_size = LogitPool::kVocab;
    p.rows.logits = side == Side::kHost ? pool.host(first_row(set)) : pool.device(first_row(set));
    p.rows.logits_type = FloatType::kBFloat16;
    p.rows.logits_stride = LogitPool::kVocab;
    p.sampling.temperature = temperature_.on(side, 0);
    p.sampling.seeds = seeds_.on(side, 0);
    p.prefix_lens = prefix_lens_.on(side, set);
    p.purpose = kDraftDraw;
    p.num_draws = 1;
    p.tokens = tokens_.on(side, set);
    p.records = reinterpret_cast<RowRecord*>(records_.on(side, set));
    p.status = status_.on(side, set);
    return p;
  }

  int rows_;
  int sets_;
  SetArray<float> temperature_;
  SetArray<int64_t> seeds_;
  SetArray<int32_t> prefix_lens_, tokens_, status_, records_;
};

Registrar sample_rows(benchmark<SampleRows>(
    "sample_rows", {{"one draw, T = 1, cold", 8, 1, LogitPool::kVocab, "bf16"},
                    {"one draw, T = 1, cold", 512, 1, LogitPool::kVocab, "bf16"}}));

}  // namespace
}  // namespace specfast::bench
