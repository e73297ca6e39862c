#pragma once

#include "accept_case.h"
#include "core/sampled_state.h"

namespace specfast::testing {

// An accept case with what sampled rules take: parameters over the whole range of filters, sound or
// not, edits, a bitmask, and a proposal in one of its forms.
struct SampledCase : AcceptCase {
  enum class Form { kRecord, kDense, kSparse };

  SampledCase(int batch_size, int num_nodes, int vocab, unsigned seed, bool unsound, Form form)
      : AcceptCase(batch_size, num_nodes, vocab, seed, unsound), form(form) {
    std::mt19937 rng(seed + 1000);
    auto pick = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(rng);
    };
    auto choose = [&](std::initializer_list<float> of) {
      return of.begin()[pick(0, static_cast<int>(of.size()) - 1)];
    };
    for (int b = 0; b < B; ++b) {
      temperature.push_back(choose({0.0f, 0.3f, 0.7f, 1.0f, 1.0f, 2.0f, unsound ? -1.0f : 1.0f}));
      top_k.push_back(static_cast<int32_t>(choose({0, -1, 1, 2, 3, 20, unsound ? -9.0f : 5.0f})));
      top_p.push_back(choose({1.0f, 1.0f, 0.9f, 0.5f, 1e-6f, unsound ? NAN : 0.99f}));
      min_p.push_back(choose({0.0f, 0.0f, 0.1f, 1.0f, unsound ? 2.0f : 0.01f}));
      repetition.push_back(choose({1.0f, 1.3f}));
      presence.push_back(choose({0.0f, 0.5f}));
      frequency.push_back(choose({0.0f, 0.7f}));
      seeds.push_back((static_cast<int64_t>(rng()) << 32) | rng());
      edit_indptr.push_back(static_cast<int32_t>(edit_ids.size()));
      for (int id = 0; id < V; ++id) {
        if (pick(0, 2) != 0) continue;
        edit_ids.push_back(id);
        edit_counts.push_back(pick(-1, 2));
        edit_biases.push_back(choose({0.0f, 1.0f, -2.0f}));
      }
    }
    edit_indptr.push_back(static_cast<int32_t>(edit_ids.size()));
    words = (V + 31) / 32;
    for (int i = 0; i < B * N * words; ++i) bitmask.push_back(static_cast<int32_t>(rng() | rng()));
    for (int i = 0; i < B * N; ++i) {
      records.push_back({1.0f, 3.0f, -INFINITY, INT32_MAX, 0, 0, kOrdinaryRow});
      for (int id = 0; id < V; ++id) {
        q_logits.push_back(static_cast<float>(pick(-3, 3)));
        records.back().mass += Weights{3.0f, Weights::scale2_of(1.0f)}.mass(q_logits.back());
        q_probs.push_back(choose({0.0f, 0.1f, 0.5f, 1.0f, unsound ? NAN : 0.25f}));
      }
      for (int k = 0; k < kSparse; ++k) {
        sparse_ids.push_back((i + k) % V);
        sparse_values.push_back(choose({0.2f, 0.4f, 0.6f}));
      }
    }
    logprobs.assign(static_cast<size_t>(B) * N, -77.0f);
    stored_rows.resize(static_cast<size_t>(B) * N);
    outcomes.resize(static_cast<size_t>(B) * N);
  }

  // As AcceptCase::params; `edited` takes the edits and the bitmask in, `filtered` the filters.
  template <class Place>
  SampledAcceptParams sampled_params(Place place, bool edited, bool filtered, bool chain) const {
    SampledAcceptParams p{};
    p.accept = params(place);
    p.rows = {place(logits), FloatType::kFloat32, stride, {}};
    if (!chain) p.links = {place(next_token), place(next_sibling), nullptr};
    if (!chain) p.accept.cap_trim_lens = nullptr;
    p.sampling.temperature = place(temperature);
    p.sampling.seeds = place(seeds);
    if (filtered) {
      p.sampling.top_k = place(top_k);
      p.sampling.top_p = place(top_p);
      p.sampling.min_p = place(min_p);
    }
    if (edited) {
      p.sampling.repetition_penalty = place(repetition);
      p.sampling.presence_penalty = place(presence);
      p.sampling.frequency_penalty = place(frequency);
      p.sampling.edit_indptr = place(edit_indptr);
      p.sampling.edit_ids = place(edit_ids);
      p.sampling.edit_counts = place(edit_counts);
      p.sampling.edit_biases = place(edit_biases);
      p.sampling.num_edits = static_cast<int32_t>(edit_ids.size());
      p.sampling.token_bitmask = place(bitmask);
      p.sampling.token_bitmask_stride = words;
    }
    p.proposal.rows_per_request = N;
    p.proposal.num_rows = B * N;
    p.proposal.vocab_size = V;
    if (form == Form::kRecord) {
      p.proposal.logits = place(q_logits);
      p.proposal.logits_type = FloatType::kFloat32;
      p.proposal.logits_stride = V;
      p.proposal.records = place(records);
    } else if (form == Form::kDense) {
      p.proposal.probs = place(q_probs);
      p.proposal.probs_stride = V;
    } else {
      p.proposal.sparse_ids = {place(sparse_ids), false};
      p.proposal.sparse_values = place(sparse_values);
      p.proposal.num_sparse = kSparse;
    }
    p.threshold_single = 1.0f;
    p.threshold_acc = 1.0f;
    p.logprobs = {place(logprobs), edited};
    return p;
  }
  SampledAcceptParams sampled_params(bool edited, bool filtered, bool chain) {
    auto place = [](const auto& values) {
      using T = typename std::decay_t<decltype(values)>::value_type;
      return const_cast<T*>(values.data());
    };
    return sampled_params(place, edited, filtered, chain);
  }

  // The record and the bits of the log-probabilities.
  std::vector<int32_t> sampled_record() const {
    std::vector<int32_t> all = record();
    for (float logprob : logprobs) all.push_back(static_cast<int32_t>(float_bits(logprob)));
    return all;
  }

  static constexpr int kSparse = 2;
  Form form;
  int words;
  std::vector<float> temperature, top_p, min_p, repetition, presence, frequency;
  std::vector<int32_t> top_k, edit_indptr, edit_ids, edit_counts, bitmask, sparse_ids;
  std::vector<float> edit_biases, q_logits, q_probs, sparse_values, logprobs;
  std::vector<int64_t> seeds;
  std::vector<RowRecord> records;
  std::vector<StoredRow> stored_rows;  // for who has rows recorded first
  std::vector<RowOutcome> outcomes;    // for who reads the rows of a chain at once
};

}  // namespace specfast::testing
