#include "core/thread_team.h"
#include "ops/relocate_kv.h"
#include "relocate_case.h"
#include "testing.h"

namespace specfast {
namespace {

using testing::RelocateCase;

constexpr int kParts = 2;
constexpr int kThreads = 4;

void relocate_with_threads(const RelocateKvParams& p, int dropped_barrier = -1) {
  for (int b = 0; b < p.batch_size; ++b) {
    ThreadTeam::run(
        kParts, kThreads,
        [&](ThreadTeam& team) {
          relocate_kv_request(team, p, b, column_of(p, first_column(team)));
        },
        dropped_barrier);
  }
}

TEST(threads_move_the_same_bytes_as_one_thread) {
  for (unsigned seed = 0; seed < 10; ++seed) {
    RelocateCase serial(seed, 3, 21);
    RelocateCase threads = serial;
    RelocateCase before = serial;
    relocate_kv_cpu(serial.params());
    relocate_with_threads(threads.params());
    CHECK(threads.buffers_ == serial.buffers_);
    CHECK(threads.buffers_ != before.buffers_);
    CHECK_EQ(threads.status_, std::vector<int32_t>(3, kStatusOk));
  }
}

// Rows 1, 2 and 4 of the window move, their slots are a page apart.
TEST(each_byte_of_a_packed_page_goes_with_its_token) {
  RelocateCase test(1, 1, 5);
  for (int row = 0; row < 5; ++row) test.slots_[row] = 4 * row + row % 4;
  test.accept_index_ = {0, 2, 4, -1, -1};
  test.commit_lens_ = {3};
  std::vector<char> expected = test.buffers_[2];
  auto copy_token = [&](int to, int from) {
    for (int i = 0; i < 4; ++i) {
      expected[to / 4 * 28 + to % 4 * 4 + i] = expected[from / 4 * 28 + from % 4 * 4 + i];
    }
    for (int i = 0; i < 2; ++i) {
      expected[to / 4 * 28 + 16 + to % 4 * 2 + i] = expected[from / 4 * 28 + 16 + from % 4 * 2 + i];
    }
  };
  copy_token(test.slots_[1], test.slots_[2]);
  copy_token(test.slots_[2], test.slots_[4]);
  relocate_with_threads(test.params());
  CHECK(test.buffers_[2] == expected);
}

// A fault that only the last thread of a part can see keeps all threads of all parts still.
TEST(a_bad_path_moves_nothing) {
  RelocateCase test(2, 1, 16);
  for (int i = 0; i < 12; ++i) test.path(0)[i] = i == 0 ? 0 : i + 4;
  test.path(0)[11] = 14;
  test.commit_lens_ = {12};
  RelocateCase before = test;
  relocate_with_threads(test.params());
  CHECK(test.buffers_ == before.buffers_);
  CHECK_EQ(test.status_, std::vector<int32_t>{kBadPath});
}

TEST(a_slot_used_twice_moves_nothing) {
  RelocateCase test(3, 1, 16);
  for (int i = 0; i < 12; ++i) test.path(0)[i] = i == 0 ? 0 : i + 4;
  test.commit_lens_ = {12};
  test.slots_[15] = test.slots_[3];
  RelocateCase before = test;
  relocate_with_threads(test.params());
  CHECK(test.buffers_ == before.buffers_);
  CHECK_EQ(test.status_, std::vector<int32_t>{kBadPath});
}

PLANTED_FAULT(moves_compared_before_they_are_written) {
  RelocateCase test(4, 1, 16);
  relocate_with_threads(test.params(), /*dropped_barrier=*/0);
}

}  // namespace
}  // namespace specfast
