#pragma once

#include "core/accept_walk.h"
#include "core/request_sampling.h"

namespace specfast {

// What one shard of the vocabulary says of a row, in 64-bit words (docs/numerics.md, "Shards").
// Keys are those of argmax_key with the ids of the whole vocabulary.
struct ShardRecord {
  enum Word : int32_t {
    kLargest = 0,   // key of the argmax; bit 0: the shard has a NaN
    kRest = 1,      // mass of its tokens but the candidates, in units of its own largest; no top-k
    kDrawn = 2,     // token drawn from that rest, or -1
    kFirstKey = 3,  // keys of the candidates, 0 for none; then with top-k of its best tokens, best
                    // first, 0 behind the last
  };
  int32_t max_candidates;
  int32_t max_top_k;

  SPECFAST_HD int32_t first_best() const { return kFirstKey + max_candidates; }
  SPECFAST_HD int32_t words() const { return first_best() + max_top_k; }
};

// The request and node that a verify row belongs to.
struct RowOwner {
  int32_t request;  // -1: none, or the node is not verified
  int32_t node;
  Window window;

  // A barrier where rows are ragged.
  template <class Team>
  SPECFAST_HD static RowOwner of(Team& team, const AcceptParams& p, int64_t r) {
    int32_t request = 0;
    if (p.qo_indptr == nullptr) {
      request = static_cast<int32_t>(r / p.num_nodes);
    } else {
      SPECFAST_NO_UNROLL
      for (int i = 1 + team.rank(); i <= p.batch_size; i += team.size()) {
        request += p.qo_indptr[i] <= r ? 1 : 0;
      }
      request = team.sum(request);
    }
    if (request >= p.batch_size) return {-1, 0, {}};
    Window window = request_window(p, request);
    int64_t node = r - window.base;
    bool verified = node >= 0 && node < window.verified;
    return {verified ? request : -1, static_cast<int32_t>(node), window};
  }
};

// The parameters of a request as far as shards can follow them: one that orders tokens by mass
// needs a top-k that the record has room for. Others are greedy.
SPECFAST_HD RequestSampling load_shard_sampling(const SamplingParams& p, const AcceptParams& accept,
                                                int b, const ShardRecord& record) {
  RequestSampling out = RequestSampling::load(p, b, accept.vocab_size);
  out.random.prefix_len = legal_prefix_len(accept, b);
  bool sorts = out.has_top_p || out.min_mass > 1;
  bool follows = out.top_k > 0 ? out.top_k <= record.max_top_k : !sorts;
  if (!out.greedy && !follows) {
    out.greedy = true;
    out.status |= kBadParam;
  }
  return out;
}

}  // namespace specfast
