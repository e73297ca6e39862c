#pragma once

#include "core/attention_params.h"

namespace specfast {

// Chunks of keys as the kernels on tensor cores number them: the first 16 of 512 positions, so that
// one request is enough for all SMs, those behind them of 2048, so that a long one does not have
// more parts than its keys are worth.
constexpr int kFineChunks = 16;
constexpr int32_t kFineKeys = kFineChunks * kChunkKeys;
constexpr int32_t kCoarseChunkKeys = 2048;

SPECFAST_HD int chunk_at(int32_t position) {
  return position < kFineKeys ? position / kChunkKeys
                              : kFineChunks + (position - kFineKeys) / kCoarseChunkKeys;
}

SPECFAST_HD int32_t first_of_chunk(int chunk) {
  return chunk <= kFineChunks ? chunk * kChunkKeys
                              : kFineKeys + (chunk - kFineChunks) * kCoarseChunkKeys;
}

// From a position up to the next chunk.
SPECFAST_HD int32_t keys_left_of_chunk(int32_t position) {
  static_assert((kChunkKeys & (kChunkKeys - 1)) == 0);
  static_assert((kCoarseChunkKeys & (kCoarseChunkKeys - 1)) == 0);
  const int32_t keys = position < kFineKeys ? kChunkKeys : kCoarseChunkKeys;
  return keys - (position & (keys - 1));
}

// Chunks [first, last), and positions of the prefix in them.
struct ChunkRange {
  int first;
  int last;
  int32_t begin;
  int32_t end;
  bool has_window;  // which the last chunk goes on into
};

// Those that any row of a request sees.
SPECFAST_HD ChunkRange find_chunks(const VerifyAttentionParams& p, const AttentionRequest& r) {
  ChunkRange range;
  range.last = r.prefix_len == 0 ? 1 : chunk_at(r.prefix_len - 1) + 1;
  range.begin = first_seen(p, r, 0);
  range.end = r.prefix_len;
  range.first = min_of(chunk_at(range.begin), range.last - 1);
  range.has_window = true;
  return range;
}

// So many of them at most, from number `skipped` on.
SPECFAST_HD ChunkRange some_chunks(const ChunkRange& all, int skipped, int count) {
  ChunkRange range = all;
  range.first = all.first + skipped;
  range.last = min_of(range.first + count, all.last);
  range.has_window = all.has_window && range.last == all.last;
  range.begin = max_of(all.begin, min_of(first_of_chunk(range.first), all.end));
  if (!range.has_window) range.end = first_of_chunk(range.last);
  return range;
}

}  // namespace specfast
