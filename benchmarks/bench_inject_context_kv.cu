// The context of a block drafter after a round: 5 layers of 8 heads of 128 in bf16, of windows of 8
// rows 4.5 on average. Every set has rows and pages of its own.

#include "ops/inject_context_kv.h"
#include "random.h"
#include "set_array.cuh"
#include "workload.h"

namespace specfast::bench {
namespace {

constexpr int kLayers = 5;
constexpr int kHeads = 8;
constexpr int kHeadDim = 128;
constexpr int kRows = 8;
constexpr int kPageSize = 16;
constexpr int kPositions = 8192;
constexpr int kRowElements = kLayers * 2 * kHeads * kHeadDim;
constexpr double kColdBytes = 256e6;

class InjectContextKv : public Workload {
 public:
  explicit InjectContextKv(const Point& point)
      : batch_(point.batch),
        sets_(max_of(2, static_cast<int>(kColdBytes / (2.0 * batch_ * kRows * kRowElements * 2)))),
        keys_values_(sets_, int64_t{batch_} * kRows * kRowElements),
        weight_(1, kLayers * kHeadDim),
        cos_(1, kPositions * kHeadDim / 2),
        sin_(1, kPositions * kHeadDim / 2),
        commit_lens_(sets_, batch_),
        prefix_lens_(sets_, batch_),
        page_table_(sets_, int64_t{batch_} * kPages),
        pieces_(1, 2 * kLayers),
        status_(sets_, batch_) {
    Random random(5);
    auto value = [&] { return 2 * random.uniform() - 1; };
    for (int buffer = 0; buffer < 2 * kLayers; ++buffer) {
      constexpr int64_t kSlotBytes = kHeads * kHeadDim * sizeof(BFloat16);
      pools_.emplace_back(sets_, batch_ * kPagesInUse * kPageSize * kHeads * kHeadDim);
      pieces_.host(0)[buffer] = {buffer,     0, 16,         0, kPageSize * kSlotBytes,
                                 kSlotBytes, 1, kSlotBytes, 0};
    }
    for (int set = 0; set < sets_; ++set) {
      for (int64_t i = 0; i < keys_values_.count(); ++i) {
        keys_values_.host(set)[i] = rounded_to<BFloat16>(value());
      }
      for (int b = 0; b < batch_; ++b) {
        commit_lens_.host(set)[b] = 1 + random.below(kRows);
        commits_ += commit_lens_.host(set)[b];
        int prefix_len = random.below(kPositions - kRows);
        prefix_lens_.host(set)[b] = prefix_len;
        for (int n = 0; n < kPages; ++n) page_table_.host(set)[b * kPages + n] = -1;
        for (int n = 0; n < kPagesInUse; ++n) {
          int page = min_of(prefix_len / kPageSize + n, kPages - 1);
          page_table_.host(set)[b * kPages + page] = b * kPagesInUse + n;
        }
      }
    }
    for (int i = 0; i < weight_.count(); ++i) weight_.host(0)[i] = value();
    for (int i = 0; i < cos_.count(); ++i) {
      cos_.host(0)[i] = value();
      sin_.host(0)[i] = value();
    }
    keys_values_.upload();
    weight_.upload();
    cos_.upload();
    sin_.upload();
    commit_lens_.upload();
    prefix_lens_.upload();
    page_table_.upload();
    pieces_.upload();
  }

  int sets() const override { return sets_; }
  void launch(int set, CUstream_st* stream) override {
    void* buffers[2 * kLayers];
    inject_context_kv_cuda(params(Side::kDevice, set, buffers), stream);
  }
  void check(int set) override {
    void* buffers[2 * kLayers];
    inject_context_kv_cpu(params(Side::kHost, set, buffers));
    for (auto& pool : pools_) pool.expect_equal(set, "pool");
    status_.expect_equal(set, "status");
  }
  Traffic traffic() override {
    return {2.0 * commits_ / sets_ * kRowElements * sizeof(BFloat16), 0, 0};
  }

 private:
  static constexpr int kPages = kPositions / kPageSize;
  static constexpr int kPagesInUse = 2;

  InjectContextKvParams params(Side side, int set, void** buffers) {
    for (int i = 0; i < 2 * kLayers; ++i) buffers[i] = pools_[i].on(side, set);
    InjectContextKvParams p{};
    p.batch_size = batch_;
    p.max_rows = kRows;
    p.num_layers = kLayers;
    p.num_heads = kHeads;
    p.head_dim = p.rotary_dim = kHeadDim;
    p.type = FloatType::kBFloat16;
    p.has_wide_rows = true;
    p.keys_values = keys_values_.on(side, set);
    p.request_stride = kRows * kRowElements;
    p.row_stride = kRowElements;
    p.layer_stride = 2 * kHeads * kHeadDim;
    p.value_stride = kHeads * kHeadDim;
    p.head_stride = kHeadDim;
    p.num_source_rows = kRows;
    p.commit_lens = commit_lens_.on(side, set);
    p.prefix_lens = prefix_lens_.on(side, set);
    p.k_norm_weight = weight_.on(side, 0);
    p.eps = 1e-6f;
    p.cos = cos_.on(side, 0);
    p.sin = sin_.on(side, 0);
    p.num_positions = kPositions;
    p.page_table = {page_table_.on(side, set), false};
    p.page_table_stride = kPages;
    p.num_table_rows = batch_;
    p.num_pages = kPages;
    p.page_size = kPageSize;
    p.pieces = pieces_.on(side, 0);
    p.buffers = buffers;
    p.buffer_page_size = kPageSize;
    p.num_slots = batch_ * kPagesInUse * kPageSize;
    p.status = status_.on(side, set);
    return p;
  }

  int batch_;
  int sets_;
  int64_t commits_ = 0;
  SetArray<BFloat16> keys_values_;
  SetArray<float> weight_, cos_, sin_;
  SetArray<int32_t> commit_lens_, prefix_lens_, page_table_;
  SetArray<KvPieces> pieces_;
  std::vector<SetArray<uint16_t>> pools_;
  SetArray<int32_t> status_;
};

Registrar inject_context_kv(benchmark<InjectContextKv>(
    "inject_context_kv", {{"5 layers x 8 heads x 128, cold", 1, kRows, 0, "bf16"},
                          {"5 layers x 8 heads x 128, cold", 8, kRows, 0, "bf16"},
                          {"5 layers x 8 heads x 128, cold", 64, kRows, 0, "bf16"},
                          {"5 layers x 8 heads x 128, cold", 256, kRows, 0, "bf16"}}));

}  // namespace
}  // namespace specfast::bench
