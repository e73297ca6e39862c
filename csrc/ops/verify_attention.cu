// A CTA takes items (core/attention_plan.cuh): up to 128 rows, query rows times the heads that
// share a KV head, against one chunk, one span or all of a request's keys. All threads copy tiles
// of 16 to 32 KB of keys and as much of values into shared memory, two tiles ahead or more; tensor
// cores form scores and weighted values: up to 32 rows by mma.sync, with the keys of a tile divided
// between warps, more by wgmma. Few rows: each key is read once, and the bandwidth of HBM is the
// bound; many: the tensor cores are. Only the window, the ends of the prefix and what a sliding
// window touches are masked.
//
// The CTA that is last to finish a part of a unit merges all of them. Sums are made in an order
// that positions and the rows of the request decide (core/attention_fold.cuh), so how keys are
// shared out changes no bit.
#include "core/attention_merge.cuh"
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

template <class Sizes>
struct Attention {
  using T = typename Sizes::T;
  using Rows = typename Sizes::Rows;
  using Sums = RowSums<Sizes::kHeadDim>;
  using Workspace = AttentionWorkspace<Sizes>;
  static constexpr bool kSpanInRegisters = Sizes::kHeadDim == 64;

  const VerifyAttentionParams& p;
  typename Sizes::Shared& shared;
  const Workspace workspace;
  const AttentionPlan plan;
  const float c;
  const int lane;

  __device__ Attention(const VerifyAttentionParams& params, int most_items,
                       typename Sizes::Shared& memory)
      : p(params),
        shared(memory),
        workspace(params, most_items),
        plan(params, memory.plan, Sizes::kTileRows, most_items),
        c(params.scale * 1.44269504f),
        lane(threadIdx.x % 32) {}

  __device__ void run() {
    SPECFAST_NO_UNROLL
    for (int number = blockIdx.x; number < plan.num_items(); number += gridDim.x) {
      run_item(number, plan.item(number));
    }
    clear_others();
  }

 private:
  __device__ void run_item(int number, const AttentionItem& item) {
    AttentionTile tile;
    tile.request = load_attention_request(p, item.b);
    tile.group = p.num_heads / p.num_kv_heads;
    tile.kv_head = item.kv_head;
    tile.first_row = item.tile * Sizes::kTileRows;
    tile.num_rows = min_of(tile.request.num_rows * tile.group - tile.first_row, Sizes::kTileRows);
    const ChunkRange chunks = plan.chunks(tile.request, item.part);

    const WarpPlace place = WarpPlace::find<Sizes>(tile);

    Rows rows;
    rows.load_query(query(tile, place.row(0)), query(tile, place.row(1)));
    rows.clear();
    Sums span_storage;
    Sums whole_storage;
    Sums& span = kSpanInRegisters ? span_storage : in_local_memory(span_storage);
    Sums& whole = in_local_memory(whole_storage);
    const int first_span = chunks.first / kSpanChunks;
    const int last_span = (chunks.last - 1) / kSpanChunks;
    for (int number_of_span = first_span; number_of_span <= last_span; ++number_of_span) {
      const ChunkRange part{max_of(chunks.first, number_of_span * kSpanChunks),
                            min_of(chunks.last, (number_of_span + 1) * kSpanChunks)};
      SpanReader<Sizes> reader(p, shared, tile, place, part);
      span.clear();
      reader.run(rows, c, [&] { span.add(rows, c); });
      if (first_span == last_span) break;
      if (number_of_span == first_span) whole.clear();
      whole.add(span, c);
      if (number_of_span == last_span) span = whole;
    }

    if (item.parts == 1) {
      if (place.keeps_rows()) store_out(tile, place, span);
    } else {
      if (place.keeps_rows()) store_part(number, place, span);
      if (is_last_part(item)) merge(item, tile);
    }
  }

  __device__ const T* query(const AttentionTile& tile, int row) const {
    if (row >= tile.num_rows) return nullptr;
    return tile_row(tile, row, static_cast<const T*>(p.query), p.query_row_stride,
                    p.query_head_stride);
  }

  __device__ void store_out(const AttentionTile& tile, const WarpPlace& place, const Sums& sums) {
    const float factors[2] = {normalizer(sums.rows[0]), normalizer(sums.rows[1])};
    SPECFAST_UNROLL
    for (int block = 0; block < Rows::kBlocks; ++block) {
      SPECFAST_UNROLL
      for (int r = 0; r < 2; ++r) {
        store_pair<T>(p, tile, place.row(r), block * 8 + lane % 4 * 2,
                      sums.values[block][2 * r] * factors[r],
                      sums.values[block][2 * r + 1] * factors[r]);
      }
    }
  }

  __device__ void store_part(int number, const WarpPlace& place, const Sums& sums) {
    if (place.row_block * 32 >= workspace.lanes()) return;
    float4* values = workspace.values(number) + place.row_block * 32 + lane;
    SPECFAST_UNROLL
    for (int block = 0; block < Rows::kBlocks; ++block) {
      __stcg(values + block * workspace.lanes(), sums.block(block));
    }
    if (lane % 4 != 0) return;
    SPECFAST_UNROLL
    for (int r = 0; r < 2; ++r) {
      RowSoftmax* to = workspace.rows(number) + place.row(r);
      __stcg(reinterpret_cast<float2*>(to), make_float2(sums.rows[r].max, sums.rows[r].sum));
    }
  }

  // Whether all other parts of the unit are written; then the counter is as it was before the call.
  __device__ bool is_last_part(const AttentionItem& item) {
    __threadfence();
    __syncthreads();  // the part is written before it is counted
    if (threadIdx.x == 0) {
      int32_t* counter = workspace.counter(item.unit);
      shared.is_last = atomicAdd(counter, 1) == item.parts - 1;
      if (shared.is_last) *counter = 0;
      __threadfence();
    }
    __syncthreads();  // is_last is written
    return shared.is_last;
  }

  __device__ void merge(const AttentionItem& item, const AttentionTile& tile) {
    const int units =
        ceil_div(tile.request.num_rows * tile.group, Sizes::kTileRows) * p.num_kv_heads;
    const bool of_chunks = plan.part_size() == PartSize::kChunk;
    const int first_place = of_chunks ? plan.first_chunk(tile.request) : 0;
    PartMerger<Sizes> merger(p, shared, workspace, tile, c);
    merger.run(item, units, first_place, of_chunks ? kSpanChunks : 1);
  }

  // Rows of no request and rows that do not count.
  __device__ void clear_others() {
    BlockTeam team;
    SPECFAST_NO_UNROLL
    for (int b = blockIdx.x; b < p.batch_size; b += gridDim.x) {
      const AttentionRequest r = load_attention_request(p, b);
      clear_rows<T>(team, p, r.first_row + r.num_rows, r.first_row + r.num_owned);
    }
    const int32_t before = clamp_to(p.qo_indptr[0], 0, p.num_rows);
    for (int32_t row = blockIdx.x; row < before; row += gridDim.x) {
      clear_rows<T>(team, p, row, row + 1);
    }
    const int32_t behind = clamp_to(p.qo_indptr[p.batch_size], 0, p.num_rows);
    for (int32_t row = behind + blockIdx.x; row < p.num_rows; row += gridDim.x) {
      clear_rows<T>(team, p, row, row + 1);
    }
  }
};

template <class Sizes>
__global__ void __launch_bounds__(Sizes::kThreads, Sizes::kCtasPerSm)
    verify_attention_kernel(const __grid_constant__ VerifyAttentionParams p, int most_items) {
  begin_after_previous_kernel();
  using Shared = typename Sizes::Shared;
  Attention<Sizes>(p, most_items, *reinterpret_cast<Shared*>(dynamic_shared_memory)).run();
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
  const int most_places = AttentionWorkspace<Sizes>::find_most_items(p);
  launch(verify_attention_kernel<Sizes>, shape, stream, p, most_places);
}

template <class T, int kHeadDim>
void launch_for_rows(const VerifyAttentionParams& p, CUstream_st* stream) {
  const int rows = min_of(p.max_rows, p.num_rows) * (p.num_heads / p.num_kv_heads);
  if (rows <= 64 || kHeadDim == 256) {
    launch_sized<AttentionSizes<T, kHeadDim, 4>>(p, stream);
  } else if constexpr (kHeadDim < 256) {
    launch_sized<AttentionSizes<T, kHeadDim, 8>>(p, stream);
  }
}

bool is_aligned(const void* data, int64_t stride, int64_t other_stride, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % bytes == 0 && stride * 2 % bytes == 0 &&
         other_stride * 2 % bytes == 0;
}

// Whether the copies of 16 bytes and the pairs of columns are possible.
bool suits_tensor_cores(const VerifyAttentionParams& p) {
  constexpr int64_t kMostStride = INT32_MAX / 2;
  return (p.head_dim == 64 || p.head_dim == 128 || p.head_dim == 256) &&
         p.keys.slot_stride <= kMostStride && p.values.slot_stride <= kMostStride &&
         is_aligned(p.keys.data, p.keys.slot_stride, p.keys.head_stride, 16) &&
         is_aligned(p.values.data, p.values.slot_stride, p.values.head_stride, 16) &&
         is_aligned(p.query, p.query_row_stride, p.query_head_stride, 4) &&
         is_aligned(p.out, p.out_row_stride, p.out_head_stride, 4);
}

template <class T>
void launch_tensor_cores(const VerifyAttentionParams& p, CUstream_st* stream) {
  if (p.head_dim == 64) {
    launch_for_rows<T, 64>(p, stream);
  } else if (p.head_dim == 128) {
    launch_for_rows<T, 128>(p, stream);
  } else {
    launch_for_rows<T, 256>(p, stream);
  }
}

}  // namespace

void verify_attention_cuda(const VerifyAttentionParams& p, CUstream_st* stream) {
  if (p.num_rows == 0) return;
  with_attention_type(p.type, [&](auto type) {
    using T = decltype(type);
    if constexpr (sizeof(T) == 2) {
      if (suits_tensor_cores(p)) return launch_tensor_cores<T>(p, stream);
    }
    LaunchShape shape{dim3(p.num_rows * p.num_heads), dim3(SimpleAttention::kThreads)};
    shape.begins_early = true;
    launch(simple_attention_kernel<T>, shape, stream, p);
  });
}

}  // namespace specfast
