#include "ops/verify_attention.h"

namespace specfast {

void verify_attention_cpu(const VerifyAttentionParams& p) {
  with_attention_types(p, [&](auto type, auto cache_type) {
    SerialTeam team;
    verify_attention_batch<decltype(type), decltype(cache_type)>(
        team, p, verify_attention_scratch(team, p, 1, 0));
  });
}

}  // namespace specfast
