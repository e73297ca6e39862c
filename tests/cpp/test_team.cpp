#include <cstdlib>
#include <mutex>

#include "core/team.h"
#include "core/thread_team.h"
#include "testing.h"

namespace specfast {
namespace {

constexpr int kParts = 2;
constexpr int kThreads = 4;

// What one thread got from each collective, given rank-dependent inputs.
struct Seen {
  uint64_t max_key;
  bool max_flag;
  int min;
  int sum;
  int64_t wide_sum;
  int count;
  bool any_set;
  bool any_unset;
  CountPair before;
  CountPair total;
  KeyRange range;

  bool operator==(const Seen& other) const {
    return max_key == other.max_key && max_flag == other.max_flag && min == other.min &&
           sum == other.sum && wide_sum == other.wide_sum && count == other.count &&
           any_set == other.any_set && any_unset == other.any_unset &&
           before.first == other.before.first && before.second == other.before.second &&
           total.first == other.total.first && total.second == other.total.second &&
           range.lowest == other.range.lowest && range.highest == other.range.highest;
  }
};

// Thread r of part p brings 10 * p + r.
template <class Team>
Seen call_collectives(Team& team) {
  int value = 10 * team.part() + team.rank();
  Seen seen{};
  KeyFlag key =
      team.max_key((uint64_t{1} << 40) + value, team.rank() == team.size() - 1, team.size());
  seen.max_key = key.key;
  seen.max_flag = key.flag;
  seen.min = team.min(value);
  seen.sum = team.sum(value);
  seen.wide_sum = team.sum(int64_t{value} << 32);
  seen.count = team.count(value % 2 == 0);
  seen.any_set = team.any(team.rank() == team.size() - 1);
  seen.any_unset = team.any(false);
  seen.before = team.exclusive_count(value % 2 == 0, value % 10 != 1, &seen.total);
  seen.range = team.union_of({100u - value, 200u + value});
  return seen;
}

TEST(thread_team_collectives_stay_within_a_part) {
  std::vector<Seen> seen(kParts * kThreads);
  ThreadTeam::run(kParts, kThreads, [&](ThreadTeam& team) {
    seen[team.part() * kThreads + team.rank()] = call_collectives(team);
  });
  // Part 0 holds 0 1 2 3, part 1 holds 10 11 12 13.
  CountPair before[kThreads] = {{0, 0}, {1, 1}, {1, 1}, {2, 2}};
  for (int part = 0; part < kParts; ++part) {
    for (int rank = 0; rank < kThreads; ++rank) {
      int first = 10 * part;
      int sum = 4 * first + 6;
      Seen expected{(uint64_t{1} << 40) + first + 3,
                    true,
                    first,
                    sum,
                    int64_t{sum} << 32,
                    2,
                    true,
                    false,
                    before[rank],
                    {2, 3},
                    {97u - first, 203u + first}};
      CHECK(seen[part * kThreads + rank] == expected);
    }
  }
}

TEST(max_key_stays_within_its_group) {
  constexpr int kGroup = 2;
  std::vector<KeyFlag> seen(kThreads);
  ThreadTeam::run(1, kThreads, [&](ThreadTeam& team) {
    seen[team.rank()] = team.max_key(team.rank(), team.rank() == 0, kGroup);
  });
  for (int rank = 0; rank < kThreads; ++rank) {
    CHECK_EQ(seen[rank].key, static_cast<uint64_t>(rank / kGroup * kGroup + 1));
    CHECK_EQ(seen[rank].flag, rank < kGroup);
  }
}

TEST(largest_ignores_the_flag_bit_but_reports_it) {
  uint64_t keys[] = {8, 7, 12};
  ThreadTeam::run(1, 2, [&](ThreadTeam& team) {
    KeyFlag found = team.largest(keys, 3);
    if (found.key != 12 || !found.flag || team.largest(keys + 2, 1).flag) std::abort();
  });
}

TEST(serial_team_is_a_team_of_one) {
  SerialTeam team;
  Seen expected{uint64_t{1} << 40, true, 0, 0, 0, 1, true, false, {0, 0}, {1, 1}, {100, 200}};
  CHECK(call_collectives(team) == expected);
  CHECK_EQ(team.size() * team.parts(), 1);
}

TEST(scratch_is_shared_by_a_part) {
  std::vector<int> seen(kParts * kThreads);
  ThreadTeam::run(kParts, kThreads, [&](ThreadTeam& team) {
    int* values = team.scratch<int>(kThreads);
    values[team.rank()] = 10 * team.part() + team.rank();
    team.sync_part();
    seen[team.part() * kThreads + team.rank()] = values[(team.rank() + 1) % team.size()];
  });
  CHECK_EQ(seen, (std::vector<int>{1, 2, 3, 0, 11, 12, 13, 10}));
}

TEST(posts_reach_the_other_part) {
  std::vector<uint64_t> seen(kParts * kThreads);
  ThreadTeam::run(kParts, kThreads, [&](ThreadTeam& team) {
    team.arrive();
    team.scratch<char>(3);  // a neighbour, so that a post has to tell blocks apart
    uint64_t* words = team.scratch<uint64_t>(kThreads);
    team.wait();
    team.post(1 - team.part(), words + team.rank(), 10 * team.part() + team.rank(), 0);
    team.collect(kThreads, 0);
    seen[team.part() * kThreads + team.rank()] = words[(team.rank() + 1) % team.size()];
  });
  CHECK_EQ(seen, (std::vector<uint64_t>{11, 12, 13, 10, 1, 2, 3, 0}));
}

TEST(atomic_min_loses_nothing) {
  int32_t lowest = 100;
  ThreadTeam::run(kParts, kThreads, [&](ThreadTeam& team) {
    team.atomic_min(&lowest, 50 - team.part() * kThreads - team.rank());
  });
  CHECK_EQ(lowest, 43);
}

TEST(scratch_sizer_counts_what_a_block_team_lays_out) {
  ScratchSizer sizer;
  sizer.scratch<char>(3);     // bytes 0..2
  sizer.scratch<int64_t>(2);  // from byte 16
  sizer.scratch<int32_t>(1);  // from byte 32, in a block of 16
  CHECK_EQ(sizer.bytes(), size_t{48});
}

// Every thread writes its own element and reads its neighbour's.
void exchange(ThreadTeam& team) {
  int* values = team.scratch<int>(kThreads);
  values[team.rank()] = team.rank();
  team.sync_part();
  volatile int neighbour = values[(team.rank() + 1) % team.size()];
  (void)neighbour;
}

TEST(exchange_is_clean_with_its_barrier) { ThreadTeam::run(kParts, kThreads, exchange); }

PLANTED_FAULT(missing_barrier_in_exchange) {
  ThreadTeam::run(kParts, kThreads, exchange, /*dropped_barrier=*/0);
}

}  // namespace
}  // namespace specfast
