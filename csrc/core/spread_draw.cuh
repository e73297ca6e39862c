#pragma once

#include "core/row_share.cuh"
#include "core/step_keys.cuh"

namespace specfast {

struct SpreadDraw {
  uint64_t mass;  // of the row
  int32_t column;
};

// A draw from a row of which every CTA has a share, CTAs in the order of columns: by a warp of
// each, which all give the same.
template <class Team, class T>
__device__ SpreadDraw draw_from_shares(Team& team, PostedKeys& keys, const RowShare<T>& share,
                                       const PlainWeights& weights, int step, int row,
                                       uint64_t random) {
  int lane = threadIdx.x % 32;
  uint64_t mine = share.mass(weights);
  uint64_t of_cta = team.lane_sum(mine);
  if (lane == 0) keys.masses.post(step, row, of_cta);
  uint64_t words[PostedWords::kOfLane];
  keys.masses.collect(step, row, words);
  uint64_t of_lane = 0, of_those_before = 0;
#pragma unroll
  for (int i = 0; i < PostedWords::kOfLane; ++i) {
    of_lane += words[i];
    bool is_before = lane * PostedWords::kOfLane + i < static_cast<int>(blockIdx.x);
    if (is_before) of_those_before += words[i];
  }
  uint64_t mass = team.lane_sum(of_lane);
  uint64_t at = scaled_draw(random, mass) - team.lane_sum(of_those_before);
  if (at < of_cta) {
    Place place = team.locate_lane(mine, at);
    if (lane == place.index) keys.tell_drawn(step, row, share.find(weights, place.rest));
  }
  return {mass, keys.drawn_column(step, row)};
}

}  // namespace specfast
