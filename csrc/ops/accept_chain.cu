// A cluster of CTAs per request reads the rows that its walk visits, kAhead at a time since a
// chain's next rows are known. Reads V * sizeof(logit) bytes per visited row, rounded up to a
// multiple of kAhead rows. Small batches are bound by latency (a barrier and a row's load per
// step), so they read many rows at once over many CTAs; large ones by bandwidth, so they read
// only what the walk needs.
#include "core/accept_launch.cuh"
#include "ops/accept_chain.h"

namespace specfast {
namespace {

// Measured on an H200 at batches of 1, 8, 64 and 256.
AcceptShape shape_for(int batch_size) {
  if (batch_size <= 16) return {16, 256, 4};
  if (batch_size <= 128) return {8, 256, 2};
  return {4, 256, 1};
}

}  // namespace

void accept_chain_cuda(const AcceptChainParams& params, CUstream_st* stream) {
  const AcceptParams& p = params.accept;
  if (p.batch_size == 0) return clear_rows_of_no_request(p, stream);
  with_source(p, params.rows, [&](auto source) {
    using Source = decltype(source);
    if constexpr (std::is_same_v<Source, GivenPredictions>) {
      launch_accept_ahead<1>(p, ChainLinks{}, source, shape_for_given(p.num_nodes), stream);
    } else {
      AcceptShape shape = shape_for(p.batch_size);
      if (shape.ahead == 4) {
        launch_accept_ahead<4>(p, ChainLinks{}, source, shape, stream);
      } else if (shape.ahead == 2) {
        launch_accept_ahead<2>(p, ChainLinks{}, source, shape, stream);
      } else {
        launch_accept_ahead<1>(p, ChainLinks{}, source, shape, stream);
      }
    }
  });
}

}  // namespace specfast
