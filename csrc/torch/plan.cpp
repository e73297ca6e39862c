#include "ops/build_verify_window.h"
#include "ops/schedule_verify_lens.h"
#include "torch/tensor_args.h"

namespace specfast {
namespace {

ConfidenceForm checked_form(const ArgChecks& args, const std::string& form) {
  args.require(form == "survival" || form == "confidence" || form == "logits",
               "expected form \"survival\", \"confidence\" or \"logits\", got \"" + form + "\"");
  if (form == "survival") return ConfidenceForm::kSurvival;
  return form == "confidence" ? ConfidenceForm::kConfidence : ConfidenceForm::kLogits;
}

void check_budget(ArgChecks& args, const OptionalTensor& on_device, std::optional<int64_t> budget,
                  ScheduleVerifyLensParams& p) {
  p.budget_on_device = args(on_device, "budget").dtype(kInt32).shape({"1"}).data<int32_t>();
  const int64_t all = int64_t{p.batch_size} * p.num_drafts;
  args.require_range("budget", budget.value_or(0), 0, INT64_MAX);
  p.budget = static_cast<int32_t>(min_of<int64_t>(budget.value_or(all), all));
}

template <Device device>
void schedule_verify_lens(const Tensor& confidence, std::string form,
                          const OptionalTensor& temperatures, const OptionalTensor& min_lens,
                          const OptionalTensor& max_lens, const OptionalTensor& anchors,
                          const OptionalTensor& budget_on_device, std::optional<int64_t> budget,
                          double epsilon, const Tensor& verify_lens, const Tensor& survival,
                          const Tensor& status) {
  ArgChecks args("schedule_verify_lens", confidence);
  ScheduleVerifyLensParams p{};
  auto given = args(confidence, "confidence").dtype(kFloat32).shape({"B", "gamma"}).rows();
  p.confidence = given.data<float>();
  p.confidence_stride = given.row_stride();
  const int64_t num_drafts = args["gamma"];
  args.require_range("the number of drafts gamma of confidence", num_drafts, 0,
                     kMaxScheduledDrafts);
  args.require_range("the number of drafts B * gamma of confidence",
                     args["B"] * max_of<int64_t>(num_drafts, 1), 0, kMaxScheduledDrafts);
  p.batch_size = static_cast<int32_t>(args["B"]);
  p.num_drafts = static_cast<int32_t>(num_drafts);
  p.form = checked_form(args, form);
  args.require(p.form == ConfidenceForm::kLogits || !temperatures.has_value(),
               "expected temperatures with form \"logits\" only, got form \"" + form + "\"");
  p.temperatures = args(temperatures, "temperatures")
                       .dtype(kFloat32)
                       .shape({"gamma"})
                       .contiguous()
                       .data<float>();
  p.min_lens = args(min_lens, "min_lens").dtype(kInt32).shape({"B"}).contiguous().data<int32_t>();
  p.max_lens = args(max_lens, "max_lens").dtype(kInt32).shape({"B"}).contiguous().data<int32_t>();
  p.anchors = args(anchors, "anchors").dtype(kIds).shape({"B"}).contiguous().ids();
  check_budget(args, budget_on_device, budget, p);
  args.require_fraction("epsilon", epsilon);
  p.epsilon = static_cast<float>(epsilon);

  auto lens = args(verify_lens, "out.verify_lens").dtype(kInt32).shape({"B"}).contiguous();
  p.verify_lens = lens.mutable_data<int32_t>();
  auto survivals = args(survival, "out.survival").dtype(kFloat32).shape({"B", "gamma"});
  p.survival = survivals.contiguous().mutable_data<float>();
  auto bits = args(status, "out.status").dtype(kInt32).shape({"B"}).contiguous();
  p.status = bits.mutable_data<int32_t>();
  if constexpr (device == Device::kCpu) {
    schedule_verify_lens_cpu(p);
  } else {
    torch::stable::accelerator::DeviceGuard guard(confidence.get_device_index());
    schedule_verify_lens_cuda(p, current_stream(confidence));
  }
}

struct PageTableArgs {
  const Tensor& page_table;
  int64_t page_size;
  const OptionalTensor& page_table_rows;
  std::optional<int64_t> context_len;
};

void check_page_table(ArgChecks& args, const PageTableArgs& in, BuildVerifyWindowParams& p) {
  auto table = args(in.page_table, "page_table").dtype(kIds).shape({"P", "num_pages"}).rows();
  args.require_range("the number of rows P of page_table", args["P"], 0, INT32_MAX);
  args.require_range("page_size", in.page_size, 1, INT32_MAX);
  args.require_range("the number of pages of page_table", args["num_pages"], 0, INT32_MAX);
  p.page_table = table.ids();
  p.page_table_stride = table.row_stride();
  p.num_table_rows = static_cast<int32_t>(args["P"]);
  p.page_size = static_cast<int32_t>(in.page_size);
  p.page_table_rows = args(in.page_table_rows, "page_table_rows")
                          .dtype(kInt32)
                          .shape({"B"})
                          .contiguous()
                          .data<int32_t>();
  const int64_t positions = min_of<int64_t>(args["num_pages"] * in.page_size, INT32_MAX);
  args.require_range("context_len", in.context_len.value_or(positions), 0, positions);
  p.context_len = static_cast<int32_t>(in.context_len.value_or(positions));
}

// VerifyWindow of python/specfast/records.py.
struct WindowOutputs {
  const Tensor& verify_lens;
  const Tensor& qo_indptr;
  const Tensor& input_ids;
  const Tensor& positions;
  const Tensor& out_cache_loc;
  const Tensor& window_index;
  const Tensor& status;
};

void check_window(ArgChecks& args, const WindowOutputs& out, BuildVerifyWindowParams& p) {
  auto int32 = [&](const Tensor& tensor, const char* name, const char* size) {
    return args(tensor, name).dtype(kInt32).shape({size}).contiguous().mutable_data<int32_t>();
  };
  args.size("B + 1", args["B"] + 1);
  auto ids = args(out.input_ids, "out.input_ids").dtype(kIds).shape({"R"}).contiguous();
  p.input_ids = ids.mutable_ids();
  args.require_range("the number of rows R of out", args["R"], 0, INT32_MAX);
  p.num_rows = static_cast<int32_t>(args["R"]);
  p.window_lens = int32(out.verify_lens, "out.verify_lens", "B");
  p.qo_indptr = int32(out.qo_indptr, "out.qo_indptr", "B + 1");
  p.positions = int32(out.positions, "out.positions", "R");
  auto slots = args(out.out_cache_loc, "out.out_cache_loc").dtype(kIds).shape({"R"}).contiguous();
  p.out_cache_loc = slots.mutable_ids();
  p.window_index = int32(out.window_index, "out.window_index", "R");
  p.status = int32(out.status, "out.status", "B");
}

template <Device device>
void build_verify_window(const Tensor& draft_tokens, const OptionalTensor& anchors,
                         const Tensor& prefix_lens, const OptionalTensor& verify_lens,
                         const Tensor& page_table, int64_t page_size,
                         const OptionalTensor& page_table_rows, std::optional<int64_t> context_len,
                         std::optional<int64_t> vocab_size, int64_t padding_slot,
                         const Tensor& out_verify_lens, const Tensor& qo_indptr,
                         const Tensor& input_ids, const Tensor& positions,
                         const Tensor& out_cache_loc, const Tensor& window_index,
                         const Tensor& status) {
  ArgChecks args("build_verify_window", draft_tokens);
  BuildVerifyWindowParams p{};
  auto drafts = args(draft_tokens, "draft_tokens").dtype(kIds).shape({"B", "N"}).rows();
  args.require_range("the number of requests B", args["B"], 0, kMaxRequests);
  args.require_range("the number of nodes N of draft_tokens", args["N"], 1, INT32_MAX);
  args.require_range("the number of places B * N", args["B"] * args["N"], 0, INT32_MAX);
  p.batch_size = static_cast<int32_t>(args["B"]);
  p.num_nodes = static_cast<int32_t>(args["N"]);
  p.draft_tokens = drafts.ids();
  p.draft_tokens_stride = drafts.row_stride();
  p.anchors = args(anchors, "anchors").dtype(kIds).shape({"B"}).contiguous().ids();
  auto int32 = [&](const auto& tensor, const char* name) {
    return args(tensor, name).dtype(kInt32).shape({"B"}).contiguous().template data<int32_t>();
  };
  p.prefix_lens = int32(prefix_lens, "prefix_lens");
  p.verify_lens = int32(verify_lens, "verify_lens");
  check_page_table(args, {page_table, page_size, page_table_rows, context_len}, p);
  args.require_range("vocab_size", vocab_size.value_or(INT32_MAX), 1, INT32_MAX);
  p.vocab_size = static_cast<int32_t>(vocab_size.value_or(INT32_MAX));
  args.require_range("padding_slot", padding_slot, -1, INT32_MAX);
  p.padding_slot = padding_slot;
  check_window(
      args, {out_verify_lens, qo_indptr, input_ids, positions, out_cache_loc, window_index, status},
      p);
  if constexpr (device == Device::kCpu) {
    build_verify_window_cpu(p);
  } else {
    torch::stable::accelerator::DeviceGuard guard(draft_tokens.get_device_index());
    build_verify_window_cuda(p, current_stream(draft_tokens));
  }
}

}  // namespace
}  // namespace specfast

STABLE_TORCH_LIBRARY_FRAGMENT(specfast, m) {
  m.def(
      "schedule_verify_lens(Tensor confidence, str form, Tensor? temperatures, Tensor? min_lens, "
      "Tensor? max_lens, Tensor? anchors, Tensor? budget_on_device, int? budget, float epsilon, "
      "Tensor(a!) verify_lens, Tensor(b!) survival, Tensor(c!) status) -> ()");
  m.def(
      "build_verify_window(Tensor draft_tokens, Tensor? anchors, Tensor prefix_lens, "
      "Tensor? verify_lens, Tensor page_table, int page_size, Tensor? page_table_rows, "
      "int? context_len, int? vocab_size, int padding_slot, Tensor(a!) out_verify_lens, "
      "Tensor(b!) qo_indptr, Tensor(c!) input_ids, Tensor(d!) positions, "
      "Tensor(e!) out_cache_loc, Tensor(f!) window_index, Tensor(g!) status) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(specfast, CPU, m) {
  using namespace specfast;
  m.impl("schedule_verify_lens", TORCH_BOX(&schedule_verify_lens<Device::kCpu>));
  m.impl("build_verify_window", TORCH_BOX(&build_verify_window<Device::kCpu>));
}

#ifdef SPECFAST_HAS_CUDA
STABLE_TORCH_LIBRARY_IMPL(specfast, CUDA, m) {
  using namespace specfast;
  m.impl("schedule_verify_lens", TORCH_BOX(&schedule_verify_lens<Device::kCuda>));
  m.impl("build_verify_window", TORCH_BOX(&build_verify_window<Device::kCuda>));
}
#endif
