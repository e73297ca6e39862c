// A CTA takes items (core/attention_plan.cuh): up to 64 or 128 rows, query rows times the heads
// that share a KV head, against a run of chunks or all of a request's keys. One warpgroup copies
// tiles of 64 keys and values into shared memory, across items and as far ahead as there is room;
// one or two, of 64 rows each, form scores and weighted values by wgmma. Few rows: each key is read
// once, and the bandwidth of HBM is the bound; many: the instructions between the products are.
// Only the window, the ends of the prefix and what a sliding window touches are masked.
//
// In the end those that have runs of a unit merge its chunks, each some columns. Sums are made in
// an order that positions decide (core/attention_fold.cuh), so how keys are shared out changes no
// bit.
#include "core/attention_copy.cuh"
#include "core/attention_merge.cuh"
#include "core/attention_reader.cuh"
#include "core/attention_simple.cuh"
#include "core/device_team.cuh"
#include "core/launch.cuh"
#include "ops/verify_attention.h"

namespace specfast {
namespace {

// What is used so rarely that it shall not keep registers.
template <class Object>
__device__ Object& in_local_memory(Object& object) {
  return *hide_address(&object);
}

// The threads that copy, when that is done.
template <class Sizes>
struct CopyingTeam {
  __device__ int rank() const { return static_cast<int>(threadIdx.x) - Sizes::kComputingThreads; }
  __device__ int size() const { return Sizes::kCopyingThreads; }
};

template <class Sizes>
struct Attention {
  using T = typename Sizes::T;
  using Rows = typename Sizes::Rows;
  using Sums = RowSums<Sizes::kHeadDim>;
  using Copier = TileCopier<Sizes>;
  using Reader = TileReader<Sizes>;
  using Workspace = AttentionWorkspace<Sizes>;

  const VerifyAttentionParams& p;
  const int most_places;
  AttentionPlan plan;

  __device__ Attention(const VerifyAttentionParams& params, int most_places)
      : p(params), most_places(most_places), plan(params, Sizes::shared().plan, Sizes::kTileRows) {}

  // Before the plan is made, whose barriers show what this writes.
  __device__ static void init_barriers() {
    if (threadIdx.x < 2) {
      init_barrier(Sizes::shared().task_found + threadIdx.x, 1);
      init_barrier(Sizes::shared().task_done + threadIdx.x, Sizes::kComputingThreads / 32);
    }
    if (threadIdx.x >= Sizes::kPlaces) return;
    init_barrier(Sizes::shared().filled + threadIdx.x, Copier::kArrivals);
    init_barrier(Sizes::shared().emptied + threadIdx.x, Reader::kArrivals);
  }

  __device__ void run() {
    if (threadIdx.x < Sizes::kComputingThreads) {
      if constexpr (Sizes::kMovesRegisters) grow_registers<Sizes::kComputingRegisters>();
      Reader reader(p);
      PiecePlace<2> place;
      SPECFAST_NO_UNROLL
      for (int number = blockIdx.x; number < plan.num_items(); number += gridDim.x) {
        wait_for_round(Sizes::shared().task_found + place.index, place.round);
        compute(reader, Sizes::shared().tasks[place.index]);
        __syncwarp();  // all lanes are done with the task
        if (threadIdx.x % 32 == 0) arrive(Sizes::shared().task_done + place.index);
        place.advance();
      }
      merge_chunks();
    } else {
      if constexpr (Sizes::kMovesRegisters) shrink_registers<Sizes::kCopyingRegisters>();
      Copier copier(p);
      PiecePlace<2> place;
      SPECFAST_NO_UNROLL
      for (int number = blockIdx.x; number < plan.num_items(); number += gridDim.x) {
        const AttentionTask task = find_task(number);
        if (threadIdx.x == Sizes::kComputingThreads) {
          wait_for_round(Sizes::shared().task_done + place.index, place.round - 1);
          Sizes::shared().tasks[place.index] = task;
          arrive(Sizes::shared().task_found + place.index);
        }
        place.advance();
        copier.copy(task.request, task.item.kv_head, KeyTiles::find(task.request, task.chunks));
      }
      clear_others();
    }
  }

 private:
  __device__ AttentionTask find_task(int number) const {
    AttentionTask task;
    task.item = plan.item(number);
    task.request = load_attention_request(p, task.item.b);
    task.chunks = plan.chunks(task.request, task.item.run);
    return task;
  }

  __device__ AttentionTile find_tile(const AttentionTask& task) const {
    AttentionTile tile;
    tile.request = task.request;
    tile.group = p.num_heads / p.num_kv_heads;
    tile.kv_head = task.item.kv_head;
    tile.first_row = task.item.tile * Sizes::kTileRows;
    tile.num_rows = min_of(tile.request.num_rows * tile.group - tile.first_row, Sizes::kTileRows);
    return tile;
  }

  __device__ void compute(Reader& reader, const AttentionTask& task) {
    if constexpr (Sizes::kQueryInRegisters) {
      SharedSums<Sizes::kHeadDim, Sizes::kComputingThreads> total;
      total.values = reinterpret_cast<float4*>(Sizes::shared().kept) + threadIdx.x;
      compute(reader, task, total);
    } else if constexpr (Sizes::kHeadDim <= 128) {
      Sums total;
      compute(reader, task, total);
    } else {
      Sums total;
      compute(reader, task, in_local_memory(total));
    }
  }

  template <class Total>
  __device__ void compute(Reader& reader, const AttentionTask& task, Total& total) {
    reader.begin(find_tile(task), task.chunks.has_window);
    const float c = score_factor<Sizes>(p, task.item.kv_head);
    const bool is_merged = task.item.runs > 1;
    const int rounds = is_merged ? task.chunks.last - task.chunks.first : 1;
    SPECFAST_NO_UNROLL
    for (int i = 0; i < rounds; ++i) {
      total.clear();
      const ChunkRange chunks = is_merged ? some_chunks(task.chunks, i, 1) : task.chunks;
      reader.read(KeyTiles::find(task.request, chunks), c,
                  [&](const Rows& rows) { total.add(rows, c); });
      if (is_merged) {
        store_chunk(task.item.number * plan.run_chunks() + i, total);
      } else {
        store_out(find_tile(task), reader, total);
      }
    }
  }

  template <class Total>
  __device__ void store_out(const AttentionTile& tile, const Reader& reader, const Total& sums) {
    const float factors[2] = {value_factor<Sizes>(p, tile.kv_head, sums.rows[0]),
                              value_factor<Sizes>(p, tile.kv_head, sums.rows[1])};
    SPECFAST_UNROLL
    for (int block = 0; block < Rows::kBlocks; ++block) {
      const float4 v = sums.block(block);
      const int column = block * 8 + threadIdx.x % 4 * 2;
      store_pair<T>(p, tile, reader.row(0), column, v.x * factors[0], v.y * factors[0]);
      store_pair<T>(p, tile, reader.row(1), column, v.z * factors[1], v.w * factors[1]);
    }
  }

  template <class Total>
  __device__ void store_chunk(int place, const Total& sums) {
    const Workspace workspace(p, most_places);
    if (static_cast<int>(threadIdx.x) >= workspace.lanes()) return;
    float4* values = workspace.values(place) + threadIdx.x;
    SPECFAST_UNROLL
    for (int block = 0; block < Rows::kBlocks; ++block) {
      __stcg(values + block * workspace.lanes(), sums.block(block));
    }
    if (threadIdx.x % 4 != 0) return;
    const RowSoftmax(&rows)[2] = sums.rows;
    __stcg(workspace.rows(place) + threadIdx.x / 4,
           make_float4(rows[0].max, rows[0].sum, rows[1].max, rows[1].sum));
  }

  // Only now, as a fence waits for whatever is under way.
  __device__ void count_runs(const Workspace& workspace) {
    sync_computing<Sizes>();  // chunks are written
    if (threadIdx.x >= 32) return;
    __threadfence();
    SPECFAST_NO_UNROLL
    for (int i = threadIdx.x; blockIdx.x + i * gridDim.x < plan.num_items(); i += 32) {
      const AttentionItem item = plan.item(blockIdx.x + i * gridDim.x);
      if (item.runs > 1) atomicAdd(workspace.counter(item.unit), 1);
    }
  }

  __device__ void merge_chunks() {
    if (plan.run_chunks() == 0) return;
    const Workspace workspace(p, most_places);
    count_runs(workspace);
    const ChunkMerger<Sizes> merger(p, workspace);
    SPECFAST_NO_UNROLL
    for (int number = blockIdx.x; number < plan.num_items(); number += gridDim.x) {
      const AttentionTask task = find_task(number);
      if (task.item.runs == 1) continue;
      const AttentionTile tile = find_tile(task);
      const int units =
          ceil_div(tile.request.num_rows * tile.group, Sizes::kTileRows) * p.num_kv_heads;
      const ChunkRange all = find_chunks(p, task.request);
      merger.run(task.item, tile, {units, plan.run_chunks(), all.last - all.first});
    }
  }

  // Rows of no request and rows that do not count.
  __device__ void clear_others() {
    CopyingTeam<Sizes> team;
    SPECFAST_NO_UNROLL
    for (int b = blockIdx.x; b < p.batch_size; b += gridDim.x) {
      const AttentionRequest r = load_attention_request(p, b);
      clear_rows<T>(team, p, r.first_row + r.num_rows, r.first_row + r.num_owned);
    }
    const int32_t before = clamp_to(p.qo_indptr[0], 0, p.num_rows);
    for (int32_t row = blockIdx.x; row < before; row += gridDim.x) {
      if (!is_owned(p, row)) clear_rows<T>(team, p, row, row + 1);
    }
    const int32_t behind = clamp_to(p.qo_indptr[p.batch_size], 0, p.num_rows);
    for (int32_t row = behind + blockIdx.x; row < p.num_rows; row += gridDim.x) {
      if (!is_owned(p, row)) clear_rows<T>(team, p, row, row + 1);
    }
  }
};

template <class Sizes>
__global__ void __launch_bounds__(Sizes::kThreads, Sizes::kCtasPerSm)
    verify_attention_kernel(const __grid_constant__ VerifyAttentionParams p, int most_places) {
  Attention<Sizes> attention(p, most_places);
  attention.init_barriers();
  begin_after_previous_kernel();
  attention.plan.make(most_places);
  attention.run();
}

int num_sms() {
  int device = 0;
  int count = 0;
  SPECFAST_CUDA_CHECK(cudaGetDevice(&device));
  SPECFAST_CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

template <class Sizes>
void launch_sized(const VerifyAttentionParams& p, CUstream_st* stream) {
  const int64_t group = p.num_heads / p.num_kv_heads;
  const int64_t units = int64_t{p.batch_size} * p.num_kv_heads *
                        ceil_div<int64_t>(p.max_rows * group, Sizes::kTileRows);
  const int64_t positions = min_of<int64_t>(int64_t{p.pages_per_row} * p.page_size, INT32_MAX);
  const int64_t most_items = units * (positions / kChunkKeys + 1);
  const int64_t blocks = clamp_to<int64_t>(most_items, 1, Sizes::kCtasPerSm * num_sms());
  LaunchShape shape{dim3(static_cast<unsigned>(blocks)), dim3(Sizes::kThreads)};
  shape.shared_bytes = sizeof(typename Sizes::Shared);
  shape.begins_early = true;
  shape.cooperative = p.workspace != nullptr;  // those with runs of a unit wait for each other
  const int most_places = AttentionWorkspace<Sizes>::find_most_places(p);
  launch(verify_attention_kernel<Sizes>, shape, stream, p, most_places);
}

template <class T, class Kv, int kHeadDim>
void launch_for_rows(const VerifyAttentionParams& p, CUstream_st* stream) {
  const int rows = min_of(p.max_rows, p.num_rows) * (p.num_heads / p.num_kv_heads);
  if (rows <= 64 || kHeadDim == 256) {
    launch_sized<AttentionSizes<T, Kv, kHeadDim, 1>>(p, stream);
  } else if constexpr (kHeadDim < 256) {
    launch_sized<AttentionSizes<T, Kv, kHeadDim, 2>>(p, stream);
  }
}

// Whether so many elements at once are possible.
template <class T>
bool is_aligned(const void* data, int64_t stride, int64_t other_stride, int64_t elements) {
  return reinterpret_cast<uintptr_t>(data) % (elements * sizeof(T)) == 0 &&
         stride % elements == 0 && other_stride % elements == 0;
}

// Whether the copies of 8 elements and the pairs of columns are possible.
template <class T, class Kv>
bool suits_tensor_cores(const VerifyAttentionParams& p) {
  constexpr int64_t kMostStride = INT32_MAX / 2;
  return (p.head_dim == 64 || p.head_dim == 128 || p.head_dim == 256) &&
         p.keys.slot_stride <= kMostStride && p.values.slot_stride <= kMostStride &&
         is_aligned<Kv>(p.keys.data, p.keys.slot_stride, p.keys.head_stride, 8) &&
         is_aligned<Kv>(p.values.data, p.values.slot_stride, p.values.head_stride, 8) &&
         is_aligned<T>(p.query, p.query_row_stride, p.query_head_stride, 2) &&
         is_aligned<T>(p.out, p.out_row_stride, p.out_head_stride, 2);
}

template <class T, class Kv>
void launch_tensor_cores(const VerifyAttentionParams& p, CUstream_st* stream) {
  if (p.head_dim == 64) {
    launch_for_rows<T, Kv, 64>(p, stream);
  } else if (p.head_dim == 128) {
    launch_for_rows<T, Kv, 128>(p, stream);
  } else {
    launch_for_rows<T, Kv, 256>(p, stream);
  }
}

}  // namespace

void verify_attention_cuda(const VerifyAttentionParams& p, CUstream_st* stream) {
  if (p.num_rows == 0) return;
  with_attention_types(p, [&](auto type, auto cache_type) {
    using T = decltype(type);
    using Kv = decltype(cache_type);
    if constexpr (sizeof(T) == 2) {
      if (suits_tensor_cores<T, Kv>(p)) return launch_tensor_cores<T, Kv>(p, stream);
    }
    LaunchShape shape{dim3(p.num_rows * p.num_heads), dim3(SimpleAttention::kThreads)};
    shape.begins_early = true;
    launch(simple_attention_kernel<T, Kv>, shape, stream, p);
  });
}

}  // namespace specfast
