#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <future>
#include <iostream>
#include <thread>

#include "core/types.h"
#include "environment.h"
#include "graph_timer.cuh"
#include "options.h"
#include "report.h"
#include "workload.h"

namespace specfast::bench {
namespace {

constexpr int kNoGpu = 77;
constexpr int kReplays = 60;
constexpr int kQuickReplays = 20;
constexpr int kQuickBatch = 8;
// So many calls at least in one graph, that its launch does not show in the time per call.
constexpr int kCallsPerGraph = 64;

bool is_wanted(const Options& options, const Point& point) {
  return (!options.quick || point.batch <= kQuickBatch) &&
         (options.batch == 0 || point.batch == options.batch) &&
         point.variant.find(options.variant) != std::string::npos;
}

// The points asked for, floors first because the other rows are compared with them.
std::vector<std::pair<const Benchmark*, Point>> chosen_points(const Options& options) {
  for (const std::string& op : options.ops) {
    bool known = std::any_of(registry().begin(), registry().end(),
                             [&](const Benchmark& benchmark) { return benchmark.op == op; });
    if (!known) throw UsageError("no benchmark named " + op + "; --list prints all");
  }
  std::vector<std::pair<const Benchmark*, Point>> chosen;
  for (bool floors : {true, false}) {
    for (const Benchmark& benchmark : registry()) {
      const std::vector<std::string>& ops = options.ops;
      bool wanted = ops.empty() || std::find(ops.begin(), ops.end(), benchmark.op) != ops.end();
      if (benchmark.is_floor != floors || !(floors || wanted)) continue;
      for (const Point& point : benchmark.points) {
        if (floors || is_wanted(options, point)) chosen.emplace_back(&benchmark, point);
      }
    }
  }
  return chosen;
}

// What decides the rows: where they are written does not belong to it.
std::string command_line(const Options& options) {
  std::string command = "specfast_bench";
  for (size_t i = 0; i < options.ops.size(); ++i) {
    command += (i == 0 ? " --op " : ",") + options.ops[i];
  }
  if (!options.variant.empty()) command += " --variant '" + options.variant + "'";
  if (options.batch != 0) command += " --batch " + std::to_string(options.batch);
  if (options.quick) command += " --quick";
  if (options.check_only) command += " --check-only";
  return command;
}

// Input sets are independent of each other, so the CPU bodies run on all cores.
void check_against_cpu(Workload& workload) {
  for (int set = 0; set < workload.sets(); ++set) workload.launch(set, nullptr);
  SPECFAST_CUDA_CHECK(cudaDeviceSynchronize());
  std::atomic<int> next{0};
  auto check_sets = [&] {
    for (int set = next++; set < workload.sets(); set = next++) workload.check(set);
  };
  std::vector<std::future<void>> workers;
  for (unsigned i = 0; i < max_of(1u, std::thread::hardware_concurrency()); ++i) {
    workers.push_back(std::async(std::launch::async, check_sets));
  }
  for (std::future<void>& worker : workers) worker.get();
}

Row run_point(const Benchmark& benchmark, const Point& point, const Options& options) {
  Row row;
  row.point = point;
  try {
    std::unique_ptr<Workload> workload = benchmark.prepare(point);
    row.sets = workload->sets();
    row.launches_per_call = workload->launches_per_call();
    check_against_cpu(*workload);
    row.traffic = workload->traffic();
    if (!options.check_only) {
      int rounds = (kCallsPerGraph + row.sets - 1) / row.sets;
      row.timing = time_in_graph(
          [&](int call, cudaStream_t stream) { workload->launch(call % row.sets, stream); },
          rounds * row.sets, options.quick ? kQuickReplays : kReplays);
    }
  } catch (const Error& error) {
    row.error = error.what();
  }
  return row;
}

void note_floor(const Row& row, Floors& floors) {
  if (row.point.op == "empty_kernel" && row.point.batch == 1) {
    floors.empty_kernel_us = row.timing.median;
  } else if (row.point.op == "device_copy") {
    floors.copy_gbps = row.gbps();
  }
}

int run(const Options& options) {
  auto points = chosen_points(options);
  if (options.list) {
    for (const auto& [benchmark, point] : points) std::cout << describe(point) << "\n";
    return 0;
  }
  int devices = 0;
  cudaError_t found = cudaGetDeviceCount(&devices);
  if (found != cudaSuccess || devices == 0) {
    std::cerr << "specfast_bench: no CUDA device here (" << cudaGetErrorString(found)
              << "), nothing was measured.\n";
    return kNoGpu;
  }
  std::ofstream json;
  if (!options.json_path.empty()) {
    json.open(options.json_path);
    if (!json) throw UsageError("cannot write " + options.json_path);
  }
  Environment environment = this_environment(options.commit, command_line(options));
  Floors floors;
  bool failed = false;
  print_heading(stdout, environment);
  for (const auto& [benchmark, point] : points) {
    Row row = run_point(*benchmark, point, options);
    note_floor(row, floors);
    if (json.is_open()) json << json_line(row, floors, environment) << std::endl;
    print_row(stdout, row, floors);
    failed |= !row.error.empty();
  }
  return failed ? 1 : 0;
}

}  // namespace
}  // namespace specfast::bench

int main(int argc, char** argv) {
  namespace bench = specfast::bench;
  try {
    bench::Options options = bench::parse_options(argc, argv);
    if (options.help) {
      std::cout << bench::kUsage;
      return 0;
    }
    return bench::run(options);
  } catch (const bench::UsageError& error) {
    std::cerr << "specfast_bench: " << error.what() << "\n" << bench::kUsage;
    return 2;
  } catch (const specfast::Error& error) {
    std::cerr << "specfast_bench: " << error.what() << "\n";
    return 1;
  }
}
