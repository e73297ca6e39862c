// The walk over 7 slots of 16 candidates, rank 256. Candidates lie anywhere in codebooks of 151936
// rows, and every input set has its own keys and candidates, so that rows come from memory or from
// L2 as they happen to.

#include "ops/walk_selector.h"
#include "random.h"
#include "set_array.cuh"
#include "workload.h"

namespace specfast::bench {
namespace {

constexpr int kVocab = 151936;
constexpr int kRank = 256;
constexpr int kSlots = 7;
constexpr int kCandidates = 16;
constexpr int kSets = 64;

class WalkSelector : public Workload {
 public:
  explicit WalkSelector(const Point& point)
      : batch_(point.batch),
        predecessor_(1, int64_t{kVocab} * kRank),
        successor_(1, int64_t{kVocab} * kRank),
        candidates_(kSets, batch_ * kSlots * kCandidates),
        unary_(kSets, batch_ * kSlots * kCandidates),
        keys_(kSets, batch_ * kSlots * kRank),
        anchors_(kSets, batch_),
        prefix_lens_(kSets, batch_),
        temperature_(1, batch_),
        seeds_(1, batch_),
        tokens_(kSets, batch_ * kSlots),
        q_(kSets, batch_ * kSlots * kCandidates),
        status_(kSets, batch_) {
    Random random(1);
    auto value = [&] { return random.uniform() - 0.5f; };
    for (auto* codebook : {&predecessor_, &successor_}) {
      BFloat16* out = codebook->host(0);
      for (int64_t i = 0; i < codebook->count(); ++i) out[i] = rounded_to<BFloat16>(value());
    }
    for (int set = 0; set < kSets; ++set) {
      for (int i = 0; i < candidates_.count(); ++i) {
        candidates_.host(set)[i] =
            random.below(kVocab / kCandidates) * kCandidates + i % kCandidates;
        unary_.host(set)[i] = 4 * value();
      }
      for (int i = 0; i < keys_.count(); ++i) keys_.host(set)[i] = value();
      for (int b = 0; b < batch_; ++b) {
        anchors_.host(set)[b] = random.below(kVocab);
        prefix_lens_.host(set)[b] = random.below(8192);
      }
    }
    for (int b = 0; b < batch_; ++b) {
      temperature_.host(0)[b] = point.variant.find("greedy") == std::string::npos ? 1.0f : 0.0f;
      seeds_.host(0)[b] = b * 7919;
    }
    predecessor_.upload();
    successor_.upload();
    candidates_.upload();
    unary_.upload();
    keys_.upload();
    anchors_.upload();
    prefix_lens_.upload();
    temperature_.upload();
    seeds_.upload();
  }

  int sets() const override { return kSets; }
  void launch(int set, CUstream_st* stream) override {
    walk_selector_cuda(params(Side::kDevice, set), stream);
  }
  void check(int set) override {
    walk_selector_cpu(params(Side::kHost, set));
    tokens_.expect_equal(set, "tokens");
    q_.expect_equal(set, "q");
    status_.expect_equal(set, "status");
  }
  Traffic traffic() override {
    double rows = 2.0 * batch_ * kSlots * kCandidates * kRank * sizeof(BFloat16);
    return {rows + keys_.bytes() + unary_.bytes() + candidates_.bytes() + q_.bytes(), 0, 0};
  }

 private:
  WalkSelectorParams params(Side side, int set) {
    WalkSelectorParams p{};
    p.batch_size = batch_;
    p.num_slots = kSlots;
    p.num_candidates = kCandidates;
    p.rank = kRank;
    p.vocab_size = kVocab;
    p.candidates = {candidates_.on(side, set), false};
    p.unary = unary_.on(side, set);
    p.keys = keys_.on(side, set);
    p.predecessor = predecessor_.on(side, 0);
    p.successor = successor_.on(side, 0);
    p.codebook_type = FloatType::kBFloat16;
    p.anchors = {anchors_.on(side, set), false};
    p.sampling.temperature = temperature_.on(side, 0);
    p.sampling.seeds = seeds_.on(side, 0);
    p.prefix_lens = prefix_lens_.on(side, set);
    p.tokens = tokens_.on(side, set);
    p.q = q_.on(side, set);
    p.status = status_.on(side, set);
    return p;
  }

  int batch_;
  SetArray<BFloat16> predecessor_, successor_;
  SetArray<int32_t> candidates_;
  SetArray<float> unary_, keys_;
  SetArray<int32_t> anchors_, prefix_lens_;
  SetArray<float> temperature_;
  SetArray<int64_t> seeds_;
  SetArray<int32_t> tokens_;
  SetArray<float> q_;
  SetArray<int32_t> status_;
};

Registrar walk_selector(benchmark<WalkSelector>(
    "walk_selector", {{"greedy, K = 16, r = 256", 1, kSlots, kVocab, "bf16", 3},
                      {"T = 1, K = 16, r = 256", 1, kSlots, kVocab, "bf16", 3},
                      {"T = 1, K = 16, r = 256", 64, kSlots, kVocab, "bf16", 3},
                      {"T = 1, K = 16, r = 256", 256, kSlots, kVocab, "bf16"}}));

}  // namespace
}  // namespace specfast::bench
