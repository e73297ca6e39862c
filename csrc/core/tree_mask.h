#pragma once

#include "core/tree_paths.h"

namespace specfast {

enum class MaskMode : int32_t {
  kBits,  // uint32 [B, N, ceil(N / 32)], bit c % 32 of word c / 32 is column c
  kQlen,  // bytes [B, N, N]
  kFull,  // bytes [capacity]: per request N rows of prefix_len + N, requests back to back; the
          // prefix is all ones, what lies past the last request is left alone
};

// Rows [first_row, last_row) of one request; `mask` is its first word.
template <class Team>
SPECFAST_HD void write_mask_bits(Team& team, const TreeScratch& tree, int num_nodes, int first_row,
                                 int last_row, uint32_t* mask) {
  int words = ceil_div(num_nodes, 32);
  // Rows are counted as if a power of two of words long, which spares a division per word.
  int shift = log2_ceil(words);
  SPECFAST_NO_UNROLL
  for (int i = (first_row << shift) + team.rank(); i < last_row << shift; i += team.size()) {
    int row = i >> shift;
    int word = i - (row << shift);
    if (word < words) mask[row * words + word] = path_word(tree, row, word);
  }
}

constexpr int kWindowBytes = 16;

struct alignas(kWindowBytes) MaskWindow {
  uint32_t words[kWindowBytes / 4];
};

// 16 columns of a mask row from `column` on, which is negative in the prefix.
SPECFAST_HD uint32_t mask_columns(const TreeScratch& tree, int row, int64_t column) {
  if (column <= -kWindowBytes) return 0xffff;
  if (column < 0) {
    int in_prefix = static_cast<int>(-column);
    return (path_word(tree, row, 0) << in_prefix | ((1u << in_prefix) - 1)) & 0xffff;
  }
  int word = static_cast<int>(column / 32);
  int shift = static_cast<int>(column % 32);
  uint64_t low = path_word(tree, row, word);
  uint64_t high = shift > 32 - kWindowBytes ? path_word(tree, row, word + 1) : 0;
  return static_cast<uint32_t>((high << 32 | low) >> shift) & 0xffff;
}

// The bytes of one mask row that lie in its 16-byte window number `window`, counted from the
// aligned address at or before the row. Neighbouring rows share a window, so only a window that
// lies inside the row is stored whole.
SPECFAST_HD void write_mask_window(const TreeScratch& tree, int row, int64_t prefix_len,
                                   int64_t row_bytes, uint8_t* row_begin, int64_t window) {
  int64_t misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(row_begin) % kWindowBytes);
  int64_t first = window * kWindowBytes - misaligned;
  if (first >= row_bytes) return;
  uint32_t columns = mask_columns(tree, row, first - prefix_len);
  if (first >= 0 && first + kWindowBytes <= row_bytes) {
    MaskWindow bytes;
    for (int i = 0; i < kWindowBytes / 4; ++i) {
      // Four bits to four bytes: the products put bit n at bit 8n and other bits elsewhere.
      bytes.words[i] = ((columns >> 4 * i & 0xf) * 0x00204081u) & 0x01010101u;
    }
    *reinterpret_cast<MaskWindow*>(row_begin + first) = bytes;
    return;
  }
  for (int i = 0; i < kWindowBytes; ++i) {
    int64_t at = first + i;
    if (at >= 0 && at < row_bytes) row_begin[at] = columns >> i & 1;
  }
}

// Rows [first_row, last_row) of one request; `mask` is its first byte.
template <class Team>
SPECFAST_HD void write_mask_bytes(Team& team, const TreeScratch& tree, int num_nodes,
                                  int64_t prefix_len, int first_row, int last_row, uint8_t* mask) {
  int64_t row_bytes = prefix_len + num_nodes;
  // As many windows as a row can touch, so that (row, window) are digits of one running number;
  // adding team.size() to it digit by digit spares a division per window.
  int windows = static_cast<int>(row_bytes / kWindowBytes) + 2;
  int row = first_row + team.rank() / windows;
  int window = team.rank() % windows;
  SPECFAST_NO_UNROLL
  while (row < last_row) {
    write_mask_window(tree, row, prefix_len, row_bytes, mask + row * row_bytes, window);
    row += team.size() / windows;
    window += team.size() % windows;
    if (window >= windows) {
      window -= windows;
      ++row;
    }
  }
}

}  // namespace specfast
