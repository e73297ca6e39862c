#pragma once

#include "core/accept_params.h"
#include "core/status.h"
#include "core/team.h"

struct CUstream_st;

namespace specfast {

// Lays the verify rows of all requests back to back: what the target reads at each row, and where
// its KV goes. Rows that a request may not have do not come to be: those past the context, past
// the pages that it owns, past the R rows that there are.
struct BuildVerifyWindowParams {
  int32_t batch_size;   // B <= kMaxRequests, B * N < 2^31
  int32_t num_nodes;    // N >= 1
  int32_t num_rows;     // R: the tier
  int32_t vocab_size;   // ids at or past it, and negative ones, are laid out as 0
  int32_t context_len;  // positions; at most num_pages * page_size
  IdView draft_tokens;  // [B, N]; column 0 is the anchor, < 0 in a finished slot
  int64_t draft_tokens_stride;
  IdView anchors;              // [B] read instead of column 0, or null
  const int32_t* prefix_lens;  // [B] committed KV
  const int32_t* verify_lens;  // [B] rows wanted, anchor included; 0 = padded slot; or null: N
  IdView page_table;           // [P, num_pages]; below 0, or with slots past 2^31: no page
  int64_t page_table_stride;
  int32_t num_table_rows;          // P
  int32_t page_size;               // slots
  const int32_t* page_table_rows;  // [B] row of each request, or null: b
  int64_t padding_slot;            // of the rows that belong to no request

  int32_t* window_lens;   // [B] rows that there are, <= verify_lens
  int32_t* qo_indptr;     // [B + 1] first row of each request
  IdSpan input_ids;       // [R] padding 0
  int32_t* positions;     // [R] padding 0
  IdSpan out_cache_loc;   // [R] KV slot, padding padding_slot
  int32_t* window_index;  // [R] b * N + node, padding -1
  int32_t* status;        // [B]
};

// Of the requests of one part.
struct WindowScratch {
  int32_t* first_rows;
  int32_t* lens;
  int32_t* status;
};

struct WindowLen {
  int32_t len;
  int32_t status;
};

// Requests are divided evenly; the last part may have fewer.
SPECFAST_HD int requests_per_part(const BuildVerifyWindowParams& p, int parts) {
  return ceil_div(p.batch_size, parts);
}

template <class Arena>
SPECFAST_HD WindowScratch build_verify_window_scratch(Arena& arena,
                                                      const BuildVerifyWindowParams& p, int parts) {
  int n = requests_per_part(p, parts);
  return {arena.template scratch<int32_t>(n), arena.template scratch<int32_t>(n),
          arena.template scratch<int32_t>(n)};
}

SPECFAST_HD int64_t window_anchor(const BuildVerifyWindowParams& p, int b) {
  return p.anchors ? p.anchors[b] : p.draft_tokens[b * p.draft_tokens_stride];
}

SPECFAST_HD int64_t table_row(const BuildVerifyWindowParams& p, int b) {
  return p.page_table_rows != nullptr ? p.page_table_rows[b] : b;
}

// How many rows request b may have, whatever the others have.
SPECFAST_HD WindowLen allowed_len(const BuildVerifyWindowParams& p, int b) {
  int32_t wanted = p.verify_lens != nullptr ? p.verify_lens[b] : p.num_nodes;
  int32_t prefix_len = p.prefix_lens[b];
  int64_t row = table_row(p, b);
  int64_t anchor = window_anchor(p, b);
  int32_t len = clamp_to(wanted, 0, p.num_nodes);
  int32_t status = len != wanted ? kBadParam : kStatusOk;
  if (len == 0 || anchor < 0) return {0, status};
  bool exists =
      prefix_len >= 0 && prefix_len <= p.context_len && row >= 0 && row < p.num_table_rows;
  if (!exists) return {0, kBadParam};
  len = min_of(len, p.context_len - prefix_len);
  if (len == 0) return {0, status};

  int first_page = prefix_len / p.page_size;
  int last_page = (prefix_len + len - 1) / p.page_size;
  int num_usable_pages = INT32_MAX / p.page_size;
  int missing = last_page + 1;
  SPECFAST_UNROLL_BY_4
  for (int page = first_page; page <= last_page; ++page) {
    int64_t entry = p.page_table[row * p.page_table_stride + page];
    if (entry < 0 || entry >= num_usable_pages) missing = min_of(missing, page);
  }
  if (missing > last_page) return {len, status};
  return {max_of(missing * p.page_size - prefix_len, 0), kBadParam};
}

// Every part looks at all requests, and lays out the rows of its own and a share of the padding.
template <class Team>
SPECFAST_HD void build_verify_window_batch(Team& team, const BuildVerifyWindowParams& p,
                                           const WindowScratch& scratch) {
  int share = requests_per_part(p, team.parts());
  int first = min_of(share * team.part(), p.batch_size);
  int count = min_of(share, p.batch_size - first);
  int64_t before_and_all = 0;  // rows of the requests before this part's, and << 32 of all
  SPECFAST_NO_UNROLL
  for (int b = team.rank(); b < p.batch_size; b += team.size()) {
    WindowLen window = allowed_len(p, b);
    before_and_all += static_cast<int64_t>(window.len) << 32;
    if (b < first) before_and_all += window.len;
    if (b < first || b >= first + count) continue;
    scratch.lens[b - first] = window.len;
    scratch.status[b - first] = window.status;
  }
  before_and_all = team.sum(before_and_all);
  int32_t total = min_of(static_cast<int32_t>(before_and_all >> 32), p.num_rows);

  if (team.subgroup() == 0) {
    int32_t begin = static_cast<int32_t>(before_and_all);
    SPECFAST_NO_UNROLL
    for (int chunk = 0; chunk < count; chunk += team.lanes()) {
      int i = chunk + team.lane();
      uint64_t of_chunk;
      uint64_t len = i < count ? scratch.lens[i] : 0;
      uint64_t before = team.lane_prefix(len, &of_chunk);
      if (i < count) {
        int32_t row = begin + static_cast<int32_t>(before);
        int32_t fitting = clamp_to(p.num_rows - row, 0, scratch.lens[i]);
        if (fitting < scratch.lens[i]) scratch.status[i] |= kBadParam;
        scratch.first_rows[i] = min_of(row, p.num_rows);
        scratch.lens[i] = fitting;
      }
      begin += static_cast<int32_t>(of_chunk);
    }
  }
  team.sync_part();  // first_rows, lens, status: written above, read below

  SPECFAST_NO_UNROLL
  for (int i = team.rank(); i < count; i += team.size()) {
    p.qo_indptr[first + i] = scratch.first_rows[i];
    p.window_lens[first + i] = scratch.lens[i];
    p.status[first + i] = scratch.status[i];
  }
  if (team.part() == team.parts() - 1 && team.rank() == 0) p.qo_indptr[p.batch_size] = total;

  SPECFAST_NO_UNROLL
  for (int at = team.rank(); at < count * p.num_nodes; at += team.size()) {
    int i = at / p.num_nodes;
    int node = at - i * p.num_nodes;
    if (node >= scratch.lens[i]) continue;
    int b = first + i;
    int row = scratch.first_rows[i] + node;
    int32_t position = p.prefix_lens[b] + node;
    int64_t token =
        node == 0 ? window_anchor(p, b) : p.draft_tokens[b * p.draft_tokens_stride + node];
    int page = position / p.page_size;
    int64_t entry = p.page_table[table_row(p, b) * p.page_table_stride + page];
    p.input_ids.store(row, token >= 0 && token < p.vocab_size ? token : 0);
    p.positions[row] = position;
    p.out_cache_loc.store(row, entry * p.page_size + (position - page * p.page_size));
    p.window_index[row] = b * p.num_nodes + node;
  }
  SPECFAST_NO_UNROLL
  for (int row = total + team.part() * team.size() + team.rank(); row < p.num_rows;
       row += team.parts() * team.size()) {
    p.input_ids.store(row, 0);
    p.positions[row] = 0;
    p.out_cache_loc.store(row, p.padding_slot);
    p.window_index[row] = -1;
  }
}

inline void build_verify_window_cpu(const BuildVerifyWindowParams& p) {
  SerialTeam team;
  build_verify_window_batch(team, p, build_verify_window_scratch(team, p, 1));
}

void build_verify_window_cuda(const BuildVerifyWindowParams& p, CUstream_st* stream);

}  // namespace specfast
