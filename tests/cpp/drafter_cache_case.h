#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "drafter_rows_case.h"
#include "ops/place_draft_rows.h"
#include "ops/rope_append_kv.h"

namespace specfast::testing {

// Rows of a few requests in slots of their own, some of which have no slot or no position. Keys
// lie slot by slot, values head by head.
template <class T>
struct RopeCase {
  struct Size {
    int batch, rows, heads, kv_heads, head_dim, rotary_dim;
  };

  RopeCase(Size size, unsigned seed, bool is_normed) : size(size), is_normed(is_normed) {
    std::mt19937 rng(seed);
    auto pick = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(rng);
    };
    qkv = normal_values<T>(rng, size.batch * size.rows * columns());
    weights = normal_values<float>(rng, 2 * size.head_dim);
    for (int i = 0; i < kPositions * size.rotary_dim / 2; ++i) {
      float angle = normal_values<float>(rng, 1)[0];
      cos.push_back(std::cos(angle));
      sin.push_back(std::sin(angle));
    }
    for (int i = 0; i < size.batch * size.rows; ++i) {
      positions.push_back(pick(0, 5) == 0 ? pick(0, 1) * (kPositions + 1) - 1 : pick(0, 8));
      slots.push_back(pick(0, 5) == 0 ? pick(0, 1) * (num_slots() + 1) - 1 : num_slots() - 1 - i);
    }
    T unwritten = rounded_to<T>(-77.0f);
    keys.assign(num_slots() * size.kv_heads * size.head_dim, unwritten);
    values = keys;
    queries.assign(size.batch * size.rows * size.heads * size.head_dim, unwritten);
  }

  template <class Place>
  RopeAppendKvParams params(Place place) {
    RopeAppendKvParams p{};
    p.num_rows = size.batch * size.rows;
    p.num_heads = size.heads;
    p.num_kv_heads = size.kv_heads;
    p.head_dim = size.head_dim;
    p.rotary_dim = size.rotary_dim;
    p.type = type_of<T>();
    p.has_wide_rows = size.head_dim % 8 == 0 && size.rotary_dim % 16 == 0;
    p.qkv = place(qkv);
    p.qkv_stride = columns();
    p.rows_per_request = size.rows;
    // As they come from a record of [rows, batch], and from one of [batch, rows].
    p.positions = {place(positions), false};
    p.positions_request_stride = 1;
    p.positions_stride = size.batch;
    p.slots = {place(slots), true};
    p.slots_request_stride = size.rows;
    p.slots_stride = 1;
    if (is_normed) {
      const float* both = place(weights);
      p.q_norm_weight = both;
      p.k_norm_weight = both + size.head_dim;
    }
    p.eps = 1e-6f;
    p.cos = place(cos);
    p.sin = place(sin);
    p.num_positions = kPositions;
    p.queries = place(queries);
    p.keys = place(keys);
    p.values = place(values);
    p.num_slots = num_slots();
    p.key_head_stride = p.value_slot_stride = size.head_dim;
    p.key_slot_stride = size.kv_heads * size.head_dim;
    p.value_head_stride = num_slots() * size.head_dim;
    return p;
  }
  RopeAppendKvParams params() {
    return params([](auto& vector) { return vector.data(); });
  }

  static constexpr int kPositions = 9;
  int columns() const { return (size.heads + 2 * size.kv_heads) * size.head_dim; }
  int num_slots() const { return size.batch * size.rows + 3; }

  Size size;
  bool is_normed;
  std::vector<T> qkv, keys, values, queries;
  std::vector<float> weights, cos, sin;
  std::vector<int32_t> positions;
  std::vector<int64_t> slots;
};

// Requests anywhere in tables of which some pages, and some rows, are none.
struct PlacesCase {
  PlacesCase(int batch, int rows, int columns, int scratch_pages, unsigned seed)
      : batch(batch), rows(rows), columns(columns), scratch_pages(scratch_pages) {
    std::mt19937 rng(seed);
    auto pick = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(rng);
    };
    for (int i = 0; i < kTableRows * columns; ++i) {
      page_table.push_back(pick(0, 9) == 0 ? pick(0, 1) * (kPages + 1) - 1 : pick(0, kPages - 1));
    }
    for (int b = 0; b < batch; ++b) {
      table_rows.push_back(pick(-1, kTableRows));
      prefix_lens.push_back(pick(0, 9) == 0 ? INT32_MAX - 1 : pick(-1, columns * kPageSize + 2));
      counts.push_back(pick(-1, rows + 1));
    }
    pages.assign(batch * (columns + scratch_pages), -77);
    positions.assign(rows * batch, -77);
    slots = row_counts = positions;
  }

  template <class Place>
  PlaceDraftRowsParams params(Place place) {
    PlaceDraftRowsParams p{};
    p.batch_size = batch;
    p.num_rows = rows;
    p.page_table = {place(page_table), true};
    p.page_table_stride = columns;
    p.num_table_rows = kTableRows;
    p.num_columns = columns;
    p.page_size = kPageSize;
    p.num_pages = kPages + kTableRows * scratch_pages;
    p.first_scratch_page = kPages;
    p.scratch_pages = scratch_pages;
    p.page_table_rows = place(table_rows);
    p.prefix_lens = place(prefix_lens);
    p.counts = place(counts);
    p.pages = place(pages);
    p.positions = place(positions);
    p.slots = place(slots);
    p.row_counts = place(row_counts);
    return p;
  }
  PlaceDraftRowsParams params() {
    return params([](auto& vector) { return vector.data(); });
  }

  static constexpr int kTableRows = 5;
  static constexpr int kPages = 30;
  static constexpr int kPageSize = 3;
  int batch, rows, columns, scratch_pages;
  std::vector<int64_t> page_table;
  std::vector<int32_t> table_rows, prefix_lens, counts, pages, positions, slots, row_counts;
};

}  // namespace specfast::testing
