#include "ops/expand_frontier.h"

namespace specfast {

void expand_frontier_cpu(const ExpandFrontierParams& p) {
  with_frontier_type(p, [&](auto type) {
    int64_t rows = int64_t{p.batch_size} * p.num_nodes;
    for (int64_t r = 0; r < rows; ++r) {
      SerialTeam team;
      FrontierRow<decltype(type)>(p, r).run(team);
    }
  });
  for (int64_t b = 0; b < p.batch_size; ++b) {
    SerialTeam team;
    FrontierChoice{p, b}.run(team);
  }
}

}  // namespace specfast
