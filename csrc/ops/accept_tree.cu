// A cluster of CTAs per request reads the rows that its walk visits, one after the other: the next
// row is not known before the last one is decided. Reads V * sizeof(logit) bytes per visited row.
// More CTAs per request shorten each step until a step's barriers and the number of clusters that
// fit on the card at once weigh more.
#include "core/accept_launch.cuh"
#include "ops/accept_tree.h"

namespace specfast {
namespace {

// Measured on an H200 at batches of 1, 8, 64 and 256.
AcceptShape shape_for(int batch_size) {
  if (batch_size <= 16) return {16, 256, 1};
  if (batch_size <= 128) return {8, 256, 1};
  return {4, 256, 1};
}

}  // namespace

void accept_tree_cuda(const AcceptTreeParams& params, CUstream_st* stream) {
  const AcceptParams& p = params.accept;
  if (p.batch_size == 0) return clear_rows_of_no_request(p, stream);
  with_source(p, params.rows, [&](auto source) {
    using Source = decltype(source);
    bool given = std::is_same_v<Source, GivenPredictions>;
    AcceptShape shape = given ? shape_for_given(p.num_nodes) : shape_for(p.batch_size);
    launch_accept_ahead<1>(p, params.links, source, shape, stream);
  });
}

}  // namespace specfast
