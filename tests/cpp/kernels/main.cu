#include <cuda_runtime.h>

#include "testing.h"

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no CUDA device: kernel tests skipped\n");
    return 77;
  }
  return specfast::testing::run_tests(argc, argv);
}
