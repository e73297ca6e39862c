#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "ops/commit_state.h"

namespace specfast::testing {

// Three buffers that differ in what they have of: several tiles in two layers, items between
// padding, single bytes. Copies are independent, so one case can be run twice.
class StateCase {
 public:
  static constexpr int kSlots = 7;
  static constexpr int kWidth = 5;

  StateCase(unsigned seed, int batch) : batch_(batch), rows_(batch * kWidth), random_(seed) {
    add_buffer(2, kStateTileBytes + 1040, kStateTileBytes + 1056, 16);
    add_buffer(3, 24, 40, 8);
    add_buffer(1, 5, 5, 1);
    for (int b = 0; b < batch; ++b) {
      int length = static_cast<int>(random_() % (kWidth + 1));
      commit_lens_.push_back(length);
      // Only the last committed row is looked at.
      for (int i = 0; i < kWidth; ++i) {
        accept_index_.push_back(i + 1 == length ? b * kWidth + static_cast<int>(random_() % kWidth)
                                                : -1);
      }
    }
    for (int slot = 0; slot < kSlots; ++slot) slots_.push_back(slot);
    std::shuffle(slots_.begin(), slots_.end(), random_);
    slots_.resize(batch);
    status_.assign(batch, kNanLogits);
  }

  // The arguments, in the memory that `place` says for each of the host's vectors.
  template <class Place>
  CommitStateParams params(Place place) {
    CommitStateParams p{};
    placed_ = buffers_;
    for (size_t i = 0; i < placed_.size(); ++i) {
      placed_[i].states = place(states_[i]);
      placed_[i].pool = place(pools_[i]);
    }
    p.batch_size = batch_;
    p.path_width = kWidth;
    p.num_buffers = static_cast<int32_t>(placed_.size());
    p.num_tiles = num_tiles_;
    p.num_rows = rows_;
    p.num_slots = kSlots;
    p.accept_index = place(accept_index_);
    p.accept_index_stride = kWidth;
    p.commit_lens = place(commit_lens_);
    p.slots = {place(slots_), true};
    p.buffers = placed_.data();
    p.status = place(status_);
    return p;
  }
  CommitStateParams params() {
    return params([](auto& vector) { return vector.data(); });
  }

  std::vector<std::vector<char>> states_, pools_;
  std::vector<int32_t> accept_index_, commit_lens_, status_;
  std::vector<int64_t> slots_;

 private:
  void add_buffer(int layers, int item_bytes, int stride, int word_bytes) {
    StateBuffer buffer{};
    buffer.state_row_stride = buffer.pool_slot_stride = stride;
    buffer.state_layer_stride = int64_t{stride} * rows_;
    buffer.pool_layer_stride = int64_t{stride} * kSlots;
    buffer.item_bytes = item_bytes;
    buffer.word_bytes = word_bytes;
    buffer.tiles_per_item = ceil_div(item_bytes, kStateTileBytes);
    buffer.first_tile = num_tiles_;
    num_tiles_ += layers * buffer.tiles_per_item;
    buffers_.push_back(buffer);
    for (auto* side : {&states_, &pools_}) {
      side->emplace_back(layers * stride * (side == &states_ ? rows_ : kSlots));
      for (char& byte : side->back()) byte = static_cast<char>(random_());
    }
  }

  int batch_;
  int rows_;
  std::mt19937 random_;
  int64_t num_tiles_ = 0;
  std::vector<StateBuffer> buffers_, placed_;
};

}  // namespace specfast::testing
