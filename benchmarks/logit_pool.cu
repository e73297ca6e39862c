#include <cuda_runtime.h>
#include <sys/mman.h>

#include "core/error.h"
#include "core/launch.cuh"
#include "logit_pool.cuh"
#include "random.h"

namespace specfast::bench {
namespace {

constexpr uint64_t kSeed = 0x5eed;
constexpr int kVector = 8;  // bf16 values in 16 bytes

SPECFAST_HD uint64_t row_bits(int64_t row) {
  return mix_bits(kSeed + static_cast<uint64_t>(row) * 0x9e3779b97f4a7c15ull);
}

SPECFAST_HD int planted_token(int64_t row) {
  return static_cast<int>(row_bits(row) % LogitPool::kVocab);
}

// Multiples of 1/8 in [12, 16): exact in bf16 and above every other logit.
SPECFAST_HD float planted_logit(int64_t row) {
  return 12.0f + static_cast<float>(row_bits(row) >> 59) * 0.125f;
}

SPECFAST_HD uint16_t truncate_to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>(bits >> 16);
}

// About normal, deviation 2.3, within (-8, 8): the sum of four uniforms.
__device__ float common_logit(uint64_t bits) {
  uint32_t sum = static_cast<uint32_t>((bits & 0xffff) + ((bits >> 16) & 0xffff) +
                                       ((bits >> 32) & 0xffff) + (bits >> 48));
  return (static_cast<float>(sum) - 131070.0f) * (4.0f / 65536.0f);
}

__global__ void fill_rows_kernel(uint16_t* logits) {
  int64_t row = blockIdx.x;
  uint64_t seed = row_bits(row);
  int best = planted_token(row);
  uint16_t* out = logits + row * LogitPool::kVocab;
  for (int first = threadIdx.x * kVector; first < LogitPool::kVocab;
       first += blockDim.x * kVector) {
    alignas(16) uint16_t values[kVector];
    for (int i = 0; i < kVector; ++i) {
      float value = first + i == best
                        ? planted_logit(row)
                        : common_logit(mix_bits(seed + static_cast<uint64_t>(first + i)));
      values[i] = truncate_to_bf16(value);
    }
    *reinterpret_cast<uint4*>(out + first) = *reinterpret_cast<const uint4*>(values);
  }
}

static_assert(LogitPool::kVocab % kVector == 0, "rows are filled in whole vectors");

}  // namespace

LogitPool& LogitPool::shared() {
  static LogitPool pool;
  return pool;
}

LogitPool::LogitPool() : fetched_(kRows, false) {
  size_t bytes = static_cast<size_t>(kRows) * kVocab * sizeof(BFloat16);
  SPECFAST_CUDA_CHECK(cudaMalloc(&device_, bytes));
  launch(fill_rows_kernel, {dim3(kRows), dim3(256)}, nullptr, reinterpret_cast<uint16_t*>(device_));
  SPECFAST_CUDA_CHECK(cudaDeviceSynchronize());
  void* mirror = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  SPECFAST_CHECK(mirror != MAP_FAILED, "logit pool: no address space for the host's mirror");
  host_ = static_cast<BFloat16*>(mirror);
}

void LogitPool::fetch(int64_t row) {
  if (fetched_[row]) return;
  SPECFAST_CUDA_CHECK(cudaMemcpy(host_ + row * kVocab, device(row), kVocab * sizeof(BFloat16),
                                 cudaMemcpyDeviceToHost));
  fetched_[row] = true;
}

int LogitPool::best_token(int64_t row) { return planted_token(row); }
float LogitPool::best_logit(int64_t row) { return planted_logit(row); }

int64_t LogitPool::window_begin(int set, int sets, int64_t window) {
  SPECFAST_CHECK(window <= kRows, "logit pool: a window must fit into the pool");
  int64_t last = kRows - window;
  return sets == 1 ? 0 : min_of<int64_t>(set * window, set * last / (sets - 1));
}

}  // namespace specfast::bench
