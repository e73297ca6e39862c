#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/error.h"

struct CUstream_st;

namespace specfast::bench {

// The kernel's output differs from the CPU body's.
class Mismatch : public Error {
 public:
  using Error::Error;
};

// One row of the table: an op at one size. Fields that do not apply stay 0 or empty.
struct Point {
  // What is measured and how warm: "greedy, from logits, cold".
  std::string variant{};
  int batch = 0;
  int nodes = 0;
  int64_t vocab = 0;
  std::string dtype{};
  // The project's aim on one H200, microseconds; 0 = none.
  double aim_us = 0;
  // Set by `benchmark`.
  std::string op{};
};

// What one call moves, as a mean over the input sets.
struct Traffic {
  // Read + written, as the algorithm needs them (not what the caches fetched).
  double bytes = 0;
  // Logits rows visited per request; 0 where an op visits none.
  double rows_mean = 0;
  double rows_max = 0;
};

// An op at one size with all its inputs on the device. There are several input sets of the same
// size, so that a graph of calls does not find its inputs in L2 unless the variant says "warm".
class Workload {
 public:
  virtual ~Workload() = default;
  virtual int sets() const = 0;
  // Enqueues one call on input set `set`; capturable.
  virtual void launch(int set, CUstream_st* stream) = 0;
  // After exactly one launch on every set: compares with the CPU body, throws Mismatch. Several
  // threads check different sets at once.
  virtual void check(int set) = 0;
  // After all checks.
  virtual Traffic traffic() = 0;
  virtual int launches_per_call() const { return 1; }
};

struct Benchmark {
  std::string op;
  std::vector<Point> points;
  std::function<std::unique_ptr<Workload>(const Point&)> prepare;
  // A limit of the card: measured in every run, before the ops.
  bool is_floor = false;
};

inline std::vector<Benchmark>& registry() {
  static std::vector<Benchmark> benchmarks;
  return benchmarks;
}

struct Registrar {
  explicit Registrar(Benchmark benchmark) { registry().push_back(std::move(benchmark)); }
};

// At namespace scope of bench_<op>.cu: the points of an op and the class that runs one.
template <class W>
Benchmark benchmark(std::string op, std::vector<Point> points, bool is_floor = false) {
  for (Point& point : points) point.op = op;
  return {
      std::move(op), std::move(points),
      [](const Point& point) -> std::unique_ptr<Workload> { return std::make_unique<W>(point); },
      is_floor};
}

}  // namespace specfast::bench
