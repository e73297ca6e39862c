#pragma once

#include <stdexcept>
#include <string>

namespace specfast {

// Every failure that C++ reports. Reaches Python as RuntimeError.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace specfast

#define SPECFAST_CHECK(condition, message)              \
  do {                                                  \
    if (!(condition)) throw ::specfast::Error(message); \
  } while (0)

#if defined(__CUDACC__)
#define SPECFAST_CUDA_CHECK(call)                                                             \
  do {                                                                                        \
    cudaError_t specfast_error_ = (call);                                                     \
    if (specfast_error_ != cudaSuccess) {                                                     \
      throw ::specfast::Error(std::string(__FILE__) + ":" + std::to_string(__LINE__) + ": " + \
                              #call + ": " + cudaGetErrorString(specfast_error_));            \
    }                                                                                         \
  } while (0)
#endif
