// One cooperative launch for a whole block, whose CTAs meet once per step: every CTA adds the bias
// to its columns of all rows and tells their maxima, the tokens of greedy rows. A few rows sampled
// without filters are drawn by all CTAs, each looking at its own columns; other sampled rows are
// read again, by a cluster each, between two barriers. A step reads w2 (2 r V bytes, a part of
// which stays in shared memory), and reads and writes a row of logits per request.
//
// What a gated or recurrent head makes of an embedding every CTA makes for itself, so that nobody
// waits for it: 2 r^2 or 12 r^2 bytes from L2 per row, step and CTA.

#include "core/device_team.cuh"
#include "core/grid_barrier.cuh"
#include "core/launch.cuh"
#include "core/low_rank_bias.cuh"
#include "core/mixed_rows.cuh"
#include "core/spread_draw.cuh"
#include "core/tensor_core_bias.cuh"
#include "ops/sample_markov_block.h"

namespace specfast {
namespace {

// How much of what lies in shared memory.
struct MarkovPlan {
  int groups_to_keep;          // of a sampled row, in each part of its cluster
  int cached_units;            // of w2
  int cached_units_unsampled;  // of w2, where no cluster samples a row
};

// Of the workspace, before the keys.
constexpr int kBarrierWords = 8;
static_assert(kBarrierWords + PostedKeys::kWords == kMarkovWorkspaceWords);
static_assert(SharedKeys::kWords <= PostedKeys::kWords);
static_assert(PostedKeys::kMostRows == kFewMarkovRows && SharedKeys::kMostRows == kMaxMarkovRows);

// Requests [first, first + count) of one launch.
struct RequestGroup {
  int first;
  int count;
};

template <class T, class Bias>
class MarkovCta {
 public:
  using W = typename Bias::Weight;
  static constexpr bool kFew = Bias::kRows <= kFewMarkovRows;
  // A mixed row costs each CTA so much that larger groups would not save anything.
  static constexpr bool kMixes = kFew;

  __device__ MarkovCta(const MarkovBlockParams& p, RequestGroup group, const MarkovPlan& plan)
      : p_(p),
        group_(group),
        row_(p.vocab_size, plan.groups_to_keep),
        barrier_(reinterpret_cast<uint32_t*>(p.workspace)),
        keys_(p.workspace + kBarrierWords) {
    team_.arrive();
    bias_.place(team_, p.rank);
    if constexpr (kMixes) {
      mixer_.place(team_, p.head, p.rank, Bias::kRows);
      mixer_.forget(team_, Bias::kRows);
    }
    load_requests();
    if (sampled_ != 0) {
      row_.place(team_, 0);
      row_.logits.divide(team_);
    }
    bias_.place_cache(team_, sampled_ != 0 ? plan.cached_units : plan.cached_units_unsampled);
  }

  __device__ void run() {
    BiasStep<T, W> first = bias_step(0);
    bias_.divide(first);
    bias_.clear_embeddings();
    bias_.look_ahead(first);
    for (int step = 0; step < p_.num_steps; ++step) {
      __syncthreads();  // the tokens of the step before are known
      BiasStep<T, W> in = bias_step(step);
      embed(step);
      bias_.begin(in);
      if constexpr (!kFew) keys_.prepare(step);
      if (threadIdx.x == 0) maxima().nan_rows = 0;
      bias_.finish_embed();
      __syncthreads();  // embeddings are here
      in.biased = rows().biased;
      bias_.add(in, maxima());
      if (step + 1 < p_.num_steps) bias_.look_ahead(bias_step(step + 1));
      tell_maxima(step);
      if (!kFew || sampled_ != 0) {
        barrier_.sync();  // logits are written, maxima are known
        fence_global_copies();
      }
      take_tokens(step);
      draw(step);
      if (sampled_ != 0 && step + 1 < p_.num_steps) {
        barrier_.sync();  // sampled tokens are written
        int b = threadIdx.x;
        if (b < group_.count && (sampled_ >> b & 1) != 0) {
          previous()[b] = __ldcg(p_.tokens + (group_.first + b) * int64_t{p_.num_steps} + step);
        }
      }
    }
    row_.exchange.finish(team_);
    if (barrier_.arrive_last()) keys_.clear_all(group_.count);
  }

 private:
  using Keys = std::conditional_t<kFew, PostedKeys, SharedKeys>;

  __device__ static typename Bias::Maxima& maxima() {
    __shared__ typename Bias::Maxima maxima;
    return maxima;
  }
  // [kMaxMarkovRows] the target's ids; -1 before a row without one.
  __device__ static int64_t* previous() {
    __shared__ int64_t tokens[kMaxMarkovRows];
    return tokens;
  }
  // [kMaxMarkovRows] of greedy rows, of all steps so far.
  __device__ static int32_t* statuses() {
    __shared__ int32_t statuses[kMaxMarkovRows];
    return statuses;
  }
  struct Rows {
    unsigned long long here;     // not padded
    unsigned long long sampled;  // by clusters
    unsigned long long spread;   // sampled by all CTAs, each of which looks at its own columns
    unsigned long long biased;   // after a token that has an embedding
  };
  __device__ static Rows& rows() {
    __shared__ Rows rows;
    return rows;
  }

  __device__ void load_requests() {
    if (threadIdx.x == 0) rows() = {0, 0, 0, 0};
    __syncthreads();  // cleared before it is set
    int b = threadIdx.x;
    if (b < group_.count) {
      MarkovRequest request = MarkovRequest::load(p_, group_.first + b);
      previous()[b] = p_.anchors[group_.first + b];
      statuses()[b] = request.sampling.status;
      if (!request.padded) {
        atomicOr(&rows().here, 1ull << b);
        bool spreads = can_spread() && request.is_unfiltered();
        auto& of_kind = spreads ? rows().spread : rows().sampled;
        if (!request.sampling.greedy) atomicOr(&of_kind, 1ull << b);
      }
    }
    __syncthreads();  // all rows are known
    here_ = rows().here;
    sampled_ = rows().sampled;
    spread_ = rows().spread;
  }
  __device__ bool can_spread() const {
    int32_t most = ColumnRange::most(p_.vocab_size, Bias::kUnitColumns, gridDim.x);
    return kFew && most <= RowShare<T>::kMostIds;
  }
  __device__ bool is_spread(int row) const { return (spread_ >> row & 1) != 0; }
  __device__ bool is_greedy(int row) const {
    return ((here_ & ~sampled_ & ~spread_) >> row & 1) != 0;
  }

  __device__ void embed(int step) {
    if (threadIdx.x < 32) {
      uint64_t biased = 0;
      for (int b = threadIdx.x; b < group_.count; b += 32) {
        bool good =
            (here_ >> b & 1) != 0 && previous()[b] >= 0 && previous()[b] < p_.num_embeddings;
        if (good) biased |= 1ull << b;
      }
      uint32_t low = __reduce_or_sync(~0u, static_cast<uint32_t>(biased));
      uint32_t high = __reduce_or_sync(~0u, static_cast<uint32_t>(biased >> 32));
      if (threadIdx.x == 0) rows().biased = static_cast<uint64_t>(high) << 32 | low;
    }
    bool mixes = kMixes && p_.head.kind != MarkovKind::kVanilla;
    for (int b = threadIdx.x / 32; b < group_.count; b += Bias::kWarps) {
      bool good = (here_ >> b & 1) != 0 && previous()[b] >= 0 && previous()[b] < p_.num_embeddings;
      if (good && mixes) continue;
      const W* w1 = static_cast<const W*>(p_.w1);
      bias_.embed(b, good ? w1 + previous()[b] * p_.rank : nullptr);
    }
    if constexpr (kMixes) {
      if (mixes) embed_mixed(step);
    }
  }
  __device__ void embed_mixed(int step) {
    __syncthreads();  // which rows have a token before them is known
    using Mixed = MixedRows<W, decltype(bias_.embeddings())>;
    out_of_line_with_copy(
        Mixed{mixer_, bias_.embeddings(), static_cast<const W*>(p_.w1), p_.rank, previous(),
              rows().biased, int64_t{group_.first} * p_.num_steps + step, p_.num_steps},
        team_, [](auto& mixed, auto& team) { mixed.run(team); });
  }

  __device__ T* logits(int b, int step) const {
    return static_cast<T*>(p_.logits) + (group_.first + b) * p_.request_stride +
           step * p_.step_stride;
  }

  // All but which rows have a token before them.
  __device__ BiasStep<T, W> bias_step(int step) const {
    BiasStep<T, W> in{};
    in.vocab_size = p_.vocab_size;
    in.rank = p_.rank;
    in.num_rows = group_.count;
    in.w2 = static_cast<const W*>(p_.w2);
    in.logits = logits(0, step);
    in.row_stride = p_.request_stride;
    in.rows = here_;
    in.whole_words =
        reinterpret_cast<uintptr_t>(in.logits) % 16 == 0 && in.row_stride * sizeof(T) % 16 == 0;
    in.is_first = step == 0;
    in.is_last = step == p_.num_steps - 1;
    return in;
  }

  __device__ void tell_maxima(int step) {
    __syncthreads();  // all warps have reported
    int b = threadIdx.x;
    if (b < group_.count && (here_ >> b & 1) != 0) {
      uint64_t key = 0;
      for (int warp = 0; warp < Bias::kWarps; ++warp) {
        key = max_of(key, maxima().keys[warp][b]);
      }
      keys_.tell(step, b, key, (maxima().nan_rows >> b & 1) != 0);
    }
  }

  __device__ int clusters() const { return static_cast<int>(gridDim.x) / team_.parts(); }
  // Whether this CTA writes what a row gives.
  __device__ bool is_writer(int row) const {
    return team_.part() == 0 && row % clusters() == team_.index();
  }

  // The tokens of rows that no cluster samples.
  __device__ void take_tokens(int step) {
    if constexpr (kFew) {
      for (int b = threadIdx.x / 32; b < group_.count; b += Bias::kWarps) {
        if (is_greedy(b)) {
          KeyFlag best = keys_.largest(step, b);
          if (threadIdx.x % 32 == 0) take(step, b, MarkovDraw::greedy(best.key, best.flag));
        } else if (is_spread(b)) {
          MarkovDraw draw = draw_spread(step, b);
          if (threadIdx.x % 32 == 0) take(step, b, draw);
        }
      }
    } else {
      int b = threadIdx.x;
      if (b >= group_.count || !is_greedy(b)) return;
      KeyFlag best = keys_.largest(step, b);
      take(step, b, MarkovDraw::greedy(best.key, best.flag));
    }
  }
  __device__ void take(int step, int b, const MarkovDraw& draw) {
    previous()[b] = markov_target_id(p_, draw.column);
    if (!is_writer(b)) return;
    statuses()[b] |= draw.status | status_of_token(b);
    write_markov_draw(p_, group_.first + b, step, draw, statuses()[b]);
  }
  // By a warp of every CTA, which all give the same.
  __device__ MarkovDraw draw_spread(int step, int b) {
    ColumnRange columns = ColumnRange::of(p_.vocab_size, Bias::kUnitColumns);
    RowShare<T> share(logits(b, step), columns.begin, columns.end);
    RequestSampling sampling = MarkovRequest::load(p_, group_.first + b).sampling;
    KeyFlag best = keys_.largest(step, b);
    if (best.key == 0 || argmax_value(best.key) == INFINITY) {
      return MarkovDraw::greedy(best.key, best.flag);
    }
    PlainWeights weights{{argmax_value(best.key), Weights::scale2_of(sampling.scale)}};
    uint64_t random = sampling.random.bits(kDraftDraw, step, 0);
    auto [mass, column] = draw_from_shares(team_, keys_, share, weights, step, b, random);
    return MarkovDraw::unfiltered(best.key, best.flag, sampling.scale, mass, column);
  }
  __device__ int32_t status_of_token(int row) const {
    return (rows().biased >> row & 1) != 0 ? kStatusOk : kBadToken;
  }

  // Of rows that clusters sample, and of none where a row is padded.
  __device__ void draw(int step) {
    for (int row = team_.index(); row < group_.count; row += clusters()) {
      if (is_greedy(row) || is_spread(row)) continue;
      MarkovDraw draw = MarkovDraw::none();
      int32_t status = kStatusOk;
      if ((sampled_ >> row & 1) != 0) {
        MarkovRequest request = MarkovRequest::load(p_, group_.first + row);
        team_.sync_part();  // the row before has been looked at
        draw = MarkovDraw::of(row_, team_, logits(row, step), request.sampling, step);
        status = request.sampling.status | draw.status | status_of_token(row);
      }
      if (team_.part() != 0 || threadIdx.x != 0) continue;
      if (step > 0) status |= p_.status[group_.first + row];
      write_markov_draw(p_, group_.first + row, step, draw, status);
    }
  }

  const MarkovBlockParams& p_;
  RequestGroup group_;
  ClusterTeam team_;
  RowDistribution<RowForm<T, false, true>, false, true> row_;
  Bias bias_;
  MarkovMixer<W> mixer_;
  GridBarrier barrier_;
  Keys keys_;
  uint64_t here_ = 0;
  uint64_t sampled_ = 0;
  uint64_t spread_ = 0;
};

template <class T, class Bias>
__global__ void __launch_bounds__(32 * Bias::kWarps, 1)
    markov_block_kernel(const __grid_constant__ MarkovBlockParams p, RequestGroup group,
                        MarkovPlan plan) {
  MarkovCta<T, Bias>(p, group, plan).run();
}

// Measured on an H200. Rows that clusters sample want large ones, which leave some SMs idle.
inline int markov_cluster_size(const MarkovBlockParams& p, int rows, bool few) {
  const SamplingParams& s = p.sampling;
  bool filters = s.top_k != nullptr || s.top_p != nullptr || s.min_p != nullptr;
  if (few && !filters) return 2;
  if (rows <= 16) return 8;
  return rows <= 32 ? 4 : 2;
}

template <class T, class Bias>
void launch_group(const MarkovBlockParams& p, RequestGroup group, cudaStream_t stream) {
  auto kernel = markov_block_kernel<T, Bias>;
  int device = 0, most_bytes = 0;
  SPECFAST_CUDA_CHECK(cudaGetDevice(&device));
  SPECFAST_CUDA_CHECK(
      cudaDeviceGetAttribute(&most_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  cudaFuncAttributes attributes{};
  SPECFAST_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
  ScratchSizer sizer;
  Bias().place(sizer, p.rank);
  MarkovMixer<typename Bias::Weight>().place(sizer, p.head, p.rank, Bias::kRows);
  constexpr int kAlign = 64;
  int most = most_bytes - static_cast<int>(attributes.sharedSizeBytes) - kAlign;
  int room_unsampled = most - static_cast<int>(sizer.bytes());
  RowDistribution<RowForm<T, false, true>, false, true>(p.vocab_size, 0).place(sizer, 0);
  int room = most - static_cast<int>(sizer.bytes());

  LaunchShape launch_shape;
  launch_shape.block = dim3(32 * Bias::kWarps);
  launch_shape.cluster_size = min_of(
      markov_cluster_size(p, group.count, Bias::kRows <= kFewMarkovRows), cluster_size_limit());
  launch_shape.cooperative = true;
  MarkovPlan plan{};
  int group_bytes = static_cast<int>(sizeof(LogitGroup<T>));
  int share = GroupRange::of(p.vocab_size, 0, launch_shape.cluster_size).size();
  plan.groups_to_keep = clamp_to(room / group_bytes, 0, share);
  room -= plan.groups_to_keep * group_bytes;
  int unit_bytes = Bias::unit_bytes(p.rank);
  if (unit_bytes > 0) {
    plan.cached_units = max_of(room / unit_bytes, 0);
    plan.cached_units_unsampled = max_of(room_unsampled / unit_bytes, 0);
  }
  launch_shape.shared_bytes = most;
  int clusters = max_clusters(kernel, launch_shape);
  clusters = min_of(clusters, PostedWords::kMostCtas / launch_shape.cluster_size);
  launch_shape.grid = dim3(launch_shape.cluster_size * clusters);
  launch(kernel, launch_shape, stream, p, group, plan);
}

template <class T, class Bias>
void launch_groups(const MarkovBlockParams& p, cudaStream_t stream) {
  for (int first = 0; first < p.batch_size; first += Bias::kRows) {
    RequestGroup group{first, min_of(p.batch_size - first, Bias::kRows)};
    launch_group<T, Bias>(p, group, stream);
  }
}

template <class T, class W>
void launch_for(const MarkovBlockParams& p, cudaStream_t stream) {
  if constexpr (std::is_same_v<W, BFloat16>) {
    bool aligned =
        reinterpret_cast<uintptr_t>(p.w1) % 16 == 0 && reinterpret_cast<uintptr_t>(p.w2) % 16 == 0;
    if (p.rank % 32 == 0 && aligned) {
      bool mixes = p.head.kind != MarkovKind::kVanilla;
      bool few = p.batch_size <= 16 || mixes;
      if (p.rank == 256) {
        if (few) return launch_groups<T, TensorCoreBias<T, 1, 2, 8, 256>>(p, stream);
        return launch_groups<T, TensorCoreBias<T, 4, 4, 2, 256>>(p, stream);
      }
      if (few) return launch_groups<T, TensorCoreBias<T, 1, 2, 4, 0>>(p, stream);
      return launch_groups<T, TensorCoreBias<T, 4, 4, 2, 0>>(p, stream);
    }
  }
  launch_groups<T, ScalarBias<T, W>>(p, stream);
}

}  // namespace

void sample_markov_block_cuda(const MarkovBlockParams& p, CUstream_st* stream) {
  if (p.batch_size == 0) return;
  if (p.weights_type == FloatType::kFloat32) return launch_for<float, float>(p, stream);
  if (p.logits_type == FloatType::kFloat32) return launch_for<float, BFloat16>(p, stream);
  launch_for<BFloat16, BFloat16>(p, stream);
}

}  // namespace specfast
