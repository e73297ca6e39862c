#include "core/thread_team.h"
#include "markov_case.h"
#include "testing.h"

namespace specfast {
namespace {

using testing::MarkovCase;
using Case = MarkovCase<float, float>;

struct Step {
  int32_t b;
  int32_t step;
  const float* logits;  // as the block leaves them
};

// What a cluster of the kernel does with the rows that are sampled: one after the other.
void draw_on_threads(const MarkovBlockParams& p, const std::vector<Step>& steps, int parts,
                     std::vector<MarkovDraw>& draws, int dropped_barrier = -1) {
  ThreadTeam::run(
      parts, 4,
      [&](ThreadTeam& team) {
        RowDistribution<RowForm<float, false, true>, false, true> row(p.vocab_size, 1);
        team.arrive();
        row.place(team, 0);
        row.logits.divide(team);
        for (size_t i = 0; i < steps.size(); ++i) {
          team.sync_part();  // the row before has been looked at
          MarkovRequest request = MarkovRequest::load(p, steps[i].b);
          MarkovDraw draw =
              MarkovDraw::of(row, team, steps[i].logits, request.sampling, steps[i].step);
          if (team.part() == 0 && team.rank() == 0) draws[i] = draw;
        }
        row.exchange.finish(team);
      },
      dropped_barrier);
}

TEST(markov_rows_on_threads_equal_serial) {
  for (unsigned seed = 0; seed < 12; ++seed) {
    Case c({3, 3, seed % 4 == 0 ? 1000 : 30, 16}, seed, seed % 3 == 2);
    MarkovBlockParams p = c.params();
    sample_markov_block_cpu(p);
    std::vector<Step> steps;
    for (int32_t b = 0; b < 3; ++b) {
      if (c.anchors[b] < 0) continue;
      for (int32_t step = 0; step < 3; ++step) {
        steps.push_back({b, step, &c.logits[b * c.request_stride + step * c.step_stride]});
      }
    }
    std::vector<MarkovDraw> draws(steps.size(), MarkovDraw::none());
    draw_on_threads(p, steps, 2 + seed % 2, draws);
    for (size_t i = 0; i < steps.size(); ++i) {
      int at = steps[i].b * 3 + steps[i].step;
      CHECK_EQ(markov_target_id(p, draws[i].column), c.tokens[at]);
      CHECK(memcmp(&draws[i].record, &c.records[at], sizeof(RowRecord)) == 0);
    }
  }
}

TEST(markov_greedy_draws_from_the_largest_key) {
  for (unsigned seed = 0; seed < 12; ++seed) {
    Case c({3, 2, 40, 16}, seed, seed % 2 == 1);
    c.temperature.assign(3, 0.0f);
    MarkovBlockParams p = c.params();
    sample_markov_block_cpu(p);
    for (int32_t b = 0; b < 3; ++b) {
      if (c.anchors[b] < 0) continue;
      for (int32_t step = 0; step < 2; ++step) {
        const float* logits = &c.logits[b * c.request_stride + step * c.step_stride];
        uint64_t key = 0;
        bool has_nan = false;
        for (int id = 0; id < 40; ++id) {
          key = max_of(key, argmax_key(logits[id], id));
          has_nan |= std::isnan(logits[id]);
        }
        MarkovDraw draw = MarkovDraw::greedy(key, has_nan);
        CHECK_EQ(markov_target_id(p, draw.column), c.tokens[b * 2 + step]);
        CHECK(memcmp(&draw.record, &c.records[b * 2 + step], sizeof(RowRecord)) == 0);
        CHECK_EQ(c.status[b] & draw.status, draw.status);
      }
    }
  }
}

// Embeddings of all steps of two requests, mixed by threads.
std::vector<float> mix_on_threads(const MarkovBlockParams& p, int threads,
                                  int dropped_barrier = -1) {
  std::vector<float> mixed(2 * p.num_steps * p.rank);
  ThreadTeam::run(
      1, threads,
      [&](ThreadTeam& team) {
        MarkovMixer<float> mixer;
        mixer.place(team, p.head, p.rank, 2);
        mixer.forget(team, 2);
        for (int32_t step = 0; step < p.num_steps; ++step) {
          for (int32_t row = 0; row < 2; ++row) {
            int64_t at = row * p.num_steps + step;
            const float* embedding =
                static_cast<const float*>(p.w1) + at % p.num_embeddings * p.rank;
            mixer.mix(team, row, embedding, at,
                      [&](int32_t k, float value) { mixed[at * p.rank + k] = value; });
          }
        }
      },
      dropped_barrier);
  return mixed;
}

TEST(markov_heads_on_threads_equal_one_thread) {
  for (MarkovKind kind : {MarkovKind::kGated, MarkovKind::kRnn}) {
    for (unsigned seed = 0; seed < 4; ++seed) {
      Case c({2, 4, 10, 5 + static_cast<int>(seed)}, seed, false);
      c.mix_by(kind, seed);
      CHECK(mix_on_threads(c.params(), 4) == mix_on_threads(c.params(), 1));
    }
  }
}

PLANTED_FAULT(markov_head_read_before_it_is_joined) {
  Case c({2, 4, 10, 8}, 0, false);
  c.mix_by(MarkovKind::kRnn, 0);
  mix_on_threads(c.params(), 4, 2);
}

PLANTED_FAULT(markov_maxima_read_before_they_came) {
  Case c({1, 3, 1000, 16}, 0, false);
  c.anchors[0] = 0;
  c.temperature[0] = 1.0f;
  MarkovBlockParams p = c.params();
  sample_markov_block_cpu(p);
  std::vector<Step> steps;
  for (int32_t step = 0; step < 3; ++step)
    steps.push_back({0, step, &c.logits[step * c.step_stride]});
  std::vector<MarkovDraw> draws(3, MarkovDraw::none());
  draw_on_threads(p, steps, 2, draws, 2);
}

}  // namespace
}  // namespace specfast
