#pragma once

#include <cstring>

#include "ops/sample_rows.h"
#include "sampled_case.h"

namespace specfast::testing {

// Rows of a sampled case that belong to its requests in no order, sound or not, and where the draws
// from them go.
struct SampleRowsCase : SampledCase {
  static constexpr int kDraws = 3;

  SampleRowsCase(int batch_size, int num_nodes, int vocab, unsigned seed, bool unsound)
      : SampledCase(batch_size, num_nodes, vocab, seed, unsound, Form::kRecord) {
    std::mt19937 rng(seed + 2000);
    auto pick = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(rng);
    };
    for (int row = 0; row < B * N; ++row) {
      request_of_row.push_back(unsound ? pick(-1, B) : pick(0, B - 1));
      slot_of_row.push_back(pick(0, N - 1));
    }
    for (int b = 0; b < B; ++b) final_coins.push_back(static_cast<float>(pick(0, 99)) / 100.0f);
    if (unsound) final_coins[0] = NAN;
    if (unsound) prefix_lens[0] = -1;
    row_records.assign(B * N, RowRecord{-77.0f, -77.0f, -77.0f, -77, 77, -77, -77});
    tokens.assign(static_cast<size_t>(B) * N * kDraws, -77);
    row_status.assign(B * N, -77);
  }

  template <class Place>
  SampleRowsParams rows_params(Place place, bool edited, bool filtered, Purpose purpose,
                               bool given_coins) const {
    SampleRowsParams p{};
    p.num_rows = B * N;
    p.batch_size = B;
    p.vocab_size = V;
    p.rows = {place(logits), FloatType::kFloat32, stride, {}};
    p.sampling = sampled_params(place, edited, filtered, true).sampling;
    if (given_coins) p.sampling.final_coins = place(final_coins);
    p.request_of_row = place(request_of_row);
    p.prefix_lens = place(prefix_lens);
    p.node = purpose == kDraftDraw ? 5 : 0;
    p.slot_of_row = place(slot_of_row);
    p.purpose = purpose;
    p.num_draws = kDraws;
    p.tokens = place(tokens);
    p.records = place(row_records);
    p.status = place(row_status);
    return p;
  }
  SampleRowsParams rows_params(bool edited, bool filtered, Purpose purpose, bool given_coins) {
    auto place = [](const auto& values) {
      using T = typename std::decay_t<decltype(values)>::value_type;
      return const_cast<T*>(values.data());
    };
    return rows_params(place, edited, filtered, purpose, given_coins);
  }

  // Every bit that the call writes, in one vector.
  std::vector<int32_t> drawn() const {
    std::vector<int32_t> all = tokens;
    all.insert(all.end(), row_status.begin(), row_status.end());
    static_assert(sizeof(RowRecord) == 8 * sizeof(int32_t), "a record has no padding");
    std::vector<int32_t> words(8 * row_records.size());
    memcpy(words.data(), row_records.data(), words.size() * sizeof(int32_t));
    all.insert(all.end(), words.begin(), words.end());
    return all;
  }

  std::vector<int32_t> request_of_row, slot_of_row, tokens, row_status;
  std::vector<float> final_coins;
  std::vector<RowRecord> row_records;
};

}  // namespace specfast::testing
