// One cooperative launch for a whole block, whose CTAs meet once per step, and once more where a
// request samples: every CTA adds the bias to its columns of all rows and gives their maxima to a
// key per row in global memory, which is the token of a greedy row; rows that are sampled are then
// read again, by a cluster each. A step reads w2 (2 r V bytes, of which a part stays in shared
// memory), and reads and writes a row of logits per request. Small batches wait for w2, large ones
// for w2 and logits.
//
// What a gated or recurrent head makes of an embedding every CTA makes for itself, so that nobody
// waits for it: 2 r^2 or 12 r^2 bytes from L2 per row, step and CTA.

#include "core/device_team.cuh"
#include "core/grid_barrier.cuh"
#include "core/launch.cuh"
#include "core/low_rank_bias.cuh"
#include "ops/sample_markov_block.h"

namespace specfast {
namespace {

constexpr int kThreads = 32 * RowMaxima::kWarps;
constexpr int kKeyTurns = 3;

// How much of what lies in shared memory.
struct MarkovPlan {
  int groups_to_keep;  // of a sampled row, in each part of its cluster
  int cached_units;    // of w2
  int hot_units;       // of w2 that each warp asks L2 to keep
};

// Requests [first, first + count) of one launch.
struct RequestGroup {
  int first;
  int count;
};

// The maxima of the rows, for one step after the other: words of step t are cleared a step before
// it, when all have read those of step t - 3.
class SharedKeys {
 public:
  __device__ explicit SharedKeys(uint64_t* workspace) : keys_(workspace + 8) {}

  __device__ void clear(int turn) {
    for (int i = threadIdx.x; i < 2 * kMaxMarkovRows; i += blockDim.x) at(turn)[i] = 0;
  }
  __device__ void add(int turn, int row, uint64_t key, bool has_nan) {
    if (key != 0) atomicMax(reinterpret_cast<unsigned long long*>(at(turn) + row), key);
    if (has_nan) at(turn)[kMaxMarkovRows + row] = 1;
  }
  __device__ uint64_t key(int turn, int row) { return __ldcg(at(turn) + row); }
  __device__ bool has_nan(int turn, int row) {
    return __ldcg(at(turn) + kMaxMarkovRows + row) != 0;
  }

 private:
  __device__ unsigned long long* at(int turn) {
    return reinterpret_cast<unsigned long long*>(keys_) + turn % kKeyTurns * 2 * kMaxMarkovRows;
  }
  uint64_t* keys_;
};

// The embeddings of a step under a gated or recurrent head, a row after the other by the whole CTA.
template <class W, class Embeddings>
struct MixedRows {
  const MarkovBlockParams& p;
  MarkovMixer<W> mixer;
  Embeddings embeddings;
  const int64_t* previous;
  uint64_t rows;       // bit b: row b has an embedding
  int64_t first_step;  // of row 0, over all requests

  template <class Team>
  __device__ void run(Team& team) {
    for (uint64_t left = rows; left != 0; left &= left - 1) {
      int b = __ffsll(static_cast<long long>(left)) - 1;
      const W* embedding = static_cast<const W*>(p.w1) + previous[b] * p.rank;
      mixer.mix(team, b, embedding, first_step + int64_t{b} * p.num_steps,
                [&](int32_t k, W value) { embeddings.put(b, k, value); });
    }
  }
};

template <class T, class Bias>
class MarkovCta {
 public:
  using W = typename Bias::Weight;
  // A mixed row costs each CTA so much that larger groups would not save anything.
  static constexpr bool kMixes = Bias::kRows <= 16;

  __device__ MarkovCta(const MarkovBlockParams& p, RequestGroup group, const MarkovPlan& plan)
      : p_(p),
        group_(group),
        row_(p.vocab_size, plan.groups_to_keep),
        barrier_(reinterpret_cast<uint32_t*>(p.workspace)),
        keys_(p.workspace) {
    team_.arrive();
    row_.place(team_, 0);
    bias_.place(team_, p.rank, plan.cached_units);
    bias_.hot_units = plan.hot_units;
    if constexpr (kMixes) {
      mixer_.place(team_, p.head, p.rank, Bias::kRows);
      mixer_.forget(team_, Bias::kRows);
    }
    row_.logits.divide(team_);
  }

  __device__ void run() {
    load_requests();
    for (int step = 0; step < p_.num_steps; ++step) {
      __syncthreads();  // the tokens of the step before are known
      embed(step);
      if (blockIdx.x == 0) keys_.clear(step + 1);
      if (threadIdx.x == 0) maxima().nan_rows = 0;
      __syncthreads();  // embeddings are here
      add_bias(step);
      barrier_.sync();  // logits are written, maxima are known
      fence_global_copies();
      draw(step);
      if (has_sampled_ && step + 1 < p_.num_steps) {
        barrier_.sync();  // sampled tokens are written
        int b = threadIdx.x;
        if (b < group_.count && (sampled_ >> b & 1) != 0) {
          previous()[b] = __ldcg(p_.tokens + (group_.first + b) * int64_t{p_.num_steps} + step);
        }
      }
    }
    row_.exchange.finish(team_);
    barrier_.arrive();
    if (blockIdx.x != 0) return;
    barrier_.wait();  // all have read the keys
    for (int turn = 0; turn < kKeyTurns; ++turn) keys_.clear(turn);
    if (threadIdx.x == 0) *p_.workspace = 0;
  }

 private:
  __device__ static RowMaxima& maxima() {
    __shared__ RowMaxima maxima;
    return maxima;
  }
  // [kMaxMarkovRows] the target's ids; -1 before a row without one.
  __device__ static int64_t* previous() {
    __shared__ int64_t tokens[kMaxMarkovRows];
    return tokens;
  }
  struct Rows {
    unsigned long long here;     // not padded
    unsigned long long sampled;  // not greedy
    unsigned long long biased;   // after a token that has an embedding
  };
  __device__ static Rows& rows() {
    __shared__ Rows rows;
    return rows;
  }

  __device__ void load_requests() {
    if (threadIdx.x == 0) rows() = {0, 0, 0};
    __syncthreads();  // cleared before it is set
    int b = threadIdx.x;
    if (b < group_.count) {
      MarkovRequest request = MarkovRequest::load(p_, group_.first + b);
      previous()[b] = p_.anchors[group_.first + b];
      if (!request.padded) atomicOr(&rows().here, 1ull << b);
      if (!request.padded && !request.sampling.greedy) atomicOr(&rows().sampled, 1ull << b);
    }
    __syncthreads();  // all rows are known
    here_ = rows().here;
    sampled_ = rows().sampled;
    has_sampled_ = sampled_ != 0;
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
    for (int b = threadIdx.x / 32; b < Bias::kRows; b += RowMaxima::kWarps) {
      bool good = b < group_.count && (here_ >> b & 1) != 0 && previous()[b] >= 0 &&
                  previous()[b] < p_.num_embeddings;
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
    out_of_line_with_copy(Mixed{p_, mixer_, bias_.embeddings(), previous(), rows().biased,
                                int64_t{group_.first} * p_.num_steps + step},
                          team_, [](auto& mixed, auto& team) { mixed.run(team); });
  }

  __device__ T* logits(int b, int step) const {
    return static_cast<T*>(p_.logits) + (group_.first + b) * p_.request_stride +
           step * p_.step_stride;
  }

  __device__ void add_bias(int step) {
    BiasStep<T, W> in{};
    in.vocab_size = p_.vocab_size;
    in.rank = p_.rank;
    in.num_rows = group_.count;
    in.w2 = static_cast<const W*>(p_.w2);
    in.logits = logits(0, step);
    in.row_stride = p_.request_stride;
    in.rows = here_;
    in.biased = rows().biased;
    in.whole_words =
        reinterpret_cast<uintptr_t>(in.logits) % 16 == 0 && in.row_stride * sizeof(T) % 16 == 0;
    in.is_first = step == 0;
    bias_.add(in, maxima());
    __syncthreads();  // all warps have reported
    int b = threadIdx.x;
    if (b < group_.count && (here_ >> b & 1) != 0) {
      uint64_t key = 0;
      for (int warp = 0; warp < RowMaxima::kWarps; ++warp) {
        key = max_of(key, maxima().keys[warp][b]);
      }
      keys_.add(step, b, key, (maxima().nan_rows >> b & 1) != 0);
    }
  }

  __device__ void draw(int step) {
    int b = threadIdx.x;
    uint64_t biased = rows().biased;
    int clusters = static_cast<int>(gridDim.x) / team_.parts();
    bool is_greedy = b < group_.count && (here_ & ~sampled_) >> b & 1;
    if (is_greedy) {
      uint64_t key = keys_.key(step, b);
      int32_t column = key == 0 ? 0 : argmax_id(key);
      previous()[b] = markov_target_id(p_, column);
    }
    for (int row = team_.index(); row < group_.count; row += clusters) {
      bool is_writer = team_.part() == 0 && threadIdx.x == 0;
      bool is_here = (here_ >> row & 1) != 0;
      MarkovDraw draw = MarkovDraw::none();
      int32_t status = kStatusOk;
      if (is_here) {
        MarkovRequest request = MarkovRequest::load(p_, group_.first + row);
        status = request.sampling.status | ((biased >> row & 1) != 0 ? kStatusOk : kBadToken);
        if ((sampled_ >> row & 1) != 0) {
          team_.sync_part();  // the row before has been looked at
          draw = MarkovDraw::of(row_, team_, logits(row, step), request.sampling, step);
        } else if (is_writer) {
          draw = MarkovDraw::greedy(keys_.key(step, row), keys_.has_nan(step, row));
        }
      }
      if (is_writer) write_markov_draw(p_, group_.first + row, step, draw, status);
    }
  }

  const MarkovBlockParams& p_;
  RequestGroup group_;
  ClusterTeam team_;
  RowDistribution<RowForm<T, false, true>, false, true> row_;
  Bias bias_;
  MarkovMixer<W> mixer_;
  GridBarrier barrier_;
  SharedKeys keys_;
  uint64_t here_ = 0;
  uint64_t sampled_ = 0;
  bool has_sampled_ = false;
};

template <class T, class Bias>
__global__ void __launch_bounds__(kThreads, 1)
    markov_block_kernel(const __grid_constant__ MarkovBlockParams p, RequestGroup group,
                        MarkovPlan plan) {
  MarkovCta<T, Bias>(p, group, plan).run();
}

// Measured on an H200.
struct MarkovShape {
  int cluster_size;
  int hot_units;
};
inline MarkovShape markov_shape(int rows) {
  if (rows <= 16) return {8, 0};
  if (rows <= 32) return {4, 0};
  return {2, 0};
}

template <class T, class Bias>
void launch_group(const MarkovBlockParams& p, RequestGroup group, MarkovShape shape,
                  cudaStream_t stream) {
  auto kernel = markov_block_kernel<T, Bias>;
  int device = 0, most_bytes = 0;
  SPECFAST_CUDA_CHECK(cudaGetDevice(&device));
  SPECFAST_CUDA_CHECK(
      cudaDeviceGetAttribute(&most_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  cudaFuncAttributes attributes{};
  SPECFAST_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
  ScratchSizer sizer;
  RowDistribution<RowForm<T, false, true>, false, true>(p.vocab_size, 0).place(sizer, 0);
  Bias().place(sizer, p.rank, 0);
  MarkovMixer<typename Bias::Weight>().place(sizer, p.head, p.rank, Bias::kRows);
  int room = most_bytes - static_cast<int>(attributes.sharedSizeBytes + sizer.bytes()) - 64;

  LaunchShape launch_shape;
  launch_shape.block = dim3(kThreads);
  launch_shape.cluster_size = min_of(shape.cluster_size, cluster_size_limit());
  launch_shape.cooperative = true;
  MarkovPlan plan{};
  plan.hot_units = shape.hot_units;
  int group_bytes = static_cast<int>(sizeof(LogitGroup<T>));
  int share = GroupRange::of(p.vocab_size, 0, launch_shape.cluster_size).size();
  plan.groups_to_keep = clamp_to(room / group_bytes, 0, share);
  room -= plan.groups_to_keep * group_bytes;
  int unit_bytes = Bias::unit_bytes(p.rank);
  if (unit_bytes > 0) plan.cached_units = max_of(room / unit_bytes, 0);
  launch_shape.shared_bytes = sizer.bytes() + plan.groups_to_keep * size_t(group_bytes) +
                              plan.cached_units * size_t(unit_bytes) + 64;
  launch_shape.grid = dim3(launch_shape.cluster_size * max_clusters(kernel, launch_shape));
  launch(kernel, launch_shape, stream, p, group, plan);
}

template <class T, class Bias>
void launch_groups(const MarkovBlockParams& p, cudaStream_t stream) {
  for (int first = 0; first < p.batch_size; first += Bias::kRows) {
    RequestGroup group{first, min_of(p.batch_size - first, Bias::kRows)};
    launch_group<T, Bias>(p, group, markov_shape(group.count), stream);
  }
}

template <class T, class W>
void launch_for(const MarkovBlockParams& p, cudaStream_t stream) {
  if constexpr (std::is_same_v<W, BFloat16>) {
    bool aligned =
        reinterpret_cast<uintptr_t>(p.w1) % 16 == 0 && reinterpret_cast<uintptr_t>(p.w2) % 16 == 0;
    if (p.rank % 32 == 0 && aligned) {
      bool mixes = p.head.kind != MarkovKind::kVanilla;
      if (p.batch_size <= 16 || mixes)
        return launch_groups<T, TensorCoreBias<T, 1, 2, 8>>(p, stream);
      return launch_groups<T, TensorCoreBias<T, 4, 4, 2>>(p, stream);
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
