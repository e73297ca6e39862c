#include "ops/gather_eagle_inputs.h"

namespace specfast {
namespace {

template <class T>
void gather_all(const GatherEagleInputsParams& p) {
  for (int32_t index = 0; index < p.batch_size * p.num_nodes; ++index) {
    SerialTeam team;
    EagleInput<T>{p, index}.run(team);
  }
}

}  // namespace

void gather_eagle_inputs_cpu(const GatherEagleInputsParams& p) {
  switch (p.type) {
    case FloatType::kFloat32:
      return gather_all<float>(p);
    case FloatType::kBFloat16:
      return gather_all<BFloat16>(p);
    case FloatType::kFloat16:
      return gather_all<Float16>(p);
  }
}

}  // namespace specfast
