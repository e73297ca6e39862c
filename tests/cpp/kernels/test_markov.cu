#include "markov_case.h"
#include "testing.h"
#include "uploads.h"

namespace specfast {
namespace {

using testing::MarkovCase;
using testing::Uploads;

// Launches of one group and of two, of either form; rows of less than a unit of columns, of many
// per CTA, and of more than all CTAs draw from together; ranks that tensor cores take, and some
// that they do not.
template <class T, class W>
void expect_equal_to_the_cpu(unsigned seed) {
  using Case = MarkovCase<T, W>;
  constexpr typename Case::Size kSizes[] = {
      {1, 1, 3, 8},    {3, 2, 40, 32},    {1, 7, 1030, 256},  {16, 3, 300, 96},
      {17, 2, 90, 64}, {64, 3, 500, 32},  {70, 2, 40, 32},    {2, 4, 40000, 32},
      {5, 3, 777, 12}, {40, 2, 9000, 64}, {1, 2, 70000, 256}, {2, 2, 300000, 8},
  };
  for (const auto& size : kSizes) {
    if (testing::is_skipped(size.batch, size.vocab)) continue;
    for (int variant = 0; variant < 6; ++variant, ++seed) {
      if (size.vocab > 9000 && variant > 1) continue;
      Case host(size, seed, variant % 3 == 2);
      // What a head mixes is on no grid, so that tensor cores may differ.
      bool scalar = sizeof(W) == 4 || size.rank % 32 != 0;
      if (scalar && variant > 2) {
        host.mix_by(variant == 3 ? MarkovKind::kGated : MarkovKind::kRnn, seed);
      }
      Case device = host;
      sample_markov_block_cpu(host.params());
      Uploads uploads;
      sample_markov_block_cuda(device.params([&](const auto& values) { return uploads(values); }),
                               nullptr);
      uploads.fetch(device.logits.data());
      uploads.fetch(device.tokens.data());
      uploads.fetch(device.records.data());
      uploads.fetch(device.status.data());
      uploads.fetch(device.workspace.data());
      CHECK_EQ(device.tokens, host.tokens);
      CHECK_EQ(device.status, host.status);
      CHECK(device.written() == host.written());
    }
  }
}

TEST(markov_block_float32_equals_the_cpu_body) { expect_equal_to_the_cpu<float, float>(0); }
TEST(markov_block_mixed_equals_the_cpu_body) { expect_equal_to_the_cpu<float, BFloat16>(1000); }
TEST(markov_block_bfloat16_equals_the_cpu_body) {
  expect_equal_to_the_cpu<BFloat16, BFloat16>(2000);
}

struct PutFloat {
  float* embedded;
  SPECFAST_HD void operator()(int32_t k, BFloat16 value) const { embedded[k] = to_float(value); }
};

// Weights whose sums are rounded: logits within the rounding of tensor cores, and everything else
// as the CPU body has it for the logits that came out.
TEST(markov_block_draws_from_the_logits_that_it_leaves) {
  using Case = MarkovCase<BFloat16, BFloat16>;
  for (auto [batch, kind] : {std::pair{1, MarkovKind::kVanilla},
                             {5, MarkovKind::kRnn},
                             {20, MarkovKind::kGated},
                             {33, MarkovKind::kVanilla}}) {
    Case host({batch, 3, 2000, 256}, 77 + batch, false);
    if (kind != MarkovKind::kVanilla) host.mix_by(kind, batch);
    std::mt19937 rng(5);
    std::normal_distribution<float> normal;
    host.d2t.clear();
    host.num_embeddings = 2000;
    host.w1.clear();
    for (int i = 0; i < 2000 * 256; ++i) host.w1.push_back(rounded_to<BFloat16>(normal(rng)));
    for (auto& w : host.w2) w = rounded_to<BFloat16>(normal(rng) / 16);
    Case device = host;
    Uploads uploads;
    sample_markov_block_cuda(device.params([&](const auto& values) { return uploads(values); }),
                             nullptr);
    uploads.fetch(device.logits.data());
    uploads.fetch(device.tokens.data());
    uploads.fetch(device.records.data());
    // One step at a time after the kernel's own tokens, with the kernel's logits.
    SerialTeam team;
    MarkovMixer<BFloat16> mixer;
    mixer.place(team, host.params().head, 256, 1);
    for (int b = 0; b < batch; ++b) {
      int64_t previous = host.anchors[b];
      if (previous < 0) continue;
      mixer.forget(team, 1);
      for (int step = 0; step < 3; ++step) {
        int64_t at = b * host.request_stride + step * host.step_stride;
        std::vector<float> embedded(256);
        bool biased = previous < 2000;
        const BFloat16* embedding = &host.w1[previous * 256];
        PutFloat put{embedded.data()};
        if (biased && kind != MarkovKind::kVanilla) {
          mixer.mix(team, 0, embedding, int64_t{b} * 3 + step, put);
        } else {
          for (int k = 0; k < 256 && biased; ++k) put(k, embedding[k]);
        }
        for (int id = 0; id < 2000; ++id) {
          float bias = biased ? weighted_sum(&host.w2[id * 256], embedded.data(), 256) : 0.0f;
          float want = to_float(host.logits[at + id]) + bias;
          float got = to_float(device.logits[at + id]);
          CHECK(std::fabs(got - want) <= std::fabs(want) / 256 + 2e-5f);
        }
        RowDistribution<RowForm<BFloat16, false, true>> row(2000, 0);
        row.place(team, 0);
        row.logits.divide(team);
        MarkovRequest request = MarkovRequest::load(host.params(), b);
        MarkovDraw draw = MarkovDraw::of(row, team, &device.logits[at], request.sampling, step);
        CHECK_EQ(device.tokens[b * 3 + step], draw.column);
        CHECK(memcmp(&device.records[b * 3 + step], &draw.record, sizeof(RowRecord)) == 0);
        previous = draw.column;
      }
    }
  }
}

}  // namespace
}  // namespace specfast
