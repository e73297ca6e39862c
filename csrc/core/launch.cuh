#pragma once

#include <cuda_runtime.h>

#include "core/error.h"

namespace specfast {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  int cluster_size = 1;
};

// Launches kernel(params...) and checks the launch. Never synchronises.
template <class... KernelArgs, class... Args>
void launch(void (*kernel)(KernelArgs...), const LaunchShape& shape, cudaStream_t stream,
            const Args&... args) {
  constexpr size_t kStaticLimit = 48 * 1024;
  constexpr int kPortableClusterSize = 8;
  if (shape.shared_bytes > kStaticLimit) {
    SPECFAST_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             static_cast<int>(shape.shared_bytes)));
  }
  if (shape.cluster_size > kPortableClusterSize) {
    SPECFAST_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  }
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  if (shape.cluster_size > 1) {
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<unsigned>(shape.cluster_size);
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
    config.attrs = &attribute;
    config.numAttrs = 1;
  }
  SPECFAST_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, args...));
}

}  // namespace specfast
