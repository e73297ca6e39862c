// Blocks of 7 drafts over a head of rank 256. Every input set has its own w2, which a draft step
// finds in memory and not in L2. Its weights are on a grid on which no sum is rounded, so that the
// CPU body must agree bit for bit; later replays go on from the logits that the first has left. For
// the same reason the hidden rows of gated and recurrent heads are so large that gates are 0 or 1.

#include <cstring>

#include "ops/sample_markov_block.h"
#include "random.h"
#include "set_array.cuh"
#include "workload.h"

namespace specfast::bench {
namespace {

constexpr int kVocab = 151936;
constexpr int kRank = 256;
constexpr int kSteps = 7;

BFloat16 on_grid(Random& random, int most, float unit) {
  return rounded_to<BFloat16>(static_cast<float>(random.below(2 * most + 1) - most) * unit);
}

class MarkovBlock : public Workload {
 public:
  explicit MarkovBlock(const Point& point)
      : batch_(point.batch),
        head_{kind_of(point.variant), nullptr, 0, nullptr},
        w1_(1, int64_t{kVocab} * kRank),
        w2_(kSets, int64_t{kVocab} * kRank),
        logits_(kSets, int64_t{batch_} * kSteps * kVocab),
        anchors_(kSets, batch_),
        prefix_lens_(kSets, batch_),
        temperature_(1, batch_),
        seeds_(1, batch_),
        tokens_(kSets, batch_ * kSteps),
        records_(kSets, batch_ * kSteps * kRecordWords),
        status_(kSets, batch_),
        workspace_(1, kMarkovWorkspaceWords),
        projection_(1, head_.outputs() * kRank * head_.inputs() * kRank),
        hidden_rows_(kSets, int64_t{batch_} * kSteps * head_.outputs() * kRank) {
    Random random(1);
    fill(random, projection_, 0, 4, 0.125f);
    projection_.upload();
    fill(random, w1_, 0, 4, 0.125f);
    for (int set = 0; set < kSets; ++set) {
      fill(random, w2_, set, 4, 0.03125f);
      fill(random, logits_, set, 64, 0.125f);
      for (int64_t i = 0; i < hidden_rows_.count(); ++i) {
        hidden_rows_.host(set)[i] = random.below(2) == 0 ? -1000.0f : 1000.0f;
      }
      for (int b = 0; b < batch_; ++b) {
        anchors_.host(set)[b] = random.below(kVocab);
        prefix_lens_.host(set)[b] = random.below(8192);
      }
    }
    for (int b = 0; b < batch_; ++b) {
      temperature_.host(0)[b] = point.variant.find("greedy") == std::string::npos ? 1.0f : 0.0f;
      seeds_.host(0)[b] = b * 7919;
    }
    memset(workspace_.host(0), 0, kMarkovWorkspaceWords * sizeof(uint64_t));
    w1_.upload();
    w2_.upload();
    logits_.upload();
    anchors_.upload();
    prefix_lens_.upload();
    temperature_.upload();
    seeds_.upload();
    workspace_.upload();
    hidden_rows_.upload();
  }

  int sets() const override { return kSets; }
  void launch(int set, CUstream_st* stream) override {
    sample_markov_block_cuda(params(Side::kDevice, set), stream);
  }
  void check(int set) override {
    sample_markov_block_cpu(params(Side::kHost, set));
    tokens_.expect_equal(set, "tokens");
    records_.expect_equal(set, "records");
    status_.expect_equal(set, "status");
  }
  Traffic traffic() override {
    double logits = 2.0 * sizeof(BFloat16) * batch_ * kSteps * kVocab;
    return {kSteps * w2_.bytes() + logits, kSteps, kSteps};
  }

 private:
  static constexpr int kSets = 4;
  static constexpr int kRecordWords = sizeof(RowRecord) / sizeof(int32_t);

  static MarkovKind kind_of(const std::string& variant) {
    if (variant.find("gated") == 0) return MarkovKind::kGated;
    return variant.find("rnn") == 0 ? MarkovKind::kRnn : MarkovKind::kVanilla;
  }

  // A random stretch over and over: there are hundreds of millions of elements.
  static void fill(Random& random, SetArray<BFloat16>& array, int set, int most, float unit) {
    BFloat16* out = array.host(set);
    int64_t period = min_of<int64_t>(array.count(), 1000003);
    for (int64_t i = 0; i < period; ++i) out[i] = on_grid(random, most, unit);
    for (int64_t i = period; i < array.count(); ++i) out[i] = out[i - period];
  }

  MarkovBlockParams params(Side side, int set) {
    MarkovBlockParams p{};
    p.batch_size = batch_;
    p.num_steps = kSteps;
    p.vocab_size = kVocab;
    p.rank = kRank;
    p.logits = logits_.on(side, set);
    p.logits_type = FloatType::kBFloat16;
    p.request_stride = int64_t{kSteps} * kVocab;
    p.step_stride = kVocab;
    p.w1 = w1_.on(side, 0);
    p.w2 = w2_.on(side, set);
    p.weights_type = FloatType::kBFloat16;
    p.num_embeddings = kVocab;
    p.head = head_;
    p.head.projection = projection_.on(side, 0);
    p.head.projection_stride = head_.inputs() * kRank;
    p.head.hidden_rows = hidden_rows_.on(side, set);
    p.anchors = {anchors_.on(side, set), false};
    p.sampling.temperature = temperature_.on(side, 0);
    p.sampling.seeds = seeds_.on(side, 0);
    p.prefix_lens = prefix_lens_.on(side, set);
    p.tokens = tokens_.on(side, set);
    p.records = reinterpret_cast<RowRecord*>(records_.on(side, set));
    p.status = status_.on(side, set);
    p.workspace = workspace_.on(side, 0);
    return p;
  }

  int batch_;
  MarkovHead head_;
  SetArray<BFloat16> w1_, w2_, logits_;
  SetArray<int32_t> anchors_, prefix_lens_;
  SetArray<float> temperature_;
  SetArray<int64_t> seeds_;
  SetArray<int32_t> tokens_, records_, status_;
  SetArray<uint64_t> workspace_;
  SetArray<BFloat16> projection_;
  SetArray<float> hidden_rows_;
};

Registrar sample_markov_block(benchmark<MarkovBlock>(
    "sample_markov_block", {{"greedy, r = 256, 7 steps", 1, kSteps, kVocab, "bf16", 110},
                            {"T = 1, r = 256, 7 steps", 1, kSteps, kVocab, "bf16", 110},
                            {"T = 1, r = 256, 7 steps", 8, kSteps, kVocab, "bf16"},
                            {"greedy, r = 256, 7 steps", 64, kSteps, kVocab, "bf16", 260},
                            {"T = 1, r = 256, 7 steps", 64, kSteps, kVocab, "bf16", 260},
                            {"gated, greedy, r = 256, 7 steps", 1, kSteps, kVocab, "bf16"},
                            {"rnn, greedy, r = 256, 7 steps", 1, kSteps, kVocab, "bf16"},
                            {"rnn, T = 1, r = 256, 7 steps", 64, kSteps, kVocab, "bf16"}}));

}  // namespace
}  // namespace specfast::bench
