#pragma once

#include <cstring>
#include <random>
#include <vector>

#include "ops/fused_add_rms_norm.h"
#include "ops/gather_eagle_inputs.h"
#include "ops/grouped_dynamic_conv.h"
#include "ops/silu_and_mul.h"

namespace specfast::testing {

template <class T>
FloatType type_of();
template <>
inline FloatType type_of<float>() {
  return FloatType::kFloat32;
}
template <>
inline FloatType type_of<BFloat16>() {
  return FloatType::kBFloat16;
}
template <>
inline FloatType type_of<Float16>() {
  return FloatType::kFloat16;
}

template <class T>
std::vector<T> normal_values(std::mt19937& rng, int count) {
  std::normal_distribution<float> normal;
  std::vector<T> values;
  for (int i = 0; i < count; ++i) values.push_back(rounded_to<T>(normal(rng)));
  return values;
}

// Bit for bit: NaN equals itself.
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

struct RowsSize {
  int rows, width;
};

// Rows with a gap behind each, whose residuals are dense.
template <class T>
struct NormCase {
  NormCase(RowsSize size, unsigned seed, bool has_residual)
      : size(size), has_residual(has_residual) {
    std::mt19937 rng(seed);
    x = normal_values<T>(rng, size.rows * (size.width + kGap));
    residual = normal_values<T>(rng, size.rows * size.width);
    weight = normal_values<T>(rng, size.width);
    out.assign(size.rows * (size.width + kGap), rounded_to<T>(-77.0f));
    sum.assign(size.rows * size.width, rounded_to<T>(-77.0f));
  }

  template <class Place>
  FusedAddRmsNormParams params(Place place) {
    FusedAddRmsNormParams p{};
    p.num_rows = size.rows;
    p.width = size.width;
    p.type = type_of<T>();
    p.has_wide_rows = size.width % 8 == 0;
    p.x = place(x);
    p.x_stride = p.out_stride = size.width + kGap;
    p.residual = has_residual ? place(residual) : nullptr;
    p.residual_stride = p.sum_stride = size.width;
    p.weight = place(weight);
    p.eps = 1e-6f;
    p.out = place(out);
    p.sum = has_residual ? place(sum) : nullptr;
    return p;
  }
  FusedAddRmsNormParams params() {
    return params([](auto& vector) { return vector.data(); });
  }

  static constexpr int kGap = 8;
  RowsSize size;
  bool has_residual;
  std::vector<T> x, residual, weight, out, sum;
};

template <class T>
struct GateCase {
  GateCase(RowsSize size, unsigned seed) : size(size) {
    std::mt19937 rng(seed);
    x = normal_values<T>(rng, size.rows * 2 * size.width);
    for (T& value : x) value = rounded_to<T>(4 * to_float(value));
    out.assign(size.rows * (size.width + kGap), rounded_to<T>(-77.0f));
  }

  template <class Place>
  SiluAndMulParams params(Place place) {
    SiluAndMulParams p{};
    p.num_rows = size.rows;
    p.width = size.width;
    p.type = type_of<T>();
    p.has_wide_rows = size.width % 8 == 0;
    p.x = place(x);
    p.x_stride = 2 * size.width;
    p.out = place(out);
    p.out_stride = size.width + kGap;
    return p;
  }
  SiluAndMulParams params() {
    return params([](auto& vector) { return vector.data(); });
  }

  static constexpr int kGap = 8;
  RowsSize size;
  std::vector<T> x, out;
};

template <class T>
struct ConvCase {
  struct Size {
    int batch, rows, width, taps, group;
  };

  ConvCase(Size size, unsigned seed) : size(size) {
    std::mt19937 rng(seed);
    x = normal_values<T>(rng, size.batch * size.rows * size.width);
    base = normal_values<T>(rng, size.taps * size.width);
    dynamic = normal_values<T>(rng, size.batch * size.rows * 2 * taps_of_row());
    out.assign(x.size(), rounded_to<T>(-77.0f));
  }

  template <class Place>
  GroupedDynamicConvParams params(Place place) {
    GroupedDynamicConvParams p{};
    p.batch_size = size.batch;
    p.num_rows = size.rows;
    p.width = size.width;
    p.num_taps = size.taps;
    p.group_size = size.group;
    p.type = type_of<T>();
    p.has_wide_rows = size.group % 8 == 0;
    p.x = place(x);
    p.x_request_stride = size.rows * size.width;
    p.x_stride = size.width;
    p.base = place(base);
    // Those of the other side of a sublayer lie between.
    p.dynamic = place(dynamic);
    p.dynamic_tap_stride = size.width / size.group;
    p.dynamic_stride = 2 * taps_of_row();
    p.dynamic_request_stride = size.rows * p.dynamic_stride;
    p.out = place(out);
    return p;
  }
  GroupedDynamicConvParams params() {
    return params([](auto& vector) { return vector.data(); });
  }

  int taps_of_row() const { return size.taps * size.width / size.group; }
  Size size;
  std::vector<T> x, base, dynamic, out;
};

// Nodes of a few requests, some with tokens or parents that are none.
template <class T>
struct EagleCase {
  struct Size {
    int batch, nodes, width;
  };

  EagleCase(Size size, unsigned seed, bool is_tree, bool is_normed)
      : size(size), is_tree(is_tree), is_normed(is_normed) {
    std::mt19937 rng(seed);
    auto pick = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(rng);
    };
    num_features = is_tree ? size.nodes + 2 : size.nodes;
    embedding = normal_values<T>(rng, kVocab * size.width);
    features = normal_values<T>(rng, size.batch * num_features * size.width);
    weights = normal_values<T>(rng, 2 * size.width);
    for (int i = 0; i < kDraftVocab; ++i) d2t.push_back(pick(0, 1 + kVocab - kDraftVocab));
    for (int i = 0; i < size.batch * size.nodes; ++i) {
      tokens.push_back(pick(-1, kDraftVocab));
      parents.push_back(pick(-1, num_features));
    }
    out.assign(size.batch * size.nodes * 2 * size.width, rounded_to<T>(-77.0f));
    gathered.assign(size.batch * size.nodes * size.width, rounded_to<T>(-77.0f));
  }

  template <class Place>
  GatherEagleInputsParams params(Place place) {
    GatherEagleInputsParams p{};
    p.batch_size = size.batch;
    p.num_nodes = size.nodes;
    p.num_features = num_features;
    p.width = size.width;
    p.type = type_of<T>();
    p.has_wide_rows = size.width % 8 == 0;
    p.tokens = {place(tokens), false};
    p.tokens_stride = p.parents_stride = size.nodes;
    p.d2t = place(d2t);
    p.num_draft_tokens = kDraftVocab;
    p.embedding = place(embedding);
    p.vocab_size = kVocab;
    p.features = place(features);
    p.features_request_stride = num_features * size.width;
    p.features_stride = size.width;
    p.parents = {is_tree ? place(parents) : nullptr, true};
    if (is_normed) {
      const T* both = place(weights);
      p.embedding_norm_weight = both;
      p.features_norm_weight = both + size.width;
    }
    p.eps = 1e-6f;
    p.out = place(out);
    p.gathered = is_tree ? place(gathered) : nullptr;
    return p;
  }
  GatherEagleInputsParams params() {
    return params([](auto& vector) { return vector.data(); });
  }

  static constexpr int kVocab = 40;
  static constexpr int kDraftVocab = 24;
  Size size;
  bool is_tree, is_normed;
  int num_features;
  std::vector<T> embedding, features, weights, out, gathered;
  std::vector<int64_t> d2t, parents;
  std::vector<int32_t> tokens;
};

}  // namespace specfast::testing
