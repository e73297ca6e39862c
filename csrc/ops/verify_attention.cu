#include "core/attention_simple.cuh"
#include "ops/verify_attention.h"

namespace specfast {

void verify_attention_cuda(const VerifyAttentionParams& p, CUstream_st* stream) {
  if (p.num_rows == 0) return;
  with_attention_type(p.type, [&](auto type) {
    LaunchShape shape{dim3(p.num_rows * p.num_heads), dim3(SimpleAttention::kThreads)};
    shape.begins_early = true;
    launch(simple_attention_kernel<decltype(type)>, shape, stream, p);
  });
}

}  // namespace specfast
