#include "ops/silu_and_mul.h"

namespace specfast {
namespace {

template <class T>
void gate_all(const SiluAndMulParams& p) {
  for (int32_t row = 0; row < p.num_rows; ++row) {
    SerialTeam team;
    GatedRow<T>{p, row}.run(team);
  }
}

}  // namespace

void silu_and_mul_cpu(const SiluAndMulParams& p) {
  switch (p.type) {
    case FloatType::kFloat32:
      return gate_all<float>(p);
    case FloatType::kBFloat16:
      return gate_all<BFloat16>(p);
    case FloatType::kFloat16:
      return gate_all<Float16>(p);
  }
}

}  // namespace specfast
