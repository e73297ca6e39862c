#include "ops/build_tree.h"
#include "ops/select_and_build_tree.h"
#include "ops/select_draft_tokens.h"
#include "ops/tree_from_parents.h"
#include "torch/tensor_args.h"

namespace specfast {
namespace {

// TreeRecord of python/specfast/records.py.
struct TreeOutputs {
  const Tensor& draft_tokens;
  const Tensor& positions;
  const Tensor& parents;
  const Tensor& retrieve_index;
  const Tensor& retrieve_next_token;
  const Tensor& retrieve_next_sibling;
  const Tensor& mask;
  const Tensor& status;
};

// Reads the sizes B and N, so it comes after the tensors that show them.
TreeRecord checked_record(ArgChecks& args, const Tensor& prefix_lens, const std::string& mask_mode,
                          const TreeOutputs& out) {
  const int64_t num_nodes = args["N"];
  args.require_range("the number of nodes N", num_nodes, 1, kMaxTreeNodes);
  args.require_range("the number of rows B * N", args["B"] * num_nodes, 0, INT32_MAX);
  TreeRecord record{};
  record.batch_size = static_cast<int32_t>(args["B"]);
  record.num_nodes = static_cast<int32_t>(num_nodes);
  record.prefix_lens =
      args(prefix_lens, "prefix_lens").dtype(kInt32).shape({"B"}).contiguous().data<int32_t>();

  auto nodes = [&](const Tensor& tensor, const char* name) {
    return args(tensor, name).dtype(kInt32).shape({"B", "N"}).contiguous().mutable_data<int32_t>();
  };
  record.draft_tokens = args(out.draft_tokens, "out.draft_tokens")
                            .dtype(kIds)
                            .shape({"B", "N"})
                            .contiguous()
                            .mutable_ids();
  record.positions = nodes(out.positions, "out.positions");
  record.parents = nodes(out.parents, "out.parents");
  record.retrieve_index = nodes(out.retrieve_index, "out.retrieve_index");
  record.retrieve_next_token = nodes(out.retrieve_next_token, "out.retrieve_next_token");
  record.retrieve_next_sibling = nodes(out.retrieve_next_sibling, "out.retrieve_next_sibling");
  record.status = args(out.status, "out.status")
                      .dtype(kInt32)
                      .shape({"B"})
                      .contiguous()
                      .mutable_data<int32_t>();

  auto mask = args(out.mask, "out.mask").contiguous();
  if (mask_mode == "bits") {
    args.size("ceil(N / 32)", ceil_div<int64_t>(num_nodes, 32));
    mask.dtype(kInt32).shape({"B", "N", "ceil(N / 32)"});
    record.mask_mode = MaskMode::kBits;
  } else if (mask_mode == "qlen") {
    mask.dtype(kBytes).shape({"B", "N", "N"});
    record.mask_mode = MaskMode::kQlen;
  } else {
    args.require(mask_mode == "full",
                 "expected mask_mode \"bits\", \"qlen\" or \"full\", got \"" + mask_mode + "\"");
    mask.dtype(kBytes).shape({"capacity"});
    record.mask_mode = MaskMode::kFull;
    record.mask_capacity = args["capacity"];
  }
  record.mask = mask.mutable_data<void>();
  return record;
}

// parent_list [B, P] and topk; the number of candidates is set by the caller.
CandidateLists checked_lists(ArgChecks& args, const Tensor& parent_list, int64_t topk) {
  args.require_range("topk", topk, 1, kMaxCandidates);
  CandidateLists lists{};
  lists.topk = SmallDivisor(static_cast<int32_t>(topk));
  auto parents = args(parent_list, "parent_list").dtype(kIds).shape({"B", "P"}).rows();
  lists.parent_list = parents.ids();
  lists.parent_list_stride = parents.row_stride();
  return lists;
}

// scores [B, C] of a tree of D levels, C = topk + (D - 1) * topk^2.
CandidateLists checked_scored_lists(ArgChecks& args, const Tensor& scores,
                                    const Tensor& parent_list, int64_t topk, int64_t num_nodes) {
  CandidateLists lists = checked_lists(args, parent_list, topk);
  auto checked = args(scores, "scores").dtype(kFloat32).shape({"B", "C"}).rows();
  lists.scores = checked.data<float>();
  lists.scores_stride = checked.row_stride();
  const int64_t num_candidates = args["C"];
  args.require_range("the number of candidates C of scores", num_candidates, 1, kMaxCandidates);
  const int64_t below_first = num_candidates - topk;
  args.require(below_first >= 0 && below_first % (topk * topk) == 0,
               "expected scores with C = topk + (depth - 1) * topk^2 candidates for topk = " +
                   std::to_string(topk) + ", got C = " + std::to_string(num_candidates));
  const int64_t depth = 1 + below_first / (topk * topk);
  args.require_range("the depth (C - topk) / topk^2 + 1 of scores", depth, 1, kMaxTreeDepth);
  const int64_t num_parents = topk * (depth - 1) + 1;
  args.require(depth == 1 || args["P"] == num_parents,
               "expected parent_list with topk * (depth - 1) + 1 = " + std::to_string(num_parents) +
                   " columns, got " + std::to_string(args["P"]));
  args.require_range("num_nodes", num_nodes, 1, min_of<int64_t>(num_candidates + 1, kMaxTreeNodes));
  lists.num_candidates = static_cast<int32_t>(num_candidates);
  return lists;
}

template <Device device>
void select_draft_tokens(const Tensor& scores, const Tensor& parent_list, int64_t topk,
                         int64_t num_nodes, const Tensor& selected_index, const Tensor& status) {
  ArgChecks args("select_draft_tokens", scores);
  SelectDraftTokensParams p{};
  p.lists = checked_scored_lists(args, scores, parent_list, topk, num_nodes);
  p.batch_size = static_cast<int32_t>(args["B"]);
  p.num_nodes = static_cast<int32_t>(num_nodes);
  args.size("num_nodes - 1", num_nodes - 1);
  p.selected_index = args(selected_index, "out")
                         .dtype(kInt32)
                         .shape({"B", "num_nodes - 1"})
                         .contiguous()
                         .mutable_data<int32_t>();
  p.status = args(status, "status").dtype(kInt32).shape({"B"}).contiguous().mutable_data<int32_t>();
  if constexpr (device == Device::kCpu) {
    select_draft_tokens_cpu(p);
  } else {
    torch::stable::accelerator::DeviceGuard guard(scores.get_device_index());
    select_draft_tokens_cuda(p, current_stream(scores));
  }
}

template <Device device>
void build_tree(const Tensor& anchors, const Tensor& draft_tokens, const Tensor& parent_list,
                const Tensor& selected_index, const Tensor& prefix_lens, int64_t topk,
                std::string mask_mode, const Tensor& out_draft_tokens, const Tensor& positions,
                const Tensor& parents, const Tensor& retrieve_index,
                const Tensor& retrieve_next_token, const Tensor& retrieve_next_sibling,
                const Tensor& mask, const Tensor& status) {
  ArgChecks args("build_tree", anchors);
  BuildTreeParams p{};
  p.anchors = args(anchors, "anchors").dtype(kIds).shape({"B"}).contiguous().ids();
  auto selected = args(selected_index, "selected_index").dtype(kIds).shape({"B", "N - 1"}).rows();
  p.selected_index = selected.ids();
  p.selected_index_stride = selected.row_stride();
  args.size("N", args["N - 1"] + 1);
  auto drafts = args(draft_tokens, "draft_tokens").dtype(kIds).shape({"B", "N - 1"}).rows();
  p.draft_tokens = drafts.ids();
  p.draft_tokens_stride = drafts.row_stride();
  p.lists = checked_lists(args, parent_list, topk);
  const int64_t num_candidates = topk * max_of<int64_t>(args["P"], 1);
  args.require_range("topk * the columns P of parent_list", num_candidates, 1, kMaxCandidates);
  p.lists.num_candidates = static_cast<int32_t>(num_candidates);
  p.record = checked_record(args, prefix_lens, mask_mode,
                            {out_draft_tokens, positions, parents, retrieve_index,
                             retrieve_next_token, retrieve_next_sibling, mask, status});
  if constexpr (device == Device::kCpu) {
    build_tree_cpu(p);
  } else {
    torch::stable::accelerator::DeviceGuard guard(anchors.get_device_index());
    build_tree_cuda(p, current_stream(anchors));
  }
}

template <Device device>
void select_and_build_tree(const Tensor& anchors, const Tensor& scores, const Tensor& tokens,
                           const Tensor& parent_list, const Tensor& prefix_lens, int64_t topk,
                           int64_t num_nodes, std::string mask_mode, const Tensor& draft_tokens,
                           const Tensor& positions, const Tensor& parents,
                           const Tensor& retrieve_index, const Tensor& retrieve_next_token,
                           const Tensor& retrieve_next_sibling, const Tensor& mask,
                           const Tensor& status) {
  ArgChecks args("select_and_build_tree", anchors);
  SelectAndBuildTreeParams p{};
  p.anchors = args(anchors, "anchors").dtype(kIds).shape({"B"}).contiguous().ids();
  p.lists = checked_scored_lists(args, scores, parent_list, topk, num_nodes);
  auto candidates = args(tokens, "tokens").dtype(kIds).shape({"B", "C"}).rows();
  p.tokens = candidates.ids();
  p.tokens_stride = candidates.row_stride();
  args.size("N", num_nodes);
  p.record = checked_record(args, prefix_lens, mask_mode,
                            {draft_tokens, positions, parents, retrieve_index, retrieve_next_token,
                             retrieve_next_sibling, mask, status});
  if constexpr (device == Device::kCpu) {
    select_and_build_tree_cpu(p);
  } else {
    torch::stable::accelerator::DeviceGuard guard(anchors.get_device_index());
    select_and_build_tree_cuda(p, current_stream(anchors));
  }
}

template <Device device>
void tree_from_parents(const Tensor& draft_tokens, const Tensor& parents, const Tensor& prefix_lens,
                       const OptionalTensor& verify_lens, std::string mask_mode,
                       const Tensor& out_draft_tokens, const Tensor& positions,
                       const Tensor& out_parents, const Tensor& retrieve_index,
                       const Tensor& retrieve_next_token, const Tensor& retrieve_next_sibling,
                       const Tensor& mask, const Tensor& status) {
  ArgChecks args("tree_from_parents", draft_tokens);
  TreeFromParentsParams p{};
  auto drafts = args(draft_tokens, "draft_tokens").dtype(kIds).shape({"B", "N"}).rows();
  p.draft_tokens = drafts.ids();
  p.draft_tokens_stride = drafts.row_stride();
  auto given = args(parents, "parents").dtype(kIds).shape({"B", "N"}).rows();
  p.parents = given.ids();
  p.parents_stride = given.row_stride();
  p.verify_lens =
      args(verify_lens, "verify_lens").dtype(kInt32).shape({"B"}).contiguous().data<int32_t>();
  p.record = checked_record(args, prefix_lens, mask_mode,
                            {out_draft_tokens, positions, out_parents, retrieve_index,
                             retrieve_next_token, retrieve_next_sibling, mask, status});
  if constexpr (device == Device::kCpu) {
    tree_from_parents_cpu(p);
  } else {
    torch::stable::accelerator::DeviceGuard guard(draft_tokens.get_device_index());
    tree_from_parents_cuda(p, current_stream(draft_tokens));
  }
}

constexpr char kRecordSchema[] =
    "str mask_mode, Tensor(a!) out_draft_tokens, Tensor(b!) out_positions, "
    "Tensor(c!) out_parents, Tensor(d!) out_retrieve_index, Tensor(e!) out_retrieve_next_token, "
    "Tensor(f!) out_retrieve_next_sibling, Tensor(g!) out_mask, Tensor(h!) out_status) -> ()";

}  // namespace
}  // namespace specfast

STABLE_TORCH_LIBRARY_FRAGMENT(specfast, m) {
  using namespace specfast;
  auto define = [&](const std::string& inputs) { m.def((inputs + ", " + kRecordSchema).c_str()); };
  m.def(
      "select_draft_tokens(Tensor scores, Tensor parent_list, int topk, int num_nodes, "
      "Tensor(a!) out, Tensor(b!) status) -> ()");
  define(
      "build_tree(Tensor anchors, Tensor draft_tokens, Tensor parent_list, Tensor selected_index, "
      "Tensor prefix_lens, int topk");
  define(
      "select_and_build_tree(Tensor anchors, Tensor scores, Tensor tokens, Tensor parent_list, "
      "Tensor prefix_lens, int topk, int num_nodes");
  define(
      "tree_from_parents(Tensor draft_tokens, Tensor parents, Tensor prefix_lens, "
      "Tensor? verify_lens");
}

STABLE_TORCH_LIBRARY_IMPL(specfast, CPU, m) {
  using namespace specfast;
  m.impl("select_draft_tokens", TORCH_BOX(&select_draft_tokens<Device::kCpu>));
  m.impl("build_tree", TORCH_BOX(&build_tree<Device::kCpu>));
  m.impl("select_and_build_tree", TORCH_BOX(&select_and_build_tree<Device::kCpu>));
  m.impl("tree_from_parents", TORCH_BOX(&tree_from_parents<Device::kCpu>));
}

#ifdef SPECFAST_HAS_CUDA
STABLE_TORCH_LIBRARY_IMPL(specfast, CUDA, m) {
  using namespace specfast;
  m.impl("select_draft_tokens", TORCH_BOX(&select_draft_tokens<Device::kCuda>));
  m.impl("build_tree", TORCH_BOX(&build_tree<Device::kCuda>));
  m.impl("select_and_build_tree", TORCH_BOX(&select_and_build_tree<Device::kCuda>));
  m.impl("tree_from_parents", TORCH_BOX(&tree_from_parents<Device::kCuda>));
}
#endif
