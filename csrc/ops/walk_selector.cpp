#include "ops/walk_selector.h"

namespace specfast {
namespace {

template <class W>
void walk_all(const WalkSelectorParams& p) {
  for (int32_t b = 0; b < p.batch_size; ++b) {
    SerialTeam team;
    SelectorWalk<W, 4>{p, b, false}.run(team);
  }
}

}  // namespace

void walk_selector_cpu(const WalkSelectorParams& p) {
  if (p.codebook_type == FloatType::kFloat32) return walk_all<float>(p);
  walk_all<BFloat16>(p);
}

}  // namespace specfast
