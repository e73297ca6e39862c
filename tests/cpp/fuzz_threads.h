#pragma once

#include "core/block_rule.h"
#include "core/rejection_rule.h"
#include "core/target_only_rule.h"
#include "core/thread_team.h"
#include "fuzz_families.h"
#include "sampled_on_threads.h"

namespace specfast::testing {

// Batches as a cluster of threads runs them, which has parts of rows and lists of candidates that
// one thread does without.
inline void run_on_threads(const SampleRowsParams& p, int parts, int groups_to_keep) {
  with_row_form(p.rows, p.sampling, [&](auto form) {
    for (int64_t r = 0; r < p.num_rows; ++r) {
      ThreadTeam::run(parts, 4, [&](ThreadTeam& team) {
        RowSampler<decltype(form)>(p, r, groups_to_keep).run(team);
      });
    }
  });
}

inline void call_on_threads(const AcceptFuzz& f, int parts, int groups_to_keep) {
  if (f.rule == Rule::kTargetOnly) {
    sampled_accept_on_threads<TargetOnlyRule>(f.p, parts, groups_to_keep);
  } else if (f.rule == Rule::kRejection) {
    sampled_accept_on_threads<RejectionRule>(f.p, parts, groups_to_keep);
  } else {
    sampled_accept_on_threads<BlockRule>(f.p, parts, groups_to_keep);
  }
}

// Fails unless both calls leave the same bytes in the whole block.
template <class OnOne, class OnThreads>
void expect_equal_calls(FuzzMemory& memory, OnOne on_one, OnThreads on_threads) {
  memory.begin_call();
  on_one();
  memory.end_call();
  std::vector<uint8_t> expected(memory.data(), memory.data() + memory.size());
  memcpy(memory.data(), memory.before().data(), memory.size());
  memory.begin_call();
  on_threads();
  memory.end_call();
  memory.check_equal(expected);
}

inline FuzzFamily accept_on_threads(const char* name, Rule rule) {
  return {name,
          [rule](Dice& dice, FuzzMemory& memory) {
            AcceptFuzz fuzz = AcceptFuzzBuilder(dice, memory, rule, dice.pick(1, 2), 20).build();
            expect_equal_calls(
                memory, [&] { call_on_cpu(fuzz); },
                [&] { call_on_threads(fuzz, dice.pick(1, 3), dice.pick(0, 2)); });
          },
          100};
}

inline FuzzFamily sample_rows_on_threads(const char* name) {
  return {name,
          [](Dice& dice, FuzzMemory& memory) {
            SampleRowsFuzz fuzz = random_sample_rows(dice, memory, dice.pick(1, 3), 20);
            expect_equal_calls(
                memory, [&] { sample_rows_cpu(fuzz.p); },
                [&] { run_on_threads(fuzz.p, dice.pick(1, 3), dice.pick(0, 2)); });
          },
          100};
}

}  // namespace specfast::testing
