#pragma once

#include <cuda_runtime.h>

#include <cstring>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/types.h"
#include "workload.h"

namespace specfast::bench {

enum class Side { kHost, kDevice };

// One argument of an op for all input sets, on the host for the CPU body and on the device for
// the kernel. Params of either side are filled from the same arrays through `on(side, set)`.
template <class T>
class SetArray {
 public:
  SetArray() = default;
  // Every byte starts as 0xa5 on both sides, so an output element that only one of the two writes
  // is a mismatch.
  SetArray(int sets, int64_t count)
      : sets_(sets), count_(count), stride_(ceil_div<int64_t>(count * sizeof(T), 256) * 256) {
    host_.assign(sets * stride_, static_cast<char>(0xa5));
    SPECFAST_CUDA_CHECK(cudaMalloc(&device_, host_.size()));
    upload();
  }
  ~SetArray() { cudaFree(device_); }
  SetArray(SetArray&& other) noexcept { swap(other); }
  SetArray& operator=(SetArray&& other) noexcept {
    swap(other);
    return *this;
  }

  T* on(Side side, int set) {
    char* base = side == Side::kHost ? host_.data() : device_;
    return reinterpret_cast<T*>(base + set * stride_);
  }
  T* host(int set) { return on(Side::kHost, set); }
  int64_t count() const { return count_; }
  double bytes() const { return static_cast<double>(count_) * sizeof(T); }

  // Host to device, after the host side was filled.
  void upload() {
    SPECFAST_CUDA_CHECK(cudaMemcpy(device_, host_.data(), host_.size(), cudaMemcpyHostToDevice));
  }

  // Throws at the first element of one set that differs between the sides.
  void expect_equal(int set, const char* name) {
    std::vector<T> got(count_);
    SPECFAST_CUDA_CHECK(
        cudaMemcpy(got.data(), on(Side::kDevice, set), count_ * sizeof(T), cudaMemcpyDeviceToHost));
    const T* want = host(set);
    for (int64_t i = 0; i < count_; ++i) {
      if (memcmp(&got[i], &want[i], sizeof(T)) == 0) continue;
      throw Mismatch(std::string(name) + "[" + std::to_string(i) + "] of input set " +
                     std::to_string(set) + ": the kernel wrote " + std::to_string(got[i]) +
                     ", the CPU body " + std::to_string(want[i]));
    }
  }

 private:
  void swap(SetArray& other) {
    std::swap(sets_, other.sets_);
    std::swap(count_, other.count_);
    std::swap(stride_, other.stride_);
    std::swap(host_, other.host_);
    std::swap(device_, other.device_);
  }

  int sets_ = 0;
  int64_t count_ = 0;
  int64_t stride_ = 0;
  std::vector<char> host_;
  char* device_ = nullptr;
};

}  // namespace specfast::bench
