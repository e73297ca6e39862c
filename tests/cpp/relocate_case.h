#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "ops/relocate_kv.h"

namespace specfast::testing {

// A pool of kPages pages of four slots, with the layouts that differ most, and random windows over
// it. Copies are independent, so one case can be run twice.
class RelocateCase {
 public:
  static constexpr int kPages = 16;
  static constexpr int kPageSize = 4;
  static constexpr int kSlots = kPages * kPageSize;

  RelocateCase(unsigned seed, int batch, int rows_per_request)
      : batch_(batch), rows_per_request_(rows_per_request), random_(seed) {
    int rows = batch * rows_per_request;
    // Column bytes, then the strides of page, slot and piece around pieces of so many bytes.
    add_buffer(kSlots * 640, {0, 0, 16, 0, 2560, 640, 1, 640, 0});  // more than one chunk
    add_buffer(kPages * 96, {0, 0, 8, 0, 96, 8, 3, 8, 32});         // heads before slots
    add_buffer(kPages * 30, {0, 0, 4, 0, 28, 4, 1, 4, 0});          // keys of a page
    pieces_.push_back({2, 0, 2, 16, 28, 2, 1, 2, 0});               // and their scales
    add_buffer(rows * 5, {0, 1, 1, 0, 5, 0, 1, 5, 0});              // by row
    for (int i = 0; i < static_cast<int>(pieces_.size()); ++i) {
      int columns = pieces_[i].num_pieces * pieces_[i].piece_bytes / pieces_[i].column_bytes;
      for (int first = 0; first < columns; first += kChunkColumns) chunks_.push_back({i, first});
    }
    slots_.resize(kSlots);
    for (int i = 0; i < kSlots; ++i) slots_[i] = i;
    std::shuffle(slots_.begin(), slots_.end(), random_);
    slots_.resize(rows);
    accept_index_.assign(rows, -1);
    for (int b = 0; b < batch; ++b) commit_lens_.push_back(choose_path(b));
    status_.assign(batch, kNanLogits);
  }

  int32_t* path(int b) { return accept_index_.data() + b * rows_per_request_; }

  // The arguments, in the memory that `place` says for each of the host's vectors.
  template <class Place>
  RelocateKvParams params(Place place) {
    RelocateKvParams p{};
    p.batch_size = batch_;
    p.path_width = rows_per_request_;
    p.num_rows = batch_ * rows_per_request_;
    p.rows_per_request = rows_per_request_;
    p.num_chunks = static_cast<int32_t>(chunks_.size());
    p.num_buffers = static_cast<int32_t>(buffers_.size());
    p.page_size = kPageSize;
    p.num_slots = kSlots;
    p.accept_index = place(accept_index_);
    p.accept_index_stride = rows_per_request_;
    p.commit_lens = place(commit_lens_);
    p.out_cache_loc = {place(slots_), true};
    p.pieces = place(pieces_);
    p.chunks = place(chunks_);
    p.status = place(status_);
    addresses_.clear();
    for (std::vector<char>& buffer : buffers_) addresses_.push_back(place(buffer));
    p.buffers = addresses_.data();
    return p;
  }
  RelocateKvParams params() {
    return params([](auto& vector) { return vector.data(); });
  }

  std::vector<std::vector<char>> buffers_;
  std::vector<int32_t> accept_index_, commit_lens_, status_;
  std::vector<int64_t> slots_;

 private:
  void add_buffer(int bytes, KvPieces pieces) {
    pieces.buffer = static_cast<int64_t>(buffers_.size());
    pieces_.push_back(pieces);
    buffers_.emplace_back(bytes);
    for (char& byte : buffers_.back()) byte = static_cast<char>(random_());
  }

  // A random path from the window's first row; its length.
  int choose_path(int b) {
    std::bernoulli_distribution take(0.4);
    int length = 0;
    for (int row = 0; row < rows_per_request_; ++row) {
      if (row == 0 || take(random_)) path(b)[length++] = b * rows_per_request_ + row;
    }
    return length;
  }

  int batch_;
  int rows_per_request_;
  std::mt19937 random_;
  std::vector<KvPieces> pieces_;
  std::vector<KvChunk> chunks_;
  std::vector<void*> addresses_;
};

}  // namespace specfast::testing
