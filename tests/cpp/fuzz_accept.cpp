// Random batches of the accept ops and of sample_rows, of which many break their contracts by data:
// no crash, no write but into outputs, no changed input, and a legal record.
#include "fuzz_threads.h"

namespace specfast::testing {
namespace {

FuzzFamily accept_family(const char* name, Rule rule) {
  return {name, [rule](Dice& dice, FuzzMemory& memory) {
            AcceptFuzz fuzz = AcceptFuzzBuilder(dice, memory, rule, dice.pick(0, 4), 1).build();
            memory.begin_call();
            call_on_cpu(fuzz);
            memory.end_call();
            RecordCheck(fuzz).run();
          }};
}

FuzzFamily sample_rows_family() {
  return {"sample_rows", [](Dice& dice, FuzzMemory& memory) {
            SampleRowsFuzz fuzz = random_sample_rows(dice, memory, dice.pick(0, 6), 1);
            memory.begin_call();
            sample_rows_cpu(fuzz.p);
            memory.end_call();
            check_drawn_rows(fuzz);
          }};
}

}  // namespace
}  // namespace specfast::testing

int main(int argc, char** argv) {
  using namespace specfast::testing;
  FuzzMemory memory(size_t{8} << 20);
  return run_families(
      FuzzOptions::parse(argc, argv),
      {accept_family("greedy", Rule::kGreedy), accept_family("target_only", Rule::kTargetOnly),
       accept_family("rejection", Rule::kRejection), accept_family("block", Rule::kBlock),
       sample_rows_family(), accept_on_threads("target_only on threads", Rule::kTargetOnly),
       accept_on_threads("rejection on threads", Rule::kRejection),
       accept_on_threads("block on threads", Rule::kBlock),
       sample_rows_on_threads("sample_rows on threads")},
      memory);
}
