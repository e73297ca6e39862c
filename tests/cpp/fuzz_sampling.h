#pragma once

#include <cfloat>
#include <climits>
#include <cmath>

#include "core/row_form.h"
#include "core/sampling_params.h"
#include "fuzz_memory.h"

namespace specfast::testing {

// Random pieces of a call that sampled ops share. What is `sound` keeps every contract of the
// Params structs; what is not breaks them by data that only a device sees.
class SamplingFuzz {
 public:
  SamplingFuzz(Dice& dice_, FuzzMemory& memory_, bool sound_)
      : dice(dice_), memory(memory_), sound(sound_) {}

  // Mostly few tokens, so that drafts are accepted; else around groups of 8, words, and tiles.
  int vocab_size(int percent_large) {
    if (dice.chance(percent_large)) return dice.choose({1024, 2048, 3072}) + dice.pick(-2, 2);
    if (dice.chance(70)) return dice.pick(1, 12);
    return dice.choose({16, 24, 32, 64, 128, 256, 296}) + dice.pick(-2, 2);
  }

  int32_t wild_int(int low, int high) {
    if (sound || dice.chance(70)) return dice.pick(low, high);
    return dice.choose({-1, -2, INT_MIN, INT_MAX, INT_MAX - 1, high + 1, high + 2, low - 1});
  }

  template <class F>
  auto* filled(int64_t n, F value) {
    auto* array = memory.input<decltype(value(int64_t{0}))>(n);
    for (int64_t i = 0; i < n; ++i) array[i] = value(i);
    return array;
  }

  IdView ids(int64_t n, int low, int high) {
    if (dice.chance(50)) {
      return {filled(n, [&](int64_t) { return wild_int(low, high); }), false};
    }
    auto wide = [&](int64_t) -> int64_t {
      if (sound || dice.chance(95)) return wild_int(low, high);
      return dice.choose({INT64_MIN, INT64_MAX, int64_t{1} << 32, int64_t{UINT32_MAX}});
    };
    return {filled(n, wide), true};
  }

  // Logits [rows, >= vocab] that begin at any element.
  TargetRows logits(int64_t rows, int vocab) {
    TargetRows out{};
    out.logits_stride = vocab + (dice.chance(50) ? dice.pick(0, 9) : 0);
    int64_t n = rows == 0 ? 0 : (rows - 1) * out.logits_stride + vocab;
    int offset = dice.chance(50) ? dice.pick(0, 7) : 0;
    out.logits_type = dice.choose({FloatType::kFloat32, FloatType::kBFloat16, FloatType::kFloat16});
    auto fill = [&](auto* values) {
      for (int64_t row = 0; row < rows; ++row) {
        fill_row(values + row * out.logits_stride,
                 row + 1 == rows ? vocab : static_cast<int>(out.logits_stride));
      }
      out.logits = values;
    };
    if (out.logits_type == FloatType::kFloat32) {
      fill(memory.input<float>(n, offset));
    } else if (out.logits_type == FloatType::kBFloat16) {
      fill(memory.input<BFloat16>(n, offset));
    } else {
      fill(memory.input<Float16>(n, offset));
    }
    return out;
  }

  SamplingParams sampling(int batch_size, int64_t num_rows, int vocab) {
    SamplingParams p{};
    auto floats = [&](std::initializer_list<float> good) {
      return filled(batch_size, [&, good](int64_t) {
        if (sound || dice.chance(90)) return dice.choose(good);
        return dice.choose({NAN, INFINITY, -INFINITY, -1.0f, 0.0f, 2.0f, FLT_MAX, -0.0f, 1e-45f});
      });
    };
    auto optional = [&](int percent, std::initializer_list<float> good) {
      return dice.chance(percent) ? floats(good) : nullptr;
    };
    p.temperature = floats({0.0f, 9e-6f, 1e-5f, 0.3f, 1.0f, 1.0f, 1.0f, 2.0f, 50.0f, 3e38f});
    p.seeds = filled(batch_size, [&](int64_t) { return static_cast<int64_t>(dice.bits()); });
    if (dice.chance(50)) {
      p.top_k = filled(batch_size, [&](int64_t) {
        return dice.chance(80) ? dice.choose({0, -1, 1, 2, 3, vocab - 1, vocab, INT_MAX})
                               : wild_int(0, 20);
      });
      // Sound rules out what is no count.
      for (int b = 0; sound && b < batch_size; ++b) {
        if (p.top_k[b] < -1) const_cast<int32_t*>(p.top_k)[b] = 1;
      }
    }
    p.top_p = optional(40, {1.0f, 0.95f, 0.5f, 0.1f, 1e-45f});
    p.min_p = optional(30, {0.0f, 1e-45f, 0.05f, 0.5f, 1.0f});
    if (dice.chance(40)) {
      p.repetition_penalty = optional(60, {1.0f, 1.3f, 0.5f, 1e-30f, 1e30f});
      p.presence_penalty = optional(60, {0.0f, 0.6f, -0.4f, 1e38f});
      p.frequency_penalty = optional(60, {0.0f, 0.3f, -0.2f});
    }
    if (dice.chance(30)) add_edits(p, batch_size, vocab);
    if (dice.chance(30)) {
      int words = ceil_div(vocab, 32);
      p.token_bitmask_stride = words + dice.pick(0, 2);
      uint64_t density = dice.pick(0, 3);
      p.token_bitmask = filled(num_rows * p.token_bitmask_stride, [&](int64_t) {
        uint64_t word = dice.bits();
        if (density == 0) word |= dice.bits();
        if (density >= 2) word &= dice.bits();
        if (density >= 3) word &= dice.bits() & dice.bits();
        return static_cast<int32_t>(word);
      });
    }
    return p;
  }

  float* coins(int64_t n) {
    return filled(n, [&](int64_t) {
      if (dice.chance(80)) return dice.uniform();
      if (sound) return dice.choose({0.0f, -0.0f, 1.0f - 0x1p-24f, 1e-45f, 0.5f});
      return dice.choose({NAN, INFINITY, -INFINITY, -1.0f, 1.0f, 2.0f, 0.0f});
    });
  }

  Dice& dice;
  FuzzMemory& memory;
  const bool sound;

 private:
  static void store(float* at, float value) { *at = value; }
  static void store(BFloat16* at, float value) {
    at->bits = static_cast<uint16_t>(float_bits(value) >> 16);
  }
  // Exact for the small multiples of a power of two that most rows hold, else cut off.
  static void store(Float16* at, float value) {
    uint32_t bits = float_bits(value);
    uint32_t sign = bits >> 16 & 0x8000u;
    int exponent = static_cast<int>(bits >> 23 & 0xffu) - 112;
    uint32_t digits = bits >> 13 & 0x3ffu;
    if (std::isnan(value)) digits |= 1;
    if (exponent >= 31) exponent = 31;
    if (exponent == 31 && !std::isnan(value)) digits = 0;
    at->bits = static_cast<uint16_t>(
        sign | (exponent > 0 ? static_cast<uint32_t>(exponent) << 10 | digits : digits >> 4));
  }

  template <class T>
  void fill_row(T* row, int n) {
    int kind = dice.pick(0, 9);
    bool faulty = !sound && dice.chance(50);
    float scale = dice.choose({0.25f, 1.0f, 1.0f, 4.0f, 1e-40f, 1e30f});
    for (int i = 0; i < n; ++i) {
      float value = static_cast<float>(dice.pick(-8, 8)) * 0.5f;
      if (kind == 0) value = 3.0f;
      if (kind >= 6) value = (dice.uniform() - 0.5f) * 8.0f;
      if (kind == 9) value *= scale;
      if (kind >= 8 && dice.chance(30)) value = dice.chance(50) ? -INFINITY : -0.0f;
      if (faulty && dice.chance(20)) {
        value = dice.choose({NAN, -NAN, INFINITY, -INFINITY, FLT_MAX, -FLT_MAX, 1e-45f, -0.0f});
      }
      store(row + i, value);
    }
    if (sound || dice.chance(90)) return;
    float all = dice.choose({NAN, -INFINITY, INFINITY});
    for (int i = 0; i < n; ++i) store(row + i, all);
  }

  void add_edits(SamplingParams& p, int batch_size, int vocab) {
    int per_request = dice.pick(0, min_of(vocab, 6));
    int num_edits = batch_size * per_request;
    // Ascending within a request, which unsound ones need not be.
    p.edit_ids = filled(num_edits, [&](int64_t i) {
      int at = static_cast<int>(i) % max_of(per_request, 1);
      return wild_int(at * vocab / max_of(per_request, 1), at * vocab / max_of(per_request, 1));
    });
    p.edit_counts = filled(num_edits, [&](int64_t) { return wild_int(-1, 3); });
    if (dice.chance(60)) {
      p.edit_biases = filled(num_edits, [&](int64_t) {
        if (sound) return dice.choose({0.0f, 1.5f, -2.0f, 100.0f});
        return dice.choose({0.0f, 1.5f, -100.0f, -INFINITY, INFINITY, NAN});
      });
    }
    p.num_edits = num_edits;
    p.edit_indptr = filled(batch_size + 1, [&](int64_t b) {
      int at = static_cast<int>(b) * per_request;
      return wild_int(at, at);
    });
  }
};

}  // namespace specfast::testing
