#include <torch/csrc/stable/library.h>

// The namespace; every family file beside this one adds its schemas to it as a fragment.
STABLE_TORCH_LIBRARY(specfast, m) { (void)m; }

// GPU architectures that the kernels were compiled for, as CMake names them; empty without kernels.
extern "C" __attribute__((visibility("default"))) const char* specfast_cuda_architectures() {
  return SPECFAST_CUDA_ARCHITECTURES;
}
