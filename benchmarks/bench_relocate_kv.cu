// The KV move after a tree was accepted, over all layers of a model.

#include <cuda_runtime.h>

#include <algorithm>
#include <numeric>

#include "core/launch.cuh"
#include "ops/relocate_kv.h"
#include "random.h"
#include "set_array.cuh"
#include "workload.h"

namespace specfast::bench {
namespace {

constexpr int kDepth = 6;
constexpr double kMovedPerRequest = 2.7;
constexpr double kColdBytes = 256e6;
constexpr int kThreads = 256;

// What word `word` of a slot in a buffer holds before anything moves.
SPECFAST_HD uint64_t word_of(int64_t buffer, int64_t slot, int word) {
  return mix_bits((buffer << 48) ^ (slot << 16) ^ word);
}

// Grid (slots, buffers).
__global__ void fill_kernel(uint64_t* const* buffers, int words) {
  uint64_t* item = buffers[blockIdx.y] + static_cast<int64_t>(blockIdx.x) * words;
  for (int word = threadIdx.x; word < words; word += kThreads) {
    item[word] = word_of(blockIdx.y, blockIdx.x, word);
  }
}

// Grid (rows, buffers): counts the words of slots[row] that did not come from slot origins[row].
__global__ void count_strangers_kernel(uint64_t* const* buffers, int words, const int64_t* slots,
                                       const int32_t* origins, int* strangers) {
  const uint64_t* item = buffers[blockIdx.y] + slots[blockIdx.x] * words;
  int count = 0;
  for (int word = threadIdx.x; word < words; word += kThreads) {
    count += item[word] != word_of(blockIdx.y, origins[blockIdx.x], word);
  }
  if (count > 0) atomicAdd(strangers, count);
}

// The windows of all sets share one pool and no slot, so every set moves bytes of its own.
template <int kBuffers, int kItemBytes>
class RelocateKv : public Workload {
 public:
  explicit RelocateKv(const Point& point)
      : batch_(point.batch),
        nodes_(point.nodes),
        moved_(static_cast<int>(kMovedPerRequest * point.batch + 0.5)),
        sets_(max_of(2, static_cast<int>(kColdBytes / traffic().bytes))),
        slots_(static_cast<int64_t>(sets_) * batch_ * nodes_),
        out_cache_loc_(sets_, batch_ * nodes_),
        accept_index_(sets_, batch_ * kWidth),
        commit_lens_(sets_, batch_),
        status_(sets_, batch_),
        pieces_(1, kBuffers),
        chunks_(1, kBuffers * kChunks),
        addresses_(1, kBuffers),
        origins_(1, slots_) {
    SPECFAST_CUDA_CHECK(cudaMalloc(&pool_, kBuffers * buffer_bytes()));
    for (int buffer = 0; buffer < kBuffers; ++buffer) {
      KvPieces pieces{};
      pieces.buffer = buffer;
      pieces.column_bytes = kColumnBytes;
      pieces.page_stride = kItemBytes;
      pieces.num_pieces = 1;
      pieces.piece_bytes = kItemBytes;
      pieces_.host(0)[buffer] = pieces;
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        chunks_.host(0)[buffer * kChunks + chunk] = {buffer, chunk * kChunkColumns};
      }
      addresses_.host(0)[buffer] = reinterpret_cast<uint64_t*>(pool_ + buffer * buffer_bytes());
    }
    choose_windows();
    pieces_.upload();
    chunks_.upload();
    addresses_.upload();
    out_cache_loc_.upload();
    accept_index_.upload();
    commit_lens_.upload();
    specfast::launch(fill_kernel, {dim3(slots_, kBuffers), dim3(kThreads)}, nullptr,
                     addresses_.on(Side::kDevice, 0), kWords);
  }
  ~RelocateKv() override { cudaFree(pool_); }

  int sets() const override { return sets_; }
  void launch(int set, CUstream_st* stream) override {
    RelocateKvParams p = params(Side::kDevice, set);
    p.pieces = pieces_.on(Side::kDevice, 0);
    p.chunks = chunks_.on(Side::kDevice, 0);
    p.num_chunks = kBuffers * kChunks;
    p.num_buffers = kBuffers;
    p.buffers = reinterpret_cast<void* const*>(addresses_.host(0));
    relocate_kv_cuda(p, stream);
  }

  // The CPU body moves the slots' own numbers; where each came from is then true of every buffer.
  void check(int set) override {
    KvPieces number{};
    number.column_bytes = number.page_stride = number.piece_bytes = sizeof(int32_t);
    number.num_pieces = 1;
    KvChunk chunk{};
    void* numbers = origins_.host(0);
    RelocateKvParams p = params(Side::kHost, set);
    p.pieces = &number;
    p.chunks = &chunk;
    p.num_chunks = 1;
    p.num_buffers = 1;
    p.buffers = &numbers;
    relocate_kv_cpu(p);
    status_.expect_equal(set, "status");

    int rows = batch_ * nodes_;
    SetArray<int32_t> origins(1, rows);
    for (int row = 0; row < rows; ++row) {
      origins.host(0)[row] = origins_.host(0)[out_cache_loc_.host(set)[row]];
    }
    origins.upload();
    SetArray<int> strangers(1, 1);
    *strangers.host(0) = 0;
    strangers.upload();
    specfast::launch(count_strangers_kernel, {dim3(rows, kBuffers), dim3(kThreads)}, nullptr,
                     addresses_.on(Side::kDevice, 0), kWords, out_cache_loc_.on(Side::kDevice, set),
                     origins.on(Side::kDevice, 0), strangers.on(Side::kDevice, 0));
    strangers.expect_equal(0, "misplaced words");
  }
  Traffic traffic() override { return {2.0 * moved_ * kBuffers * kItemBytes, 0, 0}; }

 private:
  static constexpr int kColumnBytes = 16;
  static constexpr int kWords = kItemBytes / sizeof(uint64_t);
  static constexpr int kChunks = (kItemBytes / kColumnBytes + kChunkColumns - 1) / kChunkColumns;
  static constexpr int kWidth = kDepth + 1;

  int64_t buffer_bytes() const { return slots_ * kItemBytes; }

  // Random slots for all rows; `moved_` rows over the requests of a set, none of them in place.
  void choose_windows() {
    Random random(30);
    std::vector<int64_t> order(slots_);
    std::iota(order.begin(), order.end(), 0);
    for (int64_t i = slots_ - 1; i > 0; --i) std::swap(order[i], order[random.bits() % (i + 1)]);
    std::iota(origins_.host(0), origins_.host(0) + slots_, 0);
    for (int set = 0; set < sets_; ++set) {
      int rows = batch_ * nodes_;
      std::copy_n(order.begin() + static_cast<int64_t>(set) * rows, rows, out_cache_loc_.host(set));
      int32_t* lengths = commit_lens_.host(set);
      std::fill_n(lengths, batch_, 1);
      for (int moved = 0; moved < moved_;) {
        int32_t& length = lengths[random.below(batch_)];
        if (length == kWidth) continue;
        ++length;
        ++moved;
      }
      for (int request = 0; request < batch_; ++request) choose_path(random, set, request);
    }
  }

  // The window's first row and, from its third on, as many more as the request commits.
  void choose_path(Random& random, int set, int request) {
    std::vector<int32_t> rows(nodes_ - 2);
    std::iota(rows.begin(), rows.end(), request * nodes_ + 2);
    int accepted = commit_lens_.host(set)[request] - 1;
    for (int i = 0; i < accepted; ++i) {
      std::swap(rows[i], rows[i + random.below(static_cast<int>(rows.size()) - i)]);
    }
    std::sort(rows.begin(), rows.begin() + accepted);
    int32_t* path = accept_index_.host(set) + request * kWidth;
    std::fill_n(path, kWidth, -1);
    path[0] = request * nodes_;
    std::copy_n(rows.begin(), accepted, path + 1);
  }

  // All but the buffers.
  RelocateKvParams params(Side side, int set) {
    RelocateKvParams p{};
    p.batch_size = batch_;
    p.path_width = kWidth;
    p.num_rows = batch_ * nodes_;
    p.rows_per_request = nodes_;
    p.page_size = 1;
    p.num_slots = slots_;
    p.accept_index = accept_index_.on(side, set);
    p.accept_index_stride = kWidth;
    p.commit_lens = commit_lens_.on(side, set);
    p.out_cache_loc = {out_cache_loc_.on(side, set), true};
    p.status = status_.on(side, set);
    return p;
  }

  int batch_;
  int nodes_;
  int moved_;
  int sets_;
  int64_t slots_;
  char* pool_ = nullptr;
  SetArray<int64_t> out_cache_loc_;
  SetArray<int32_t> accept_index_, commit_lens_, status_;
  SetArray<KvPieces> pieces_;
  SetArray<KvChunk> chunks_;
  SetArray<uint64_t*> addresses_;
  SetArray<int32_t> origins_;  // the slot whose bytes each slot should hold
};

std::vector<Point> points(const char* variant, double aim_us_of_64) {
  std::vector<Point> points;
  for (int batch : {1, 8, 64, 256}) {
    points.push_back({variant, batch, 64, 0, "", batch == 64 ? aim_us_of_64 : 0});
  }
  return points;
}

Registrar keys_and_values(benchmark<RelocateKv<64, 2048>>("relocate_kv",
                                                          points("64 buffers x 2048 B, cold", 16)));
Registrar latent(benchmark<RelocateKv<61, 1152>>("relocate_kv",
                                                 points("61 buffers x 1152 B, cold", 0)));

}  // namespace
}  // namespace specfast::bench
