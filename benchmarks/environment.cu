#include <cuda_runtime.h>
#include <dlfcn.h>

#include <ctime>

#include "core/error.h"
#include "environment.h"

namespace specfast::bench {
namespace {

// The CUDA runtime knows only the CUDA version of the driver; its own number is with NVML.
std::string driver_version() {
  void* nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (nvml == nullptr) return "unknown";
  auto init = reinterpret_cast<int (*)()>(dlsym(nvml, "nvmlInit_v2"));
  auto version =
      reinterpret_cast<int (*)(char*, unsigned)>(dlsym(nvml, "nvmlSystemGetDriverVersion"));
  char text[96] = "unknown";
  if (init != nullptr && version != nullptr && init() == 0) version(text, sizeof(text));
  dlclose(nvml);
  return text;
}

}  // namespace

Environment this_environment(const std::string& commit, const std::string& command) {
  cudaDeviceProp properties;
  SPECFAST_CUDA_CHECK(cudaGetDeviceProperties(&properties, 0));
  std::time_t now = std::time(nullptr);
  char date[32];
  std::strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  std::string cuda =
      std::to_string(CUDART_VERSION / 1000) + "." + std::to_string(CUDART_VERSION % 1000 / 10);
  return {properties.name, driver_version(), cuda, commit, command, date};
}

}  // namespace specfast::bench
