#pragma once

#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "device_array.h"

namespace specfast::testing {

// SPECFAST_SMALL_CASES=1: under a tool that looks at every access, of which large cases have many.
inline bool is_skipped(int batch, int vocab) {
  const char* small = std::getenv("SPECFAST_SMALL_CASES");
  return small != nullptr && *small == '1' && (batch > 16 || vocab > 4096);
}

// Copies of host vectors on the device, whatever they hold; fetch() brings back what a record is
// made of.
class Uploads {
 public:
  template <class T>
  T* operator()(const std::vector<T>& values) {
    std::vector<char> bytes(values.size() * sizeof(T));
    if (!bytes.empty()) memcpy(bytes.data(), values.data(), bytes.size());
    arrays_.emplace_back(const_cast<T*>(values.data()), DeviceArray<char>(bytes));
    return reinterpret_cast<T*>(arrays_.back().second.data());
  }
  void fetch(const void* host) {
    for (auto& [target, device] : arrays_) {
      if (target != host) continue;
      std::vector<char> bytes = device.to_host();
      memcpy(target, bytes.data(), bytes.size());
    }
  }

 private:
  std::vector<std::pair<void*, DeviceArray<char>>> arrays_;
};

}  // namespace specfast::testing
