#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <string>
#include <vector>

#include "core/error.h"

namespace specfast::testing {

// A copy of a host vector on the device, in an allocation of its own and of its exact size, so
// that compute-sanitizer sees every access past either end.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& host) : size_(host.size()) {
    void* data = nullptr;
    SPECFAST_CUDA_CHECK(cudaMalloc(&data, bytes()));
    data_.reset(static_cast<T*>(data));
    SPECFAST_CUDA_CHECK(cudaMemcpy(data, host.data(), bytes(), cudaMemcpyHostToDevice));
  }

  T* data() const { return data_.get(); }

  // Waits for the kernels before it.
  std::vector<T> to_host() const {
    std::vector<T> host(size_);
    SPECFAST_CUDA_CHECK(cudaMemcpy(host.data(), data(), bytes(), cudaMemcpyDeviceToHost));
    return host;
  }

 private:
  struct Free {
    void operator()(T* data) const { cudaFree(data); }
  };
  size_t bytes() const { return size_ * sizeof(T); }

  size_t size_;
  std::unique_ptr<T, Free> data_;
};

}  // namespace specfast::testing
