#include <cuda_runtime.h>

#include <cstdlib>

#include "core/launch.cuh"
#include "testing.h"

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no CUDA device: kernel tests skipped\n");
    return 77;
  }
  // SPECFAST_CLUSTER_SIZE_LIMIT=8 for synccheck, under which clusters of 16 end with an illegal
  // access that no other tool and no run without a tool shows.
  if (const char* limit = std::getenv("SPECFAST_CLUSTER_SIZE_LIMIT")) {
    specfast::cluster_size_limit() = std::atoi(limit);
  }
  return specfast::testing::run_tests(argc, argv);
}
