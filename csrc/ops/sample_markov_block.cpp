#include "ops/sample_markov_block.h"

#include <vector>

namespace specfast {
namespace {

template <class T, class W>
class SerialBlock {
 public:
  explicit SerialBlock(const MarkovBlockParams& p)
      : p_(p), row_(p.vocab_size, 0), embedded_(p.rank) {
    row_.place(team_, 0);
    row_.logits.divide(team_);
    mixer_.place(team_, p.head, p.rank, 1);
  }

  void run(int32_t b) {
    MarkovRequest request = MarkovRequest::load(p_, b);
    int64_t previous = p_.anchors[b];
    int32_t status = request.sampling.status;
    mixer_.forget(team_, 1);
    for (int32_t step = 0; step < p_.num_steps; ++step) {
      if (request.padded) {
        write_markov_draw(p_, b, step, MarkovDraw::none(), kStatusOk);
        continue;
      }
      T* logits =
          static_cast<T*>(p_.logits) + b * p_.request_stride + int64_t{step} * p_.step_stride;
      if (previous >= 0 && previous < p_.num_embeddings) {
        embed(previous, int64_t{b} * p_.num_steps + step);
        correct(logits);
      } else {
        status |= kBadToken;
      }
      MarkovDraw draw = MarkovDraw::of(row_, team_, logits, request.sampling, step);
      status |= draw.status;
      write_markov_draw(p_, b, step, draw, status);
      previous = markov_target_id(p_, draw.column);
    }
  }

 private:
  void embed(int64_t previous, int64_t step) {
    const W* embedding = static_cast<const W*>(p_.w1) + previous * p_.rank;
    auto put = [&](int32_t k, W value) { embedded_[k] = to_float(value); };
    if (p_.head.kind != MarkovKind::kVanilla) return mixer_.mix(team_, 0, embedding, step, put);
    for (int32_t k = 0; k < p_.rank; ++k) put(k, embedding[k]);
  }
  void correct(T* logits) {
    const W* weights = static_cast<const W*>(p_.w2);
    for (int64_t id = 0; id < p_.vocab_size; ++id) {
      float bias = weighted_sum(weights + id * p_.rank, embedded_.data(), p_.rank);
      logits[id] = rounded_to<T>(to_float(logits[id]) + bias);
    }
  }

  const MarkovBlockParams& p_;
  SerialTeam team_;
  RowDistribution<RowForm<T, false, true>> row_;
  MarkovMixer<W> mixer_;
  std::vector<float> embedded_;
};

template <class T, class W>
void run_all(const MarkovBlockParams& p) {
  SerialBlock<T, W> block(p);
  for (int32_t b = 0; b < p.batch_size; ++b) block.run(b);
}

}  // namespace

void sample_markov_block_cpu(const MarkovBlockParams& p) {
  if (p.weights_type == FloatType::kFloat32) return run_all<float, float>(p);
  if (p.logits_type == FloatType::kFloat32) return run_all<float, BFloat16>(p);
  run_all<BFloat16, BFloat16>(p);
}

}  // namespace specfast
