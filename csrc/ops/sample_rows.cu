#include "core/sampled_launch.cuh"
#include "ops/sample_rows.h"

namespace specfast {

void sample_rows_cuda(const SampleRowsParams& p, CUstream_st* stream) {
  if (p.num_rows == 0) return;
  with_row_form(p.rows, p.sampling, [&](auto type, auto edited) {
    using T = decltype(type);
    launch_sampled<RowSampler<T, decltype(edited)::value>>(p, p.num_rows, p.vocab_size,
                                                           static_cast<int>(sizeof(LogitGroup<T>)),
                                                           sampled_shape(p.num_rows), stream);
  });
}

}  // namespace specfast
