#pragma once

#include <cstdint>

namespace specfast {

// Bits of status[B]: what an op met in one request's data. The record beside it is legal all the
// same (docs/numerics.md, "Bad data"). python/specfast/status.py carries the same names.
enum Status : int32_t {
  kStatusOk = 0,
  kNanLogits = 1 << 0,
  kEmptySupport = 1 << 1,
  kBadParam = 1 << 2,
  kBadToken = 1 << 3,
  kBadTree = 1 << 4,
  kZeroResidual = 1 << 5,
  kBadQ = 1 << 6,
  kBadPath = 1 << 7,
};

enum FinishReason : int32_t {
  kNotFinished = 0,
  kFinishedEos = 1,
  kFinishedStop = 2,
  kFinishedLength = 3,
};

}  // namespace specfast
