#include "core/thread_team.h"
#include "drafter_cache_case.h"
#include "testing.h"

namespace specfast {
namespace {

using testing::PlacesCase;
using testing::RopeCase;
using testing::same_bits;

template <class T>
void expect_threads_store_the_same(typename RopeCase<T>::Size size) {
  for (unsigned seed = 0; seed < 4; ++seed) {
    RopeCase<T> serial(size, seed, seed % 2 == 1);
    RopeCase<T> threads = serial;
    RopeCase<T> before = serial;
    rope_append_kv_cpu(serial.params());
    RopeAppendKvParams p = threads.params();
    ThreadTeam::run(2, 4, [&](ThreadTeam& team) { RotatedRows<T>{p}.run(team); });
    CHECK(same_bits(threads.queries, serial.queries));
    CHECK(same_bits(threads.keys, serial.keys));
    CHECK(same_bits(threads.values, serial.values));
    CHECK(!same_bits(before.keys, serial.keys));
  }
}

TEST(threads_store_the_same_rows_as_one_thread) {
  expect_threads_store_the_same<BFloat16>({3, 4, 4, 2, 32, 16});
  expect_threads_store_the_same<float>({2, 3, 2, 1, 10, 6});
}

TEST(threads_place_the_same_rows_as_one_thread) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    PlacesCase serial(4, 6, 5, seed % 3, seed);
    PlacesCase threads = serial;
    place_draft_rows_cpu(serial.params());
    PlaceDraftRowsParams p = threads.params();
    for (int32_t b = 0; b < p.batch_size; ++b) {
      ThreadTeam::run(2, 4, [&](ThreadTeam& team) { DraftPlaces{p, b}.run(team); });
    }
    CHECK_EQ(threads.pages, serial.pages);
    CHECK_EQ(threads.positions, serial.positions);
    CHECK_EQ(threads.slots, serial.slots);
    CHECK_EQ(threads.row_counts, serial.row_counts);
    for (int32_t slot : serial.slots) {
      CHECK(slot >= -1 && slot < p.num_pages * p.page_size);
    }
  }
}

}  // namespace
}  // namespace specfast
