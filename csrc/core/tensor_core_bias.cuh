#pragma once

#include "core/factor_tiles.cuh"
#include "core/lane_logits.cuh"
#include "core/low_rank_bias.cuh"
#include "core/warp_ring.cuh"

namespace specfast {

// By tensor cores, for ranks that are a multiple of 32 (kRank, or any where that is 0): as a matrix
// product of embeddings [kRows, r] and w2 [V, r] transposed, in units of 8 * kTiles columns per
// warp, of which kChunks * 32 factors are an item that is loaded at once. What is added to an
// element does not depend on the other rows. A part of w2 stays in shared memory from the first
// step on.
template <class T, int kRowTiles, int kTiles, int kChunks, int kRank>
class TensorCoreBias {
 public:
  using Weight = BFloat16;
  using Step = BiasStep<T, BFloat16>;
  static constexpr int kRows = 16 * kRowTiles;
  static constexpr int kWarps = 8;
  using Maxima = RowMaxima<kWarps, kRows>;
  static constexpr int kUnitColumns = 8 * kTiles;

  __host__ __device__ static int unit_bytes(int32_t rank) { return kUnitColumns * rank * 2; }

  template <class Arena>
  SPECFAST_HD void place(Arena& arena, int32_t rank) {
    any_chunks_ = rank / 32;
    factors_.place(arena, chunks());
    if (kStreams) ring_.place(arena);
  }
  template <class Arena>
  SPECFAST_HD void place_cache(Arena& arena, int units) {
    cached_units_ = units;
    cache_ = arena.template scratch<uint4>(units * chunks() * kTiles * 32);
  }

  // By all threads, before the first `embed`: what rows have that there are not.
  __device__ void clear_embeddings() { factors_.clear(chunks()); }
  // By a warp; a row without a token before it has no embedding.
  __device__ void embed(int row, const BFloat16* embedding) {
    factors_.fill(row, embedding, chunks());
  }
  // Before the barrier behind which embeddings are read.
  __device__ void finish_embed() { wait_for_copies(); }
  // Where a row's embedding can be written one number after the other.
  __device__ FactorTiles<kRowTiles> embeddings() const { return factors_; }

  // Of all steps the same.
  __device__ void divide(const Step& in) {
    ColumnRange columns = ColumnRange::of(in.vocab_size, kUnitColumns);
    int32_t end = ceil_div(columns.end, kUnitColumns);
    first_unit_ = ceil_div(columns.begin, kUnitColumns) + warp();
    my_units_ = max_of(ceil_div(end - first_unit_, kWarps), 0);
    here_ = of_lane(in.rows);
    if constexpr (kStreams) ring_.init();
  }

  // Asks for the first weights of a step, which wait for no token: into shared memory or into L2.
  // When the step before has been added.
  __device__ __forceinline__ void look_ahead(const Step& in) {
    if constexpr (kStreams) {
#pragma unroll
      for (int stage = 0; stage < kStages; ++stage) {
        if (stage < my_units_) load_logits(in, stage, next_[stage]);
        fetch(in, stage, stage);
      }
    } else {
      SPECFAST_NO_UNROLL
      for (int32_t unit = 0; unit < kAheadUnits; ++unit) ask_for(in, unit);
    }
  }

  // Loads the first weights of a step into registers, unless they are streamed.
  __device__ __forceinline__ void begin(const Step& in) {
    if constexpr (!kStreams) {
      int32_t items = my_units_ * items_per_unit();
      if (items > 0) load(in, 0, even_);
      if (items > 1) load(in, 1, odd_);
    }
  }

  // Behind `begin`, once embeddings are here.
  __device__ __forceinline__ void add(const Step& in, Maxima& maxima) {
    biased_ = of_lane(in.biased);
    if constexpr (kStreams) {
      add_streamed(in, maxima);
      return;
    }
    // Whole units at a time, if that is an even number of items.
    constexpr int kStep = kItems > 0 && kItems % 2 == 0 ? kItems : 2;
    int32_t items = my_units_ * items_per_unit();
    SPECFAST_NO_UNROLL
    for (int32_t first = 0; first < items; first += kStep) {
#pragma unroll
      for (int i = 0; i < kStep; ++i) {
        Item& item = i % 2 == 0 ? even_ : odd_;
        if (kStep == kItems || first + i < items) multiply(in, first + i, item, maxima);
        if (first + i + 2 < items) load(in, first + i + 2, item);
      }
    }
    report(maxima);
  }

 private:
  static constexpr int kIds = 2 * kTiles;  // neighbouring columns of one lane
  using Logits = LaneLogits<T, kIds>;
  using Words = typename Logits::Words;
  static constexpr int kLaneRows = 2 * kRowTiles;
  static constexpr bool kLogitsWithWeights = kRowTiles == 1;
  // Of each warp: what L2 is asked for before it is loaded, and what it is asked to keep from step
  // to step, 35 MB in all on an H200. Many rows of logits leave no room for that.
  static constexpr int kAheadUnits = kRowTiles == 1 ? 0 : 1;
  static constexpr int kHotUnits = kRowTiles == 1 ? 4 : 0;
  static constexpr int kItems = kRank / 32 / kChunks;  // per unit; 0: any
  static_assert(kRank % (32 * kChunks) == 0);

  // Whether units come through shared memory, a few of each warp at a time, and embeddings stay in
  // registers for a step. Many rows leave no registers for them, and then little is gained.
  static constexpr bool kStreams = kRowTiles == 1 && kRank > 0;
  static constexpr int kFixedChunks = kStreams ? kRank / 32 : 1;
  static constexpr int kStages = 2;
  static constexpr int kUnitWords = kUnitColumns * kRank / 8;  // of sixteen bytes

  struct Item {
    uint4 words[kChunks][kTiles];
    Words before[kLogitsWithWeights ? kLaneRows : 1];
  };

  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ static int warp() { return threadIdx.x / 32; }
  SPECFAST_HD int chunks() const { return kRank > 0 ? kRank / 32 : any_chunks_; }
  __device__ int items_per_unit() const { return kRank > 0 ? kItems : ceil_div(chunks(), kChunks); }
  __device__ bool has_chunk(int chunk) const { return kRank > 0 || chunk < chunks(); }

  __device__ int32_t first_column(int32_t unit) const {
    return (first_unit_ + unit * kWarps) * kUnitColumns;
  }
  // Row 8 r + lane / 4 of this lane: bit r.
  __device__ static uint32_t of_lane(uint64_t rows) {
    uint32_t out = 0;
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) {
      out |= static_cast<uint32_t>(rows >> (8 * r + lane() / 4) & 1) << r;
    }
    return out;
  }

  // The last units of the warps have the places.
  __device__ bool is_cached(int32_t unit) const {
    return (my_units_ - 1 - unit) * kWarps + warp() < cached_units_;
  }
  __device__ uint4* cached(int32_t unit, int chunk) const {
    int place = (my_units_ - 1 - unit) * kWarps + warp();
    return cache_ + (place * chunks() + chunk) * kTiles * 32 + lane();
  }

  // After the last step nothing is left that L2 would keep from others.
  __device__ static uint64_t l2_policy(const Step& in, int32_t unit) {
    return unit < kHotUnits && !in.is_last ? l2_keep() : l2_pass();
  }
  __device__ __forceinline__ void ask_for(const Step& in, int32_t unit) const {
    if (unit >= my_units_ || lane() != 0 || (!in.is_first && is_cached(unit))) return;
    int32_t column = first_column(unit);
    int32_t columns = min_of(kUnitColumns, in.vocab_size - column);
    prefetch_to_l2(in.w2 + static_cast<int64_t>(column) * in.rank, columns * in.rank * 2,
                   l2_policy(in, unit));
  }

  __device__ __forceinline__ void load(const Step& in, int32_t item, Item& out) const {
    int32_t unit = item / items_per_unit();
    int chunk = item % items_per_unit() * kChunks;
    if constexpr (kLogitsWithWeights) {
      // Before the weights, since what is asked for first arrives first.
      if (chunk == 0) load_logits(in, unit, out.before);
    }
    if (!in.is_first && is_cached(unit)) {
      const uint4* kept = cached(unit, chunk);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          if (has_chunk(chunk + c)) out.words[c][t] = kept[(c * kTiles + t) * 32];
        }
      }
      return;
    }
    // Column g of tile t is neighbour 2t + g % 2 of lane 4 (...) + g / 2.
    int g = lane() / 4;
    int32_t column = first_column(unit) + g / 2 * kIds + g % 2;
    uint64_t policy = l2_policy(in, unit);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      int64_t id = min_of(column + 2 * t, in.vocab_size - 1);
      const BFloat16* row = in.w2 + id * in.rank + 32 * chunk + 8 * (lane() % 4);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        if (has_chunk(chunk + c)) out.words[c][t] = load_once(row + 32 * c, policy);
      }
    }
  }

  __device__ __forceinline__ void multiply(const Step& in, int32_t item, const Item& weights,
                                           Maxima& maxima) {
    int32_t unit = item / items_per_unit();
    int chunk = item % items_per_unit() * kChunks;
    if (chunk == 0) {
      clear_sums();
      if constexpr (kLogitsWithWeights) {
#pragma unroll
        for (int r = 0; r < kLaneRows; ++r) before_[r] = weights.before[r];
      } else {
        ask_for(in, unit + kAheadUnits);
        load_logits(in, unit, before_);
      }
    }
    bool keeps = in.is_first && is_cached(unit);
    uint4* kept = cached(unit, chunk);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (!has_chunk(chunk + c)) break;
      if (keeps) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) kept[(c * kTiles + t) * 32] = weights.words[c][t];
      }
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        multiply_chunk(m, factors_.of_lane(chunk + c, 0, m), factors_.of_lane(chunk + c, 1, m),
                       weights.words[c]);
      }
    }
    if (chunk + kChunks >= chunks()) finish_unit(in, unit, maxima);
  }

  __device__ uint4* place_of(int32_t unit, int stage) const {
    if (is_cached(unit)) return cached(unit, 0) - lane();
    return ring_.at(stage);
  }
  __device__ bool is_fetched(const Step& in, int32_t unit) const {
    return unit < my_units_ && (in.is_first || !is_cached(unit));
  }
  // When the warp has done with the unit that was there.
  __device__ __forceinline__ void fetch(const Step& in, int32_t unit, int stage) const {
    if (lane() != 0 || !is_fetched(in, unit)) return;
    int32_t column = first_column(unit);
    int bytes = min_of(kUnitColumns, in.vocab_size - column) * kRank * 2;
    ring_.start(stage, place_of(unit, stage), in.w2 + static_cast<int64_t>(column) * kRank, bytes,
                l2_policy(in, unit));
  }

  __device__ __forceinline__ void add_streamed(const Step& in, Maxima& maxima) {
    uint4 held[kFixedChunks][2];
#pragma unroll
    for (int c = 0; c < kFixedChunks; ++c) {
#pragma unroll
      for (int half = 0; half < 2; ++half) held[c][half] = factors_.of_lane(c, half, 0);
    }
    SPECFAST_NO_UNROLL
    for (int32_t first = 0; first < my_units_; first += kStages) {
#pragma unroll
      for (int stage = 0; stage < kStages; ++stage) {
        int32_t unit = first + stage;
        if (unit >= my_units_) break;
#pragma unroll
        for (int r = 0; r < kLaneRows; ++r) before_[r] = next_[stage][r];
        if (unit + kStages < my_units_) load_logits(in, unit + kStages, next_[stage]);
        if (is_fetched(in, unit)) ring_.wait(stage);
        clear_sums();
        multiply_streamed(place_of(unit, stage), held);
        __syncwarp();
        fetch(in, unit + kStages, stage);
        finish_unit(in, unit, maxima);
      }
    }
    report(maxima);
  }
  // Rows lie 2 r bytes apart, in the same banks: lanes of odd columns take their chunks in another
  // order.
  __device__ __forceinline__ void multiply_streamed(const uint4* unit,
                                                    const uint4 (&held)[kFixedChunks][2]) {
    int g = lane() / 4;
    const uint4* rows = unit + (g / 2 * kIds + g % 2) * (kRank / 8) + lane() % 4;
    int swap = g % 2 * 4;
#pragma unroll
    for (int c = 0; c < kFixedChunks; c += 2) {
      uint4 words[2][kTiles];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const uint4* row = rows + 2 * t * (kRank / 8) + 4 * c;
        uint4 first = row[swap];
        uint4 second = row[4 - swap];
        words[0][t] = swap != 0 ? second : first;
        words[1][t] = swap != 0 ? first : second;
      }
      multiply_chunk(0, held[c][0], held[c][1], words[0]);
      multiply_chunk(0, held[c + 1][0], held[c + 1][1], words[1]);
    }
  }

  // Adds the products of 16 rows with a chunk of a unit.
  __device__ __forceinline__ void multiply_chunk(int m, const uint4& low, const uint4& high,
                                                 const uint4 (&words)[kTiles]) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      multiply_add_16x8x16(sums_[m][t], low, words[t].x, words[t].y);
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      multiply_add_16x8x16(sums_[m][t], high, words[t].z, words[t].w);
    }
  }
  __device__ __forceinline__ void clear_sums() {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums_[m][t][i] = 0.0f;
      }
    }
  }

  // First column of this lane's.
  __device__ int32_t first_id(int32_t unit) const { return first_column(unit) + lane() % 4 * kIds; }
  // Whether all rows of a unit can be read as vectors: the same on all lanes.
  __device__ bool is_whole(const Step& in, int32_t unit) const {
    return in.whole_words && first_column(unit) + kUnitColumns <= in.vocab_size;
  }

  __device__ __forceinline__ void load_logits(const Step& in, int32_t unit, Words* out) const {
    int32_t ids = first_id(unit);
    const T* logits = in.logits + lane() / 4 * in.row_stride + ids;
    if (is_whole(in, unit)) {
#pragma unroll
      for (int r = 0; r < kLaneRows; ++r) {
        if ((here_ >> r & 1) != 0) out[r] = Logits::load_words(logits + 8 * r * in.row_stride);
      }
      return;
    }
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) {
      if ((here_ >> r & 1) == 0) continue;
      out[r] = Logits::load_one_by_one(logits + 8 * r * in.row_stride, in.vocab_size - ids);
    }
  }
  __device__ __forceinline__ void finish_unit(const Step& in, int32_t unit, Maxima& maxima) {
    int32_t ids = first_id(unit);
    T* logits = in.logits + lane() / 4 * in.row_stride + ids;
    bool whole = is_whole(in, unit);
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) {
      if (kRowTiles == 1 && 8 * r >= in.num_rows) break;
      bool here = (here_ >> r & 1) != 0;
      bool biased = (biased_ >> r & 1) != 0;
      Words words = before_[r];
#pragma unroll
      for (int i = 0; i < kIds; i += 2) {
        const float* sums = &sums_[r / 2][i / 2][2 * (r % 2)];
        Logits::add_pair(words, i, biased ? sums[0] : 0.0f, biased ? sums[1] : 0.0f);
      }
      if (!whole) words = Logits::without_padding(words, in.vocab_size - ids);
      if (Logits::take(words, ids, here, best_[r])) {
        atomicOr(&maxima.nan_rows, 1ull << (8 * r + lane() / 4));
      }
      bool stores = here && biased;
      T* row = logits + 8 * r * in.row_stride;
      if (stores && whole) Logits::store_words(row, words);
      if (stores && !whole) Logits::store_one_by_one(row, in.vocab_size - ids, words);
    }
  }

  __device__ __forceinline__ void report(Maxima& maxima) {
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) {
      uint64_t key = best_[r].key();
      key = max_of<uint64_t>(key, __shfl_xor_sync(~0u, key, 1));
      key = max_of<uint64_t>(key, __shfl_xor_sync(~0u, key, 2));
      if (lane() % 4 == 0) maxima.keys[warp()][8 * r + lane() / 4] = key;
      best_[r] = {};
    }
  }

  FactorTiles<kRowTiles> factors_;
  WarpRing<kWarps, kStages, kUnitWords> ring_;  // if streamed
  uint4* cache_ = nullptr;                      // scratch [cached_units, chunks, kTiles, 32]
  int cached_units_ = 0;
  int any_chunks_ = 0;  // of 32 factors
  int32_t first_unit_ = 0;
  int32_t my_units_ = 0;
  uint32_t here_ = 0;               // rows of this lane that are not padded
  uint32_t biased_ = 0;             // those after a token that has an embedding
  Item even_, odd_;                 // weights under way, if not streamed
  Words next_[kStages][kLaneRows];  // logits under way, if streamed
  float sums_[kRowTiles][kTiles][4];
  Words before_[kLaneRows];
  ThreadBest best_[kLaneRows];
};

}  // namespace specfast
