// specfast_kernel_fuzz [--batches N] [--seed S] [--first I] [--only FAMILY]: the batches of
// specfast_fuzz, some of them larger, on kernels. What the CPU body leaves of the whole block, with
// inputs and guard bytes, is what the kernel has to leave of its copy.
#include <cuda_runtime.h>

#include "device_array.h"
#include "fuzz_families.h"

namespace specfast::testing {
namespace {

constexpr size_t kCapacity = size_t{256} << 20;

// The parameters of a call with every pointer into the block moved to the block's copy.
template <class Params>
Params moved(Params params, const FuzzMemory& memory, const uint8_t* copy) {
  static_assert(std::is_trivially_copyable_v<Params> && alignof(Params) == sizeof(uint64_t));
  uint64_t words[sizeof(Params) / sizeof(uint64_t)];
  memcpy(words, &params, sizeof(params));
  auto begin = reinterpret_cast<uint64_t>(memory.data());
  for (uint64_t& word : words) {
    if (word - begin < memory.size()) word += reinterpret_cast<uint64_t>(copy) - begin;
  }
  memcpy(&params, words, sizeof(params));
  return params;
}

void call_on_cuda(const AcceptFuzz& f, const SampledAcceptParams& p) {
  if (f.rule == Rule::kTargetOnly) return accept_target_only_cuda(p, nullptr);
  if (f.rule == Rule::kRejection) return accept_rejection_cuda(p, nullptr);
  if (f.rule == Rule::kBlock) return accept_block_cuda(p, nullptr);
  if (f.is_chain()) return accept_chain_cuda({p.accept, p.rows}, nullptr);
  const DraftLinks& links = p.links;
  accept_tree_cuda({p.accept,
                    p.rows,
                    {links.retrieve_next_token, links.retrieve_next_sibling, links.retrieve_index}},
                   nullptr);
}

// Mostly small batches, and now and then as many requests as reach every launch shape.
int batch_size(Dice& dice) {
  int kind = dice.pick(0, 99);
  if (kind < 80) return dice.pick(0, 20);
  if (kind < 95) return dice.pick(21, 130);
  return dice.pick(131, 300);
}

class KernelFuzz {
 public:
  KernelFuzz() : copy_(std::vector<uint8_t>(kCapacity)) {}

  FuzzFamily accept_family(const char* name, Rule rule) {
    return {name, [this, rule](Dice& dice, FuzzMemory& memory) {
              AcceptFuzz fuzz = AcceptFuzzBuilder(dice, memory, rule, batch_size(dice), 8).build();
              memory.begin_call();
              call_on_cpu(fuzz);
              memory.end_call();
              RecordCheck check(fuzz);
              check.run();
              upload(memory);
              call_on_cuda(fuzz, moved(fuzz.p, memory, copy_.data()));
              download(memory);
              // Windows that overlap leave open who writes `predict` last.
              const AcceptParams& p = fuzz.p.accept;
              if (check.windows_overlap()) ignore(memory, p.predict, p.num_rows * sizeof(int32_t));
              // The CPU body has no use for a workspace.
              int64_t nodes = int64_t{p.batch_size} * p.num_nodes;
              if (fuzz.p.outcomes != nullptr) {
                ignore(memory, fuzz.p.outcomes, nodes * sizeof(RowOutcome));
              }
              memory.check_equal(result_);
            }};
  }

  FuzzFamily sample_rows_family() {
    return {"sample_rows", [this](Dice& dice, FuzzMemory& memory) {
              SampleRowsFuzz fuzz = random_sample_rows(dice, memory, batch_size(dice), 8);
              memory.begin_call();
              sample_rows_cpu(fuzz.p);
              memory.end_call();
              check_drawn_rows(fuzz);
              upload(memory);
              sample_rows_cuda(moved(fuzz.p, memory, copy_.data()), nullptr);
              download(memory);
              memory.check_equal(result_);
            }};
  }

 private:
  void upload(const FuzzMemory& memory) {
    SPECFAST_CUDA_CHECK(
        cudaMemcpy(copy_.data(), memory.before().data(), memory.size(), cudaMemcpyHostToDevice));
  }
  // Waits for the kernel.
  void download(const FuzzMemory& memory) {
    result_.resize(memory.size());
    SPECFAST_CUDA_CHECK(
        cudaMemcpy(result_.data(), copy_.data(), memory.size(), cudaMemcpyDeviceToHost));
  }
  void ignore(const FuzzMemory& memory, const void* begin, size_t bytes) {
    memcpy(result_.data() + (static_cast<const uint8_t*>(begin) - memory.data()), begin, bytes);
  }
  DeviceArray<uint8_t> copy_;
  std::vector<uint8_t> result_;
};

}  // namespace
}  // namespace specfast::testing

int main(int argc, char** argv) {
  using namespace specfast::testing;
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no CUDA device: kernel fuzz skipped\n");
    return 77;
  }
  KernelFuzz fuzz;
  FuzzMemory memory(kCapacity);
  return run_families(FuzzOptions::parse(argc, argv),
                      {fuzz.accept_family("greedy", Rule::kGreedy),
                       fuzz.accept_family("target_only", Rule::kTargetOnly),
                       fuzz.accept_family("rejection", Rule::kRejection),
                       fuzz.accept_family("block", Rule::kBlock), fuzz.sample_rows_family()},
                      memory);
}
