#pragma once

#include <cfloat>
#include <cmath>

#include "core/mass.h"
#include "core/philox.h"
#include "core/sampling_params.h"
#include "core/status.h"

namespace specfast {

// A coin that the caller gave, clamped into [0, 1 - 2^-24]; NaN is a bad 0.
struct GivenCoin {
  Fraction value;
  int32_t status;

  SPECFAST_HD static GivenCoin of(float coin) {
    if (coin >= 0.0f && coin < 1.0f) return {Fraction::of(coin), kStatusOk};
    if (coin >= 1.0f) return {{(1u << 24) - 1, 24}, kStatusOk};
    return {{0, 0}, coin < 0.0f ? kStatusOk : kBadParam};
  }
};

// The sampling parameters of one request, checked and in the form that rows use.
struct RequestSampling {
  bool greedy = false;
  bool has_top_p = false;
  int32_t top_k = 0;  // 0: off
  float scale = 0.0f;
  Fraction top_p{1, 0};
  uint64_t min_mass = 1;  // from min_p
  int32_t status = kStatusOk;
  RandomStream random{0, 0};

  // As they lie in memory: all are asked for before the first is looked at.
  struct Given {
    float temperature;
    int32_t top_k;
    float top_p, min_p, repetition, presence, frequency;
    int64_t seed;

    SPECFAST_HD static Given load(const SamplingParams& p, int b) {
      Given out;
      out.temperature = p.temperature[b];
      out.top_k = p.top_k != nullptr ? p.top_k[b] : 0;
      out.top_p = p.top_p != nullptr ? p.top_p[b] : 1.0f;
      out.min_p = p.min_p != nullptr ? p.min_p[b] : 0.0f;
      out.repetition = p.repetition_penalty != nullptr ? p.repetition_penalty[b] : 1.0f;
      out.presence = p.presence_penalty != nullptr ? p.presence_penalty[b] : 0.0f;
      out.frequency = p.frequency_penalty != nullptr ? p.frequency_penalty[b] : 0.0f;
      out.seed = p.seeds != nullptr ? p.seeds[b] : 0;
      return out;
    }
  };

  SPECFAST_HD static RequestSampling load(const SamplingParams& p, int b, int32_t vocab_size) {
    return of(Given::load(p, b), vocab_size);
  }
  SPECFAST_HD static RequestSampling of(const Given& given, int32_t vocab_size) {
    constexpr float kGreedyTemperature = 1e-5f;
    const auto& [temperature, top_k, top_p, min_p, repetition, presence, frequency, seed] = given;
    RequestSampling out;
    bool good = temperature >= 0.0f && temperature <= FLT_MAX && top_k >= -1 && top_p > 0.0f &&
                top_p <= 1.0f && min_p >= 0.0f && min_p <= 1.0f && repetition > 0.0f &&
                repetition <= FLT_MAX && fabsf(presence) <= FLT_MAX && fabsf(frequency) <= FLT_MAX;
    out.random.seed = static_cast<uint64_t>(seed);
    if (top_k > 0 && top_k < vocab_size) out.top_k = top_k;
    out.greedy = top_k == 1;
    out.has_top_p = top_p < 1.0f;
    out.top_p = Fraction::of(top_p);
    if (good && min_p > 0.0f) {
      out.min_mass = max_of<uint64_t>(fraction_above(Fraction::of(min_p), kUnitMass), 1);
    }
    if (!good) out.status = kBadParam;
    out.greedy = out.greedy || !good || temperature < kGreedyTemperature;
    if (!out.greedy) out.scale = 1.0f / temperature;
    return out;
  }
};

}  // namespace specfast
