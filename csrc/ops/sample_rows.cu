#include "core/sampled_launch.cuh"
#include "ops/sample_rows.h"

namespace specfast {

void sample_rows_cuda(const SampleRowsParams& p, CUstream_st* stream) {
  if (p.num_rows == 0) return;
  with_row_form(p.rows, p.sampling, [&](auto form) {
    launch_sampled<RowSampler<decltype(form)>>(p, p.num_rows, p.vocab_size,
                                               sampled_shape(p.num_rows), stream);
  });
}

}  // namespace specfast
