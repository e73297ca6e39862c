#include <torch/csrc/stable/library.h>

// The namespace; every family file beside this one adds its schemas to it as a fragment.
STABLE_TORCH_LIBRARY(specfast, m) { (void)m; }
