#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "ops/verify_attention.h"

namespace specfast::testing {

// What one case is; everything else is drawn.
struct AttentionShape {
  std::vector<int32_t> prefix_lens;
  std::vector<int32_t> rows;
  int heads = 4;
  int kv_heads = 2;
  int head_dim = 64;
  int page_size = 16;
  int sliding_window = 0;
  enum Window { kChain, kBlock, kTree } window = kChain;
};

// The nearest value, 448 at most.
inline Float8 nearest_float8(float value) {
  const uint32_t sign = std::signbit(value) ? 0x80 : 0;
  if (value != value) return {static_cast<uint8_t>(sign | 0x7f)};
  const float magnitude = std::min(std::fabs(value), 448.0f);
  const int exponent = std::max(magnitude == 0 ? -6 : std::ilogb(magnitude), -6);
  // In units of the last place, 8 and above where the number is normal.
  const auto units = static_cast<uint32_t>(std::rint(std::ldexp(magnitude, 3 - exponent)));
  return {static_cast<uint8_t>(sign | (units + 8 * (exponent + 6)))};
}

// The storage of one call: T is the type of query and out, Kv that of the cache. Slots that no
// request has hold NaN, and so does `out` before the call.
template <class T, class Kv = T>
class AttentionCase {
 public:
  AttentionCase(const AttentionShape& shape, unsigned seed) : shape_(shape), rng_(seed) {
    const int batch = static_cast<int>(shape.rows.size());
    prefix_lens_ = shape.prefix_lens;
    indptr_.assign(1, 1);  // a row before the first request's
    for (int b = 0; b < batch; ++b) {
      const int owned = ceil_div(prefix_lens_[b] + shape.rows[b], shape.page_size);
      num_pages_ += owned;
      pages_per_row_ = std::max(pages_per_row_, owned + 1);
      nodes_ = std::max(nodes_, shape.rows[b]);
      indptr_.push_back(indptr_.back() + shape.rows[b]);
    }
    num_pages_ += 2;
    num_rows_ = indptr_.back() + 2;  // and two behind the last
    place_pages();
    fill(query_, int64_t{num_rows_} * shape.heads * shape.head_dim, 2.0f);
    const int words = ceil_div(nodes_, 32);
    mask_.assign(static_cast<size_t>(batch) * nodes_ * words, 0);
    for (int b = 0; b < batch; ++b) {
      for (int node = 0; node < nodes_; ++node) {
        uint32_t* row = mask_.data() + (b * nodes_ + node) * words;
        if (node > 0) {
          int parent = std::max(0, node - pick(1, 4));
          std::copy_n(row - (node - parent) * words, words, row);
        }
        row[node / 32] |= 1u << node % 32;
      }
    }
    T unset;
    store_float(NAN, &unset);
    out.assign(query_.size(), unset);
  }

  // The parameters over this storage, or over a copy of it elsewhere: place(v) is where the first
  // element of vector v lies.
  template <class Place>
  VerifyAttentionParams params(Place place) {
    VerifyAttentionParams p{};
    p.batch_size = static_cast<int32_t>(prefix_lens_.size());
    p.num_rows = num_rows_;
    p.num_heads = shape_.heads;
    p.num_kv_heads = shape_.kv_heads;
    p.head_dim = shape_.head_dim;
    p.max_rows = kMaxAttentionRows;
    p.type = sizeof(T) == 4                ? FloatType::kFloat32
             : std::is_same_v<T, BFloat16> ? FloatType::kBFloat16
                                           : FloatType::kFloat16;
    p.query = place(query_);
    p.query_head_stride = p.out_head_stride = shape_.head_dim;
    p.query_row_stride = p.out_row_stride = int64_t{shape_.heads} * shape_.head_dim;
    p.keys.data = place(keys_);
    p.values.data = place(values_);
    p.keys.slot_stride = p.values.slot_stride = int64_t{shape_.kv_heads} * shape_.head_dim;
    p.keys.head_stride = p.values.head_stride = shape_.head_dim;
    if (std::is_same_v<Kv, Float8>) {
      p.keys.scales = place(key_scales_);
      p.keys.scale_stride = 1;
      p.values.scales = place(value_scale_);
    }
    p.page_pitch = p.page_size = shape_.page_size;
    p.num_pages = num_pages_;
    p.page_table = {place(table_), false};
    p.page_table_stride = p.pages_per_row = pages_per_row_;
    p.num_table_rows = p.batch_size;
    p.prefix_lens = place(prefix_lens_);
    p.qo_indptr = place(indptr_);
    p.mask_nodes = nodes_;
    if (shape_.window == AttentionShape::kTree) {
      p.mask_bits = place(mask_);
      p.max_rows = nodes_;
    }
    p.block_bidirectional = shape_.window == AttentionShape::kBlock;
    p.sliding_window = shape_.sliding_window;
    p.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
    p.out = place(out);
    return p;
  }

  // Values become their magnitudes: the result is then the scale of its own rounding errors.
  void take_magnitudes() {
    for (Kv& value : values_) put(std::fabs(to_float(value)), value);
  }

  std::vector<T> out;

 private:
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng_); }

  template <class V>
  static void put(float value, V& to) {
    if constexpr (std::is_same_v<V, Float8>) {
      to = nearest_float8(value);
    } else {
      store_float(value, &to);
    }
  }

  template <class V>
  void fill(std::vector<V>& values, int64_t count, float spread) {
    std::normal_distribution<float> normal(0, spread);
    values.resize(count);
    for (V& value : values) put(normal(rng_), value);
  }

  void place_pages() {
    const int batch = static_cast<int>(shape_.rows.size());
    const int64_t slot_size = int64_t{shape_.kv_heads} * shape_.head_dim;
    std::vector<int32_t> order(num_pages_);
    for (int i = 0; i < num_pages_; ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), rng_);
    fill(keys_, num_pages_ * shape_.page_size * slot_size, 1.0f);
    fill(values_, num_pages_ * shape_.page_size * slot_size, 1.0f);
    for (int head = 0; head < shape_.kv_heads; ++head) key_scales_.push_back(1.0f - 0.3f * head);
    std::vector<bool> used(static_cast<size_t>(num_pages_) * shape_.page_size);
    table_.assign(static_cast<size_t>(batch) * pages_per_row_, INT32_MAX);
    int given = 0;
    for (int b = 0; b < batch; ++b) {
      const int length = prefix_lens_[b] + shape_.rows[b];
      for (int i = 0; i < ceil_div(length, shape_.page_size); ++i) {
        const int page = order[given++];
        table_[b * pages_per_row_ + i] = page;
        for (int at = 0; at < std::min(shape_.page_size, length - i * shape_.page_size); ++at) {
          used[static_cast<size_t>(page) * shape_.page_size + at] = true;
        }
      }
    }
    for (size_t slot = 0; slot < used.size(); ++slot) {
      if (used[slot]) continue;
      for (int64_t i = 0; i < slot_size; ++i) {
        put(NAN, keys_[slot * slot_size + i]);
        put(-NAN, values_[slot * slot_size + i]);
      }
    }
  }

  AttentionShape shape_;
  std::mt19937 rng_;
  int num_rows_ = 0, num_pages_ = 0, pages_per_row_ = 1, nodes_ = 1;
  std::vector<T> query_;
  std::vector<Kv> keys_, values_;
  std::vector<float> key_scales_, value_scale_{0.37f};
  std::vector<int32_t> table_, prefix_lens_, indptr_;
  std::vector<uint32_t> mask_;
};

}  // namespace specfast::testing
