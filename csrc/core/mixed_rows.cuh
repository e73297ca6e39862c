#pragma once

#include "core/markov_head.h"

namespace specfast {

// The embeddings of a step under a gated or recurrent head, a row after the other by the whole CTA.
template <class W, class Embeddings>
struct MixedRows {
  MarkovMixer<W> mixer;
  Embeddings embeddings;
  const W* w1;  // [E, rank]
  int32_t rank;
  const int64_t* previous;  // the tokens
  uint64_t rows;            // bit b: row b has an embedding
  int64_t first_step;       // of row 0, over all requests
  int32_t steps_between;    // of one row and the next

  template <class Team>
  __device__ void run(Team& team) {
    for (uint64_t left = rows; left != 0; left &= left - 1) {
      int b = __ffsll(static_cast<long long>(left)) - 1;
      mixer.mix(team, b, w1 + previous[b] * rank, first_step + int64_t{b} * steps_between,
                [&](int32_t k, W value) { embeddings.put(b, k, value); });
    }
  }
};

}  // namespace specfast
