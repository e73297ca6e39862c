#include "ops/fused_add_rms_norm.h"

namespace specfast {
namespace {

template <class T>
void norm_all(const FusedAddRmsNormParams& p) {
  for (int32_t row = 0; row < p.num_rows; ++row) {
    SerialTeam team;
    RowOfNorms<T>{p, row}.run(team);
  }
}

}  // namespace

void fused_add_rms_norm_cpu(const FusedAddRmsNormParams& p) {
  switch (p.type) {
    case FloatType::kFloat32:
      return norm_all<float>(p);
    case FloatType::kBFloat16:
      return norm_all<BFloat16>(p);
    case FloatType::kFloat16:
      return norm_all<Float16>(p);
  }
}

}  // namespace specfast
