#pragma once

#include <cstdio>
#include <functional>
#include <map>

#include "fuzz_legal.h"

namespace specfast::testing {

// fuzz [--batches N] [--seed S] [--first I] [--only FAMILY]: a batch is found again by its number.
struct FuzzOptions {
  uint64_t batches = 2000;
  uint64_t seed = 1;
  uint64_t first = 0;
  std::string only;

  static FuzzOptions parse(int argc, char** argv) {
    FuzzOptions out;
    for (int i = 1; i < argc; i += 2) {
      std::string name = argv[i];
      if (i + 1 == argc) throw Failure(name + " needs a value");
      if (name == "--batches") {
        out.batches = std::stoull(argv[i + 1]);
      } else if (name == "--seed") {
        out.seed = std::stoull(argv[i + 1]);
      } else if (name == "--first") {
        out.first = std::stoull(argv[i + 1]);
      } else if (name == "--only") {
        out.only = argv[i + 1];
      } else {
        throw Failure("no option is called " + name);
      }
    }
    return out;
  }
};

// One batch of a family: builds it in memory, calls the op, fails where something is not right.
using FuzzBatch = std::function<void(Dice&, FuzzMemory&)>;

struct FuzzFamily {
  const char* name;
  FuzzBatch run;
  uint64_t one_in = 1;  // of so many batches asked for: slow ones
};

inline void call_on_cpu(const AcceptFuzz& f) {
  if (f.rule == Rule::kTargetOnly) return accept_target_only_cpu(f.p);
  if (f.rule == Rule::kRejection) return accept_rejection_cpu(f.p);
  if (f.rule == Rule::kBlock) return accept_block_cpu(f.p);
  if (f.is_chain()) return accept_chain_cpu({f.p.accept, f.p.rows});
  const DraftLinks& links = f.p.links;
  accept_tree_cpu({f.p.accept,
                   f.p.rows,
                   {links.retrieve_next_token, links.retrieve_next_sibling, links.retrieve_index}});
}

// Runs every family; 0 if all of their batches held.
inline int run_families(const FuzzOptions& options, const std::vector<FuzzFamily>& families,
                        FuzzMemory& memory) {
  bool found = false;
  for (size_t i = 0; i < families.size(); ++i) {
    const FuzzFamily& family = families[i];
    if (!options.only.empty() && options.only != family.name) continue;
    found = true;
    uint64_t batches = ceil_div(options.batches, family.one_in);
    uint64_t end = options.first + batches;
    for (uint64_t batch = options.first; batch < end; ++batch) {
      Dice dice(Dice(Dice(options.seed).bits() + i).bits() + batch);
      memory.reset();
      try {
        family.run(dice, memory);
      } catch (const std::exception& error) {
        std::printf("FAILED %s, --seed %llu --first %llu\n  %s\n", family.name,
                    static_cast<unsigned long long>(options.seed),
                    static_cast<unsigned long long>(batch), error.what());
        return 1;
      }
    }
    std::printf("%s: %llu batches held\n", family.name, static_cast<unsigned long long>(batches));
    std::fflush(stdout);
  }
  if (!found) std::printf("no family is called %s\n", options.only.c_str());
  return found ? 0 : 1;
}

}  // namespace specfast::testing
