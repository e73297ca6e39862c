// What the card can do, measured in the same run: an op's time is read against these.

#include <cuda_runtime.h>

#include <algorithm>

#include "core/launch.cuh"
#include "logit_pool.cuh"
#include "set_array.cuh"
#include "workload.h"

namespace specfast::bench {
namespace {

__global__ void empty_kernel() {}

// A chain of kernels that do nothing; a node of a graph cannot be cheaper.
class EmptyKernel : public Workload {
 public:
  explicit EmptyKernel(const Point& point) : blocks_(point.batch) {}
  int sets() const override { return 1; }
  void launch(int, CUstream_st* stream) override {
    specfast::launch(empty_kernel, {dim3(blocks_), dim3(32)}, stream);
  }
  void check(int) override {}
  Traffic traffic() override { return {}; }

 private:
  int blocks_;
};

// cudaMemcpy from device to device; bytes count read + written.
class DeviceCopy : public Workload {
 public:
  explicit DeviceCopy(const Point&) {
    for (char*& buffer : buffers_) {
      SPECFAST_CUDA_CHECK(cudaMalloc(&buffer, kBytes));
      SPECFAST_CUDA_CHECK(cudaMemset(buffer, 1, kBytes));
    }
  }
  ~DeviceCopy() override {
    for (char* buffer : buffers_) cudaFree(buffer);
  }
  int sets() const override { return kSets; }
  void launch(int set, CUstream_st* stream) override {
    SPECFAST_CUDA_CHECK(cudaMemcpyAsync(buffers_[2 * set], buffers_[2 * set + 1], kBytes,
                                        cudaMemcpyDeviceToDevice, stream));
  }
  void check(int) override {}
  Traffic traffic() override { return {2.0 * kBytes, 0, 0}; }

 private:
  static constexpr int kSets = 4;
  static constexpr size_t kBytes = 256 << 20;
  char* buffers_[2 * kSets] = {};
};

constexpr int kThreads = 256;
constexpr int kInFlight = 4;  // 16-byte loads of a thread before it looks at the first

// Maxima of bf16 pairs: comparing them as signed integers orders positive values, which is enough
// where the maximum is planted above zero, and leaves the kernel nothing but loads.
__device__ int max_of_words(uint4 words) {
  int best = 0;
  for (uint32_t word : {words.x, words.y, words.z, words.w}) {
    best = max(best, max(static_cast<int>(static_cast<int16_t>(word & 0xffff)),
                         static_cast<int>(static_cast<int16_t>(word >> 16))));
  }
  return best;
}

// Grid (splits, rows): the maximum of each row, by one pass with 16-byte loads.
__global__ void __launch_bounds__(kThreads)
    row_maximum_kernel(const BFloat16* logits, int* maxima) {
  constexpr int kWords = LogitPool::kVocab / 8;
  const uint4* row =
      reinterpret_cast<const uint4*>(logits + static_cast<int64_t>(blockIdx.y) * LogitPool::kVocab);
  int step = gridDim.x * kThreads;
  int best = 0;
  for (int first = blockIdx.x * kThreads + threadIdx.x; first < kWords; first += kInFlight * step) {
    uint4 words[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      int word = first + i * step;
      words[i] = word < kWords ? __ldcs(row + word) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) best = max(best, max_of_words(words[i]));
  }
  best = __reduce_max_sync(~0u, best);
  if (threadIdx.x % 32 == 0) atomicMax(maxima + blockIdx.y, best);
}

// One read of `batch` rows of logits: what a full pass over them costs at least.
class RowMaximum : public Workload {
 public:
  explicit RowMaximum(const Point& point)
      : rows_(point.batch),
        sets_(max_of(2, static_cast<int>(kColdBytes / (rows_ * LogitPool::kRowBytes)))),
        maxima_(sets_, rows_) {
    for (int set = 0; set < sets_; ++set) std::fill_n(maxima_.host(set), rows_, 0);
    maxima_.upload();
  }
  int sets() const override { return sets_; }
  void launch(int set, CUstream_st* stream) override {
    constexpr int kBlocks = 132 * 8;
    constexpr int kMostSplits = 38;  // two vectors per thread of the row
    dim3 grid(clamp_to(kBlocks / rows_, 1, kMostSplits), rows_);
    specfast::launch(row_maximum_kernel, {grid, dim3(kThreads)}, stream,
                     LogitPool::shared().device(first_row(set)), maxima_.on(Side::kDevice, set));
  }
  void check(int set) override {
    for (int row = 0; row < rows_; ++row) {
      float best = LogitPool::best_logit(first_row(set) + row);
      uint32_t bits;
      memcpy(&bits, &best, sizeof(bits));
      maxima_.host(set)[row] = static_cast<int>(bits >> 16);
    }
    maxima_.expect_equal(set, "maxima");
  }
  Traffic traffic() override { return {rows_ * LogitPool::kRowBytes, 1, 1}; }

 private:
  static constexpr double kColdBytes = 256e6;
  int64_t first_row(int set) const { return LogitPool::window_begin(set, sets_, rows_); }

  int rows_;
  int sets_;
  SetArray<int> maxima_;
};

std::vector<Point> row_maximum_points() {
  std::vector<Point> points;
  for (int rows : {1, 8, 64, 512, 2048}) {
    points.push_back({"one read of B rows, cold", rows, 0, LogitPool::kVocab, "bf16"});
  }
  return points;
}

constexpr bool kIsFloor = true;
Registrar empty(benchmark<EmptyKernel>("empty_kernel",
                                       {{"B blocks of a warp", 1}, {"B blocks of a warp", 256}},
                                       kIsFloor));
Registrar copy(benchmark<DeviceCopy>("device_copy", {{"256 MiB, cold"}}, kIsFloor));
Registrar maxima(benchmark<RowMaximum>("row_maximum", row_maximum_points(), kIsFloor));

}  // namespace
}  // namespace specfast::bench
