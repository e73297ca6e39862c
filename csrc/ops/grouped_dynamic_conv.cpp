#include "ops/grouped_dynamic_conv.h"

namespace specfast {
namespace {

template <class T>
void convolve_all(const GroupedDynamicConvParams& p) {
  for (int32_t index = 0; index < p.batch_size * p.num_rows; ++index) {
    SerialTeam team;
    ConvolvedRow<T>{p, index}.run(team);
  }
}

}  // namespace

void grouped_dynamic_conv_cpu(const GroupedDynamicConvParams& p) {
  switch (p.type) {
    case FloatType::kFloat32:
      return convolve_all<float>(p);
    case FloatType::kBFloat16:
      return convolve_all<BFloat16>(p);
    case FloatType::kFloat16:
      return convolve_all<Float16>(p);
  }
}

}  // namespace specfast
