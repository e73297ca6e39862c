#pragma once

#include <cuda_runtime.h>

#include "core/error.h"

namespace specfast {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  int cluster_size = 1;
  // The kernel begins with begin_after_previous_kernel().
  bool begins_early = false;
};

// First statement of a kernel that is launched while the one before it in the stream still runs
// (programmatic dependent launch): its start-up overlaps, its memory accesses do not. The kernel
// after it may be launched early in turn, which by itself is no less safe.
__device__ inline void begin_after_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
#endif
}

// Launches kernel(params...) and checks the launch. Never synchronises.
template <class... KernelArgs, class... Args>
void launch(void (*kernel)(KernelArgs...), const LaunchShape& shape, cudaStream_t stream,
            const Args&... args) {
  // 48 KB in all need no permission; kernels declare some of that statically.
  constexpr size_t kWithoutPermission = 32 * 1024;
  constexpr int kPortableClusterSize = 8;
  if (shape.shared_bytes > kWithoutPermission) {
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
  cudaLaunchAttribute attributes[2];
  config.attrs = attributes;
  if (shape.cluster_size > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(shape.cluster_size), 1, 1};
  }
  if (shape.begins_early) {
    cudaLaunchAttribute& early = attributes[config.numAttrs++];
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
  }
  SPECFAST_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, args...));
}

}  // namespace specfast
