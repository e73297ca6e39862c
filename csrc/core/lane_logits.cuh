#pragma once

#include "core/low_rank_bias.cuh"
#include "core/row_vector.cuh"
#include "core/tensor_core.cuh"

namespace specfast {

// Neighbouring logits of a row, kIds of them, as one lane reads, changes and writes them.
template <class T, int kIds>
struct LaneLogits {
  static constexpr int kWords = kIds * sizeof(T) / 4;

  // What one row has in the columns of a lane.
  struct Words {
    uint32_t at[kWords];
  };
  // Past the L1 cache, where nothing of what this launch writes may linger.
  __device__ __forceinline__ static Words load_words(const T* logits) {
    Words out;
    if constexpr (kWords % 4 == 0) {
#pragma unroll
      for (int i = 0; i < kWords; i += 4) {
        uint4 words = __ldcg(reinterpret_cast<const uint4*>(logits) + i / 4);
        out.at[i] = words.x;
        out.at[i + 1] = words.y;
        out.at[i + 2] = words.z;
        out.at[i + 3] = words.w;
      }
    } else {
      uint2 words = __ldcg(reinterpret_cast<const uint2*>(logits));
      out.at[0] = words.x;
      out.at[1] = words.y;
    }
    return out;
  }
  __device__ static T get(const Words& words, int i) {
    if constexpr (sizeof(T) == 4) {
      return __uint_as_float(words.at[i]);
    } else {
      return {static_cast<uint16_t>(words.at[i / 2] >> (16 * (i % 2)))};
    }
  }
  __device__ static void set(Words& words, int i, T value) {
    if constexpr (sizeof(T) == 4) {
      words.at[i] = __float_as_uint(value);
    } else {
      uint32_t keep = words.at[i / 2] & (i % 2 == 0 ? 0xffff0000u : 0xffffu);
      words.at[i / 2] = keep | static_cast<uint32_t>(value.bits) << (16 * (i % 2));
    }
  }
  __device__ __noinline__ static Words load_one_by_one(const T* logits, int32_t count) {
    Words out{};
#pragma unroll
    for (int i = 0; i < kIds; ++i) {
      if (i < count) set(out, i, logits[i]);
    }
    return out;
  }
  __device__ __noinline__ static void store_one_by_one(T* logits, int32_t count, Words words) {
#pragma unroll
    for (int i = 0; i < kIds; ++i) {
      if (i < count) logits[i] = get(words, i);
    }
  }

  // Adds to columns i and i + 1 and rounds; a sum that is no number is some NaN.
  __device__ __forceinline__ static void add_pair(Words& words, int i, float first, float second) {
    if constexpr (sizeof(T) == 4) {
      words.at[i] = __float_as_uint(__uint_as_float(words.at[i]) + first);
      words.at[i + 1] = __float_as_uint(__uint_as_float(words.at[i + 1]) + second);
    } else {
      uint32_t word = words.at[i / 2];
      words.at[i / 2] = rounded_pair(__uint_as_float(word << 16) + first,
                                     __uint_as_float(word & 0xffff0000u) + second);
    }
  }
  __device__ __forceinline__ static void store_words(T* logits, const Words& words) {
    if constexpr (kWords % 4 == 0) {
#pragma unroll
      for (int i = 0; i < kWords; i += 4)
        reinterpret_cast<uint4*>(logits)[i / 4] = vector(words, i);
    } else {
      *reinterpret_cast<uint2*>(logits) = {words.at[0], words.at[1]};
    }
  }

  // Words i to i + 3; where there are two, both twice.
  __device__ __forceinline__ static uint4 vector(const Words& words, int i) {
    if constexpr (kWords == 2) return {words.at[0], words.at[1], words.at[0], words.at[1]};
    return {words.at[i], words.at[i + 1], words.at[i + 2], words.at[i + 3]};
  }
  __device__ __forceinline__ static float largest_of(const Words& words) {
    float largest = RowVector<T>::max_nan(vector(words, 0));
    if constexpr (kWords > 4) {
      float other = RowVector<T>::max_nan(vector(words, 4));
      largest = other > largest || other != other ? other : largest;
    }
    return largest;
  }
  __device__ __forceinline__ static int first_equal(const Words& words, float value) {
    if constexpr (kWords > 4) {
      if (RowVector<T>::max_nan(vector(words, 0)) < value) {
        return 4 + RowVector<T>::first_equal(vector(words, 4), value);
      }
    }
    return RowVector<T>::first_equal(vector(words, 0), value);
  }

  // Takes the largest of columns `first` and following; whether there is a NaN, which gets its one
  // form.
  __device__ __forceinline__ static bool take(Words& words, int32_t first, bool here,
                                              ThreadBest& best) {
    float largest = largest_of(words);
    if (here && largest != largest) {
      Numbers numbers = numbers_of(words);
      words = numbers.words;
      best.take(numbers.largest, first + numbers.at);
      return true;
    }
    if (largest > best.value) best = {largest, first + first_equal(words, largest)};
    return false;
  }

  // What is rare.
  __device__ __noinline__ static Words without_padding(Words words, int32_t count) {
#pragma unroll
    for (int i = 0; i < kIds; ++i) {
      if (i >= count) set(words, i, rounded_to<T>(-INFINITY));
    }
    return words;
  }
  struct Numbers {
    Words words;  // NaN in its one form
    float largest;
    int32_t at;
  };
  __device__ __noinline__ static Numbers numbers_of(Words words) {
    ThreadBest best;
#pragma unroll
    for (int i = 0; i < kIds; ++i) {
      float value = to_float(get(words, i));
      best.take(value, i);
      if (value != value) set(words, i, rounded_to<T>(value));
    }
    return {words, best.value, best.id};
  }
};

}  // namespace specfast
