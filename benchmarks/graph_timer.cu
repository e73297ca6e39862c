#include <algorithm>
#include <chrono>
#include <vector>

#include "core/error.h"
#include "graph_timer.cuh"

namespace specfast::bench {
namespace {

// An idle card needs this long to reach its clocks.
constexpr std::chrono::milliseconds kWarmup{50};

double quantile(const std::vector<double>& sorted, double q) {
  return sorted[static_cast<size_t>(q * static_cast<double>(sorted.size() - 1) + 0.5)];
}

cudaGraphExec_t capture(const std::function<void(int, cudaStream_t)>& enqueue, int calls,
                        cudaStream_t stream) {
  SPECFAST_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int call = 0; call < calls; ++call) enqueue(call, stream);
  cudaGraph_t graph;
  SPECFAST_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t executable;
  SPECFAST_CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  SPECFAST_CUDA_CHECK(cudaGraphDestroy(graph));
  return executable;
}

}  // namespace

Timing time_in_graph(const std::function<void(int call, cudaStream_t)>& enqueue, int calls,
                     int replays) {
  cudaStream_t stream;
  cudaEvent_t begin;
  cudaEvent_t end;
  SPECFAST_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  SPECFAST_CUDA_CHECK(cudaEventCreate(&begin));
  SPECFAST_CUDA_CHECK(cudaEventCreate(&end));
  cudaGraphExec_t graph = capture(enqueue, calls, stream);

  auto replay_once = [&] {
    SPECFAST_CUDA_CHECK(cudaEventRecord(begin, stream));
    SPECFAST_CUDA_CHECK(cudaGraphLaunch(graph, stream));
    SPECFAST_CUDA_CHECK(cudaEventRecord(end, stream));
    SPECFAST_CUDA_CHECK(cudaEventSynchronize(end));
    float milliseconds = 0;
    SPECFAST_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
    return 1e3 * milliseconds / calls;
  };
  auto warm_at = std::chrono::steady_clock::now() + kWarmup;
  do {
    replay_once();
  } while (std::chrono::steady_clock::now() < warm_at);
  std::vector<double> micros;
  for (int replay = 0; replay < replays; ++replay) micros.push_back(replay_once());

  SPECFAST_CUDA_CHECK(cudaGraphExecDestroy(graph));
  SPECFAST_CUDA_CHECK(cudaEventDestroy(begin));
  SPECFAST_CUDA_CHECK(cudaEventDestroy(end));
  SPECFAST_CUDA_CHECK(cudaStreamDestroy(stream));

  std::sort(micros.begin(), micros.end());
  return {quantile(micros, 0.5), quantile(micros, 0.1), quantile(micros, 0.9), calls, replays};
}

}  // namespace specfast::bench
