#include "ops/walk_selector.h"
#include "torch/accept_args.h"
#include "torch/sampling_args.h"

namespace specfast {
namespace {

constexpr int64_t kMaxRank = 512;

template <Device device>
void walk_selector(const Tensor& candidates, const Tensor& unary, const Tensor& keys,
                   const Tensor& predecessor, const Tensor& successor, const Tensor& anchors,
                   const Tensor& prefix_lens, const Tensor& temperature, const Tensor& seeds,
                   const OptionalTensor& top_k, const Tensor& tokens, const Tensor& q,
                   const Tensor& status) {
  ArgChecks args("walk_selector", candidates);
  WalkSelectorParams p{};
  p.candidates =
      args(candidates, "candidates").dtype(kIds).shape({"B", "M", "K"}).contiguous().ids();
  args.require_range("the number of requests B", args["B"], 0, kMaxRequests);
  args.require_range("the number of slots M", args["M"], 1, kMaxSelectorSlots);
  args.require_range("the number of candidates K", args["K"], 1, kMaxCandidates);
  p.batch_size = static_cast<int32_t>(args["B"]);
  p.num_slots = static_cast<int32_t>(args["M"]);
  p.num_candidates = static_cast<int32_t>(args["K"]);
  auto float32 = [&](const Tensor& tensor, const char* name,
                     std::initializer_list<const char*> shape) {
    return args(tensor, name).dtype(kFloat32).shape(shape).contiguous().data<float>();
  };
  p.unary = float32(unary, "unary", {"B", "M", "K"});
  p.keys = float32(keys, "keys", {"B", "M", "R"});
  auto codebook = [&](const Tensor& tensor, const char* name) {
    return args(tensor, name)
        .dtype({ScalarType::Float, ScalarType::BFloat16})
        .shape({"V", "R"})
        .contiguous()
        .aligned(16)
        .data<void>();
  };
  p.predecessor = codebook(predecessor, "predecessor");
  p.successor = codebook(successor, "successor");
  args.require(predecessor.scalar_type() == successor.scalar_type(),
               "expected predecessor and successor of one dtype, got two of them");
  p.codebook_type = float_type(predecessor);
  args.require_range("the rank R of keys", args["R"], 8, kMaxRank);
  args.require(args["R"] % 8 == 0,
               "expected the rank R of keys as a multiple of 8, got " + std::to_string(args["R"]));
  args.require_range("the number of rows V of predecessor", args["V"], 1, INT32_MAX - 1);
  p.rank = static_cast<int32_t>(args["R"]);
  p.vocab_size = static_cast<int32_t>(args["V"]);
  p.anchors = args(anchors, "anchors").dtype(kIds).shape({"B"}).contiguous().ids();
  p.prefix_lens =
      args(prefix_lens, "prefix_lens").dtype(kInt32).shape({"B"}).contiguous().data<int32_t>();
  OptionalTensor none;
  p.sampling = checked_sampling(
      args, {temperature, seeds, top_k, none, none, none, none, none, none, none, none, none, none},
      p.vocab_size);
  p.tokens = args(tokens, "out.tokens")
                 .dtype(kInt32)
                 .shape({"B", "M"})
                 .contiguous()
                 .mutable_data<int32_t>();
  p.q = args(q, "out.q").dtype(kFloat32).shape({"B", "M", "K"}).contiguous().mutable_data<float>();
  p.status =
      args(status, "out.status").dtype(kInt32).shape({"B"}).contiguous().mutable_data<int32_t>();
  if constexpr (device == Device::kCpu) {
    walk_selector_cpu(p);
  } else {
    torch::stable::accelerator::DeviceGuard guard(candidates.get_device_index());
    walk_selector_cuda(p, current_stream(candidates));
  }
}

}  // namespace
}  // namespace specfast

STABLE_TORCH_LIBRARY_FRAGMENT(specfast, m) {
  m.def(
      "walk_selector(Tensor candidates, Tensor unary, Tensor keys, Tensor predecessor, "
      "Tensor successor, Tensor anchors, Tensor prefix_lens, Tensor temperature, Tensor seeds, "
      "Tensor? top_k, Tensor(a!) tokens, Tensor(b!) q, Tensor(c!) status) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(specfast, CPU, m) {
  using namespace specfast;
  m.impl("walk_selector", TORCH_BOX(&walk_selector<Device::kCpu>));
}

#ifdef SPECFAST_HAS_CUDA
STABLE_TORCH_LIBRARY_IMPL(specfast, CUDA, m) {
  using namespace specfast;
  m.impl("walk_selector", TORCH_BOX(&walk_selector<Device::kCuda>));
}
#endif
