#pragma once

#include <cuda_runtime.h>

#include "core/error.h"

namespace specfast {

// The largest cluster that a launcher asks for. 16 is more than every card must grant; who runs
// where it is not granted, or under a tool that does not bear it, sets 8 before the first launch.
inline int& cluster_size_limit() {
  static int limit = 16;
  return limit;
}

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  int cluster_size = 1;
  // The kernel begins with begin_after_previous_kernel() or with the two calls that it consists of.
  bool begins_early = false;
  // All CTAs run at the same time or none does, so that they can wait for each other.
  bool cooperative = false;
};

// First statement of a kernel that is launched while the one before it in the stream still runs
// (programmatic dependent launch): lets the kernel after it start early in turn, which by itself is
// no less safe, because that one waits as well.
__device__ inline void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// What stands between the two calls runs beside the kernels before this one: not only the last of
// them, since each lets the next one start. So it writes no memory that others see, and reads only
// what none of them writes.
__device__ inline void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// Both in one: the kernel's start-up overlaps, its memory accesses do not.
__device__ inline void begin_after_previous_kernel() {
  let_next_kernel_start();
  wait_for_previous_kernel();
}

inline void allow_large_shapes(const void* kernel, const LaunchShape& shape) {
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
}

// How many clusters of this shape run at the same time.
template <class... KernelArgs>
int max_clusters(void (*kernel)(KernelArgs...), const LaunchShape& shape) {
  allow_large_shapes(reinterpret_cast<const void*>(kernel), shape);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(shape.cluster_size);
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(shape.cluster_size), 1, 1};
  config.attrs = &cluster;
  config.numAttrs = 1;
  int count = 0;
  SPECFAST_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&count, kernel, &config));
  return count;
}

// Launches kernel(params...) and checks the launch. Never synchronises.
template <class... KernelArgs, class... Args>
void launch(void (*kernel)(KernelArgs...), const LaunchShape& shape, cudaStream_t stream,
            const Args&... args) {
  allow_large_shapes(reinterpret_cast<const void*>(kernel), shape);
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attributes[3];
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
  if (shape.cooperative) {
    cudaLaunchAttribute& together = attributes[config.numAttrs++];
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
  }
  SPECFAST_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, args...));
}

}  // namespace specfast
