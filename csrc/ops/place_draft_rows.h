#pragma once

#include "core/team.h"
#include "core/types.h"

struct CUstream_st;

namespace specfast {

// Where a drafter on the device keeps n rows of each request behind its committed ones. They lie in
// the rest of the last committed page and then in `scratch_pages` pages of the request's own, of
// which page_table row t has first_scratch_page + t * scratch_pages onwards; without scratch pages,
// in the pages of the table.
//
// Rows i >= counts[b], and those whose page is none or not below num_pages, have the slot -1; a
// request with a row outside the table has no page at all.
struct PlaceDraftRowsParams {
  int32_t batch_size;         // B
  int32_t num_rows;           // n
  IdView page_table;          // [T, C]
  int64_t page_table_stride;  // elements between its rows
  int32_t num_table_rows;     // T
  int32_t num_columns;        // C
  int32_t page_size;
  int32_t num_pages;  // of the cache; num_pages * page_size < 2^31
  int32_t first_scratch_page;
  int32_t scratch_pages;

  const int32_t* page_table_rows;  // [B]
  const int32_t* prefix_lens;      // [B]; below 0 counts as 0
  const int32_t* counts;           // [B]

  int32_t* pages;       // [B, C + scratch_pages], -1: none
  int32_t* positions;   // [n, B]: prefix_lens[b] + i
  int32_t* slots;       // [n, B]
  int32_t* row_counts;  // [n, B]: 1 where i < counts[b], 0 elsewhere
};

// One request; the parts of the team divide its pages and rows and never wait for each other.
struct DraftPlaces {
  const PlaceDraftRowsParams& p;
  int32_t b;

  template <class Team>
  SPECFAST_HD void run(const Team& team) const {
    int32_t row = p.page_table_rows[b];
    int32_t prefix_len = max_of(p.prefix_lens[b], 0);
    int32_t count = p.counts[b];
    int32_t first = team.part() * team.size() + team.rank();
    int32_t step = team.parts() * team.size();
    int32_t columns = p.num_columns + p.scratch_pages;
    for (int32_t column = first; column < columns; column += step) {
      p.pages[int64_t{b} * columns + column] = page_of(row, prefix_len, column);
    }
    for (int32_t i = first; i < p.num_rows; i += step) {
      int64_t position = int64_t{prefix_len} + i;
      int64_t column = position / p.page_size;
      int32_t page = column < columns ? page_of(row, prefix_len, static_cast<int32_t>(column)) : -1;
      bool exists = i < count;
      bool has_slot = exists && page >= 0 && page < p.num_pages;
      int64_t at = int64_t{i} * p.batch_size + b;
      p.positions[at] = static_cast<int32_t>(min_of(position, int64_t{INT32_MAX}));
      p.slots[at] = has_slot
                        ? page * p.page_size + static_cast<int32_t>(position - column * p.page_size)
                        : -1;
      p.row_counts[at] = exists ? 1 : 0;
    }
  }

 private:
  SPECFAST_HD int32_t page_of(int32_t row, int32_t prefix_len, int32_t column) const {
    if (row < 0 || row >= p.num_table_rows) return -1;
    int32_t committed = prefix_len / p.page_size + (prefix_len % p.page_size != 0 ? 1 : 0);
    if (p.scratch_pages == 0 || column < committed) {
      if (column >= p.num_columns) return -1;
      int64_t page = p.page_table[row * p.page_table_stride + column];
      return page >= 0 && page < p.num_pages ? static_cast<int32_t>(page) : -1;
    }
    int32_t behind = column - committed;
    return behind < p.scratch_pages ? p.first_scratch_page + row * p.scratch_pages + behind : -1;
  }
};

void place_draft_rows_cpu(const PlaceDraftRowsParams& p);
void place_draft_rows_cuda(const PlaceDraftRowsParams& p, CUstream_st* stream);

}  // namespace specfast
