#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "ops/inject_context_kv.h"

namespace specfast::testing {

// Three layers, whose caches lie slot by slot, head by head, and without alignment. Copies are
// independent, so one case can be run twice. Pages of different requests are different ones.
template <class T>
class ContextCase {
 public:
  static constexpr int kLayers = 3;
  static constexpr int kRows = 5;
  static constexpr int kPageSize = 4;
  static constexpr int kPages = 6;  // of a request

  struct Size {
    int batch, heads, head_dim, rotary_dim;
  };

  ContextCase(Size size, unsigned seed, bool by_path) : size_(size), by_path_(by_path) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    auto pick = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(rng);
    };
    for (int i = 0; i < size.batch * kRows * row_elements(); ++i) {
      keys_values_.push_back(rounded_to<T>(normal(rng)));
    }
    for (int i = 0; i < kLayers * size.head_dim; ++i) weight_.push_back(normal(rng));
    for (int i = 0; i < kPages * kPageSize * size.rotary_dim / 2; ++i) {
      float angle = normal(rng);
      cos_.push_back(std::cos(angle));
      sin_.push_back(std::sin(angle));
    }
    for (int b = 0; b < size.batch; ++b) {
      commit_lens_.push_back(pick(0, kRows));
      prefix_lens_.push_back(pick(0, kPages * kPageSize - kRows));
      table_rows_.push_back(size.batch - 1 - b);
      for (int i = 0; i < kRows; ++i) accept_index_.push_back(b * kRows + pick(0, kRows - 1));
      // The last page of all is nobody's.
      for (int n = 0; n < kPages; ++n) page_table_.push_back(b * kPages + (n + b) % kPages);
    }
    status_.assign(size.batch, kNanLogits);
    for (int layer = 0; layer < kLayers; ++layer) {
      add_buffer(layer);
      add_buffer(layer);
    }
  }

  // The arguments, in the memory that `place` says for each of the host's vectors.
  template <class Place>
  InjectContextKvParams params(Place place) {
    InjectContextKvParams p{};
    placed_.clear();
    for (auto& buffer : buffers_) placed_.push_back(place(buffer));
    p.batch_size = size_.batch;
    p.max_rows = kRows;
    p.num_layers = kLayers;
    p.num_heads = size_.heads;
    p.head_dim = size_.head_dim;
    p.rotary_dim = size_.rotary_dim;
    p.type = sizeof(T) == 4 ? FloatType::kFloat32 : FloatType::kBFloat16;
    p.has_wide_rows = size_.head_dim % 8 == 0 && size_.rotary_dim % 16 == 0;
    p.keys_values = place(keys_values_);
    p.head_stride = size_.head_dim;
    p.value_stride = size_.heads * p.head_stride;
    p.layer_stride = 2 * p.value_stride;
    p.row_stride = row_elements();
    p.request_stride = by_path_ ? 0 : kRows * p.row_stride;
    p.num_source_rows = by_path_ ? size_.batch * kRows : kRows;
    p.accept_index = by_path_ ? place(accept_index_) : nullptr;
    p.accept_index_stride = kRows;
    p.commit_lens = place(commit_lens_);
    p.prefix_lens = place(prefix_lens_);
    p.k_norm_weight = place(weight_);
    p.eps = 1e-6f;
    p.cos = place(cos_);
    p.sin = place(sin_);
    p.num_positions = kPages * kPageSize;
    p.page_table = {place(page_table_), true};
    p.page_table_stride = kPages;
    p.num_table_rows = size_.batch;
    p.num_pages = kPages;
    p.page_size = kPageSize;
    p.page_table_rows = place(table_rows_);
    p.pieces = place(pieces_);
    p.buffers = placed_.data();
    p.buffer_page_size = kPageSize;
    p.num_slots = num_slots();
    p.status = place(status_);
    p.accumulate_status = true;
    return p;
  }
  InjectContextKvParams params() {
    return params([](auto& vector) { return vector.data(); });
  }

  std::vector<T> keys_values_;
  std::vector<std::vector<char>> buffers_;
  std::vector<int32_t> accept_index_, commit_lens_, prefix_lens_, table_rows_, status_;
  std::vector<int64_t> page_table_;

 private:
  int row_elements() const { return kLayers * 2 * size_.heads * size_.head_dim; }
  int num_slots() const { return (size_.batch * kPages + 1) * kPageSize; }

  void add_buffer(int layer) {
    int64_t head = size_.head_dim * static_cast<int64_t>(sizeof(T));
    KvPieces pieces{};
    pieces.buffer = static_cast<int64_t>(pieces_.size());
    pieces.column_bytes = head % 16 == 0 ? 16 : sizeof(T);
    pieces.num_pieces = layer == 1 ? size_.heads : 1;
    pieces.piece_bytes = layer == 1 ? head : size_.heads * head;
    pieces.slot_stride = pieces.piece_bytes;
    pieces.piece_stride = layer == 1 ? kPageSize * head : 0;
    if (layer == 2) {
      pieces.offset = sizeof(T);
      pieces.slot_stride += sizeof(T);
      pieces.column_bytes = sizeof(T);
    }
    pieces.page_stride = kPageSize * (layer == 1 ? size_.heads * head : pieces.slot_stride);
    pieces_.push_back(pieces);
    buffers_.emplace_back(num_slots() / kPageSize * pieces.page_stride + pieces.offset, '\x5c');
  }

  Size size_;
  bool by_path_;
  std::vector<float> weight_, cos_, sin_;
  std::vector<KvPieces> pieces_;
  std::vector<void*> placed_;
};

}  // namespace specfast::testing
