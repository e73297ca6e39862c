#pragma once

#include <cuda_runtime.h>

#include <functional>

namespace specfast::bench {

// Microseconds per call, over replays of one graph.
struct Timing {
  double median = 0;
  double p10 = 0;
  double p90 = 0;
  int calls_per_graph = 0;
  int replays = 0;
};

// Captures `calls` calls in a row into one CUDA Graph, replays it, and divides each replay's time
// by the number of calls. Events around a graph of one small kernel would measure the launch of
// the graph (3 us), a chain of many measures the kernels.
Timing time_in_graph(const std::function<void(int call, cudaStream_t)>& enqueue, int calls,
                     int replays);

}  // namespace specfast::bench
