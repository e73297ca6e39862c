#include "core/thread_team.h"
#include "ops/commit_state.h"
#include "state_case.h"
#include "testing.h"

namespace specfast {
namespace {

using testing::StateCase;

void commit_with_threads(const CommitStateParams& p) {
  for (int b = 0; b < p.batch_size; ++b) {
    ThreadTeam::run(2, 4, [&](ThreadTeam& team) { commit_state_request(team, p, b); });
  }
}

TEST(threads_copy_the_same_states_as_one_thread) {
  for (unsigned seed = 0; seed < 10; ++seed) {
    StateCase serial(seed, 4);
    StateCase threads = serial;
    StateCase before = serial;
    commit_state_cpu(serial.params());
    commit_with_threads(threads.params());
    CHECK(threads.pools_ == serial.pools_);
    CHECK(threads.pools_ != before.pools_);
    CHECK(threads.states_ == before.states_);
    CHECK_EQ(threads.status_, std::vector<int32_t>(4, kStatusOk));
  }
}

TEST(bad_requests_change_no_byte) {
  StateCase test(1, 5);
  test.commit_lens_ = {-1, StateCase::kWidth + 1, 2, 2, 2};
  test.accept_index_[2 * StateCase::kWidth + 1] = 5 * StateCase::kWidth;
  test.accept_index_[3 * StateCase::kWidth + 1] = -1;
  test.accept_index_[4 * StateCase::kWidth + 1] = 0;
  test.slots_[4] = StateCase::kSlots;
  StateCase before = test;
  commit_with_threads(test.params());
  CHECK(test.pools_ == before.pools_);
  CHECK_EQ(test.status_, std::vector<int32_t>(5, kBadPath));
}

}  // namespace
}  // namespace specfast
