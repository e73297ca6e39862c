#pragma once

#include <cstdint>
#include <vector>

#include "core/types.h"

namespace specfast::bench {

// Random bf16 logits rows on the device, shared by all workloads: input sets are windows of the
// pool, so a batch of 256 trees of 64 nodes (5 GB) costs no memory of its own. The maximum of every
// row is planted, hence known on the host; a workload chooses draft tokens to match it or not.
class LogitPool {
 public:
  static constexpr int kVocab = 151936;
  static constexpr int64_t kRows = 32768;
  static constexpr double kRowBytes = 2.0 * kVocab;

  // Made at the first use: 10 GB of device memory.
  static LogitPool& shared();

  const BFloat16* device(int64_t row) const { return device_ + row * kVocab; }
  // The host's mirror, for the CPU bodies. Only fetched rows hold logits and cost memory; all
  // others are zeros.
  const BFloat16* host(int64_t row) const { return host_ + row * kVocab; }
  void fetch(int64_t row);

  static int best_token(int64_t row);
  static float best_logit(int64_t row);

  // First rows of `sets` windows of `window` rows, spread over the pool: apart where they fit.
  static int64_t window_begin(int set, int sets, int64_t window);

 private:
  LogitPool();

  BFloat16* device_ = nullptr;
  BFloat16* host_ = nullptr;
  std::vector<bool> fetched_;
};

}  // namespace specfast::bench
