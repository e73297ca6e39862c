// The copy of recurrent states after a round, over all layers of a hybrid model.

#include <cuda_runtime.h>

#include "core/launch.cuh"
#include "ops/commit_state.h"
#include "random.h"
#include "set_array.cuh"
#include "workload.h"

namespace specfast::bench {
namespace {

constexpr int kWidth = 4;
constexpr int kThreads = 256;
constexpr double kColdBytes = 256e6;

SPECFAST_HD uint64_t state_word(int64_t item, int64_t word) {
  return mix_bits((item << 24) ^ word);
}

// Grid (items): fills them, or counts the words of items[i] that did not come from origins[i].
__global__ void fill_states_kernel(uint64_t* items, int64_t words) {
  for (int64_t word = threadIdx.x; word < words; word += kThreads) {
    items[blockIdx.x * words + word] = state_word(blockIdx.x, word);
  }
}
__global__ void count_state_strangers_kernel(const uint64_t* items, int64_t words,
                                             const int64_t* origins, int* strangers) {
  int count = 0;
  for (int64_t word = threadIdx.x; word < words; word += kThreads) {
    count += items[blockIdx.x * words + word] != state_word(origins[blockIdx.x], word);
  }
  if (count > 0) atomicAdd(strangers, count);
}

// kLayers layers with a recurrent state and a conv window each; every set has bytes of its own.
template <int kLayers, int kStateBytes, int kConvBytes>
class CommitState : public Workload {
 public:
  explicit CommitState(const Point& point)
      : batch_(point.batch),
        sets_(max_of(2, static_cast<int>(kColdBytes / traffic().bytes))),
        accept_index_(sets_, batch_ * kWidth),
        commit_lens_(sets_, batch_),
        slots_(sets_, batch_),
        status_(sets_, batch_) {
    for (int i = 0; i < 2; ++i) {
      SPECFAST_CUDA_CHECK(cudaMalloc(&states_[i], rows() * kLayers * item_bytes(i)));
      SPECFAST_CUDA_CHECK(cudaMalloc(&pools_[i], pool_items() * item_bytes(i)));
      SPECFAST_CUDA_CHECK(cudaMemset(pools_[i], 0, pool_items() * item_bytes(i)));
      specfast::launch(fill_states_kernel, {dim3(rows() * kLayers), dim3(kThreads)}, nullptr,
                       reinterpret_cast<uint64_t*>(states_[i]), item_bytes(i) / 8);
    }
    Random random(31);
    for (int set = 0; set < sets_; ++set) {
      for (int b = 0; b < batch_; ++b) {
        int length = 1 + random.below(kWidth);
        commit_lens_.host(set)[b] = length;
        for (int i = 0; i < kWidth; ++i) {
          int row = (set * batch_ + b) * kWidth + i;
          accept_index_.host(set)[b * kWidth + i] = i < length ? row : -1;
        }
        slots_.host(set)[b] = set * batch_ + batch_ - 1 - b;
      }
    }
    accept_index_.upload();
    commit_lens_.upload();
    slots_.upload();
  }
  ~CommitState() override {
    for (int i = 0; i < 2; ++i) {
      cudaFree(states_[i]);
      cudaFree(pools_[i]);
    }
  }

  int sets() const override { return sets_; }
  void launch(int set, CUstream_st* stream) override {
    StateBuffer buffers[2];
    CommitStateParams p{};
    for (int i = 0; i < 2; ++i) {
      StateBuffer& buffer = buffers[i] = {};
      buffer.states = states_[i];
      buffer.pool = pools_[i];
      buffer.item_bytes = buffer.state_row_stride = buffer.pool_slot_stride = item_bytes(i);
      buffer.state_layer_stride = rows() * item_bytes(i);
      buffer.pool_layer_stride = int64_t{sets_} * batch_ * item_bytes(i);
      buffer.word_bytes = 16;
      buffer.tiles_per_item = static_cast<int>(ceil_div<int64_t>(item_bytes(i), kStateTileBytes));
      buffer.first_tile = p.num_tiles;
      p.num_tiles += kLayers * buffer.tiles_per_item;
    }
    p.batch_size = batch_;
    p.path_width = p.accept_index_stride = kWidth;
    p.num_buffers = 2;
    p.num_rows = rows();
    p.num_slots = int64_t{sets_} * batch_;
    p.accept_index = accept_index_.on(Side::kDevice, set);
    p.commit_lens = commit_lens_.on(Side::kDevice, set);
    p.slots = {slots_.on(Side::kDevice, set), true};
    p.buffers = buffers;
    p.status = status_.on(Side::kDevice, set);
    commit_state_cuda(p, stream);
  }

  // Every slot of the set holds the state of its request's last committed row.
  void check(int set) override {
    for (int b = 0; b < batch_; ++b) status_.host(set)[b] = kStatusOk;
    status_.expect_equal(set, "status");
    SetArray<int64_t> origins(1, batch_);
    SetArray<int> strangers(1, 1);
    *strangers.host(0) = 0;
    strangers.upload();
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int b = 0; b < batch_; ++b) {
        int slot = batch_ - 1 - b;
        int last = commit_lens_.host(set)[b] - 1;
        origins.host(0)[slot] = layer * rows() + (int64_t{set} * batch_ + b) * kWidth + last;
      }
      origins.upload();
      for (int i = 0; i < 2; ++i) {
        char* first = pools_[i] + (int64_t{layer} * sets_ + set) * batch_ * item_bytes(i);
        specfast::launch(count_state_strangers_kernel, {dim3(batch_), dim3(kThreads)}, nullptr,
                         reinterpret_cast<const uint64_t*>(first), item_bytes(i) / 8,
                         static_cast<const int64_t*>(origins.on(Side::kDevice, 0)),
                         strangers.on(Side::kDevice, 0));
      }
    }
    strangers.expect_equal(0, "misplaced words");
  }
  Traffic traffic() override { return {2.0 * batch_ * kLayers * (kStateBytes + kConvBytes), 0, 0}; }

 private:
  static int64_t item_bytes(int i) { return i == 0 ? kStateBytes : kConvBytes; }
  int64_t rows() const { return int64_t{sets_} * batch_ * kWidth; }
  int64_t pool_items() const { return int64_t{sets_} * batch_ * kLayers; }

  int batch_;
  int sets_;
  char* states_[2] = {};
  char* pools_[2] = {};
  SetArray<int32_t> accept_index_, commit_lens_;
  SetArray<int64_t> slots_;
  SetArray<int32_t> status_;
};

std::vector<Point> points(const char* variant, std::initializer_list<int> batches) {
  std::vector<Point> points;
  for (int batch : batches) points.push_back({variant, batch, kWidth, 0, "", 0});
  return points;
}

// Gated delta rule: 32 heads x 128 x 128 in bf16, and three inputs of 8192 channels.
Registrar gated_delta(benchmark<CommitState<36, 1 << 20, 3 * 8192 * 2>>(
    "commit_state", points("36 layers x (1 MiB + 48 KiB), cold", {1, 8, 32})));
Registrar small(benchmark<CommitState<24, 64 * 1024, 8192>>(
    "commit_state", points("24 layers x (64 KiB + 8 KiB), cold", {1, 8, 64})));

}  // namespace
}  // namespace specfast::bench
