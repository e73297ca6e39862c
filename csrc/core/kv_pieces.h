#pragma once

#include "core/types.h"

namespace specfast {

constexpr int kMaxKvBuffers = 1024;

// Where the bytes of an entry of a buffer lie: num_pieces pieces of piece_bytes, piece n at
//   buffers[buffer] + offset + page * page_stride + in_page * slot_stride + n * piece_stride
// An entry is KV slot page * page_size + in_page; where by_row is set it is verify row `page`.
// column_bytes (16, 8, 4, 2 or 1) divides the address of the buffer and all other byte counts.
// One row of the int64 tensor that KvLayout builds.
struct KvPieces {
  int64_t buffer;
  int64_t by_row;
  int64_t column_bytes;
  int64_t offset;
  int64_t page_stride;
  int64_t slot_stride;
  int64_t num_pieces;
  int64_t piece_bytes;
  int64_t piece_stride;
};

struct KvEntry {
  int32_t page;
  int32_t in_page;

  SPECFAST_HD bool operator==(const KvEntry& other) const {
    return page == other.page && in_page == other.in_page;
  }
};

// A slot fits into 32 bits, where a division is cheap.
SPECFAST_HD KvEntry entry_of_slot(int64_t slot, int32_t page_size) {
  int32_t page = static_cast<int32_t>(slot) / page_size;
  return {page, static_cast<int32_t>(slot) - page * page_size};
}

}  // namespace specfast
