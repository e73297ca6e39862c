#include "ops/place_draft_rows.h"

namespace specfast {

void place_draft_rows_cpu(const PlaceDraftRowsParams& p) {
  for (int32_t b = 0; b < p.batch_size; ++b) DraftPlaces{p, b}.run(SerialTeam());
}

}  // namespace specfast
