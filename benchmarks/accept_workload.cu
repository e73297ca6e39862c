#include <cmath>
#include <numeric>

#include "accept_workload.cuh"

namespace specfast::bench {
namespace {

constexpr int kNumEos = 2;
constexpr int kNumStop = 4;
constexpr double kExpectedRows = 2.5;
constexpr double kColdBytes = 256e6;
constexpr double kWarmBytes = 16e6;
constexpr int kMostSets = 512;

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

int sets_for(const Point& point) {
  if (point.dtype.empty()) return 64;
  double bytes = kExpectedRows * point.batch * LogitPool::kRowBytes;
  if (ends_with(point.variant, "warm")) return max_of(1, static_cast<int>(kWarmBytes / bytes));
  return clamp_to(static_cast<int>(kColdBytes / bytes), 4, kMostSets);
}

// Spread evenly over [0, 1) for consecutive i: few requests have the mean path of many.
float golden_fraction(int i) {
  constexpr double kGoldenRatio = 0.6180339887498949;
  double multiple = (i + 1) * kGoldenRatio;
  return static_cast<float>(multiple - std::floor(multiple));
}

int random_token_except(Random& random, int excluded) {
  int token = random.below(LogitPool::kVocab - 1);
  return token < excluded ? token : token + 1;
}

}  // namespace

AcceptWorkload::AcceptWorkload(const Point& point, int width, MakeTree make_tree)
    : batch_(point.batch),
      nodes_(point.nodes),
      sets_(sets_for(point)),
      width_(width),
      rows_(point.batch * point.nodes),
      from_logits_(!point.dtype.empty()) {
  for (SetArray<int64_t>* rows : {&draft_tokens_, &target_predict_, &out_cache_loc_}) {
    *rows = SetArray<int64_t>(sets_, rows_);
  }
  for (SetArray<int32_t>* requests :
       {&prefix_lens_, &verify_lens_, &max_tokens_left_, &min_tokens_left_, &num_correct_drafts_,
        &accept_lens_, &commit_lens_, &new_seq_lens_, &bonus_, &next_anchor_, &finish_reason_,
        &status_}) {
    *requests = SetArray<int32_t>(sets_, batch_);
  }
  for (SetArray<int32_t>* paths : {&accept_index_, &out_tokens_, &positions_}) {
    *paths = SetArray<int32_t>(sets_, batch_ * width_);
  }
  slots_ = SetArray<int64_t>(sets_, batch_ * width_);
  predict_ = SetArray<int32_t>(sets_, rows_);
  eos_token_ids_ = SetArray<int32_t>(sets_, kNumEos);
  stop_token_ids_ = SetArray<int32_t>(sets_, batch_ * kNumStop);
  ignore_eos_ = SetArray<uint8_t>(sets_, batch_);

  Random random(20);
  for (int i = 0; i < sets_ * batch_; ++i) {
    trees_.push_back(make_tree(random, point));
    trees_.back().choose_path(random, golden_fraction(i));
  }
  for (int set = 0; set < sets_; ++set) fill(set);
  for (SetArray<int64_t>* input : {&draft_tokens_, &target_predict_, &out_cache_loc_}) {
    input->upload();
  }
  for (SetArray<int32_t>* input : {&prefix_lens_, &verify_lens_, &eos_token_ids_, &stop_token_ids_,
                                   &max_tokens_left_, &min_tokens_left_}) {
    input->upload();
  }
  ignore_eos_.upload();
}

void AcceptWorkload::fetch_all_rows(int set) {
  for (int64_t row = 0; row < rows_; ++row) LogitPool::shared().fetch(first_row(set) + row);
}

void AcceptWorkload::fill(int set) {
  Random random(set);
  for (int64_t row = 0; row < rows_; ++row) {
    target_predict_.host(set)[row] = LogitPool::best_token(first_row(set) + row);
  }
  std::iota(out_cache_loc_.host(set), out_cache_loc_.host(set) + rows_, random.below(1 << 20));
  std::fill_n(eos_token_ids_.host(set), kNumEos, LogitPool::kVocab);
  std::fill_n(stop_token_ids_.host(set), batch_ * kNumStop, LogitPool::kVocab);
  for (int request = 0; request < batch_; ++request) {
    prefix_lens_.host(set)[request] = random.below(8192);
    verify_lens_.host(set)[request] = nodes_;
    max_tokens_left_.host(set)[request] = 1024;
    min_tokens_left_.host(set)[request] = 0;
    ignore_eos_.host(set)[request] = 0;
    const DraftTree& tree = this->tree(set, request);
    const int64_t* predictions = target_predict_.host(set) + request * nodes_;
    int64_t* tokens = draft_tokens_.host(set) + request * nodes_;
    tokens[0] = random.below(LogitPool::kVocab);
    for (int node = 1; node < nodes_; ++node) {
      int wanted = static_cast<int>(predictions[tree.parents[node]]);
      tokens[node] = tree.on_path(node) ? wanted : random_token_except(random, wanted);
    }
    if (!from_logits_) continue;
    for (int node : tree.path) {
      LogitPool::shared().fetch(first_row(set) + request * nodes_ + node);
    }
  }
}

AcceptParams AcceptWorkload::accept_params(Side side, int set) {
  AcceptParams p{};
  p.batch_size = batch_;
  p.num_nodes = nodes_;
  p.width = width_;
  p.num_rows = rows_;
  p.vocab_size = LogitPool::kVocab;
  p.draft_tokens = {draft_tokens_.on(side, set), true};
  p.draft_tokens_stride = nodes_;
  p.prefix_lens = prefix_lens_.on(side, set);
  p.verify_lens = verify_lens_.on(side, set);
  p.out_cache_loc = {out_cache_loc_.on(side, set), true};
  p.finish.eos_token_ids = eos_token_ids_.on(side, set);
  p.finish.num_eos = kNumEos;
  p.finish.stop_token_ids = stop_token_ids_.on(side, set);
  p.finish.num_stop = kNumStop;
  p.finish.max_tokens_left = max_tokens_left_.on(side, set);
  p.finish.min_tokens_left = min_tokens_left_.on(side, set);
  p.finish.ignore_eos = ignore_eos_.on(side, set);
  p.predict = predict_.on(side, set);
  p.accept_index = accept_index_.on(side, set);
  p.num_correct_drafts = num_correct_drafts_.on(side, set);
  p.accept_lens = accept_lens_.on(side, set);
  p.commit_lens = commit_lens_.on(side, set);
  p.new_seq_lens = new_seq_lens_.on(side, set);
  p.out_tokens = out_tokens_.on(side, set);
  p.bonus = bonus_.on(side, set);
  p.next_anchor = next_anchor_.on(side, set);
  p.positions = positions_.on(side, set);
  p.slots = {slots_.on(side, set), true};
  p.finish_reason = finish_reason_.on(side, set);
  p.status = status_.on(side, set);
  return p;
}

TargetRows AcceptWorkload::target_rows(Side side, int set) {
  if (!from_logits_) return {nullptr, {}, 0, {target_predict_.on(side, set), true}};
  const LogitPool& pool = LogitPool::shared();
  const BFloat16* logits =
      side == Side::kHost ? pool.host(first_row(set)) : pool.device(first_row(set));
  return {logits, FloatType::kBFloat16, LogitPool::kVocab, {}};
}

void AcceptWorkload::expect_equal_records(int set) {
  for (int request = 0; request < batch_; ++request) {
    // The rows reported as visited are those of the planned path.
    int accepted = num_correct_drafts_.host(set)[request];
    int planned = tree(set, request).last_depth();
    if (accepted == planned) continue;
    throw Mismatch("request " + std::to_string(request) + " of input set " + std::to_string(set) +
                   ": the CPU body accepts " + std::to_string(accepted) + " drafts of " +
                   std::to_string(planned));
  }
  expect_equal_fields(set);
}

void AcceptWorkload::expect_equal_fields(int set) {
  predict_.expect_equal(set, "predict");
  accept_index_.expect_equal(set, "accept_index");
  num_correct_drafts_.expect_equal(set, "num_correct_drafts");
  accept_lens_.expect_equal(set, "accept_lens");
  commit_lens_.expect_equal(set, "commit_lens");
  new_seq_lens_.expect_equal(set, "new_seq_lens");
  out_tokens_.expect_equal(set, "out_tokens");
  bonus_.expect_equal(set, "bonus");
  next_anchor_.expect_equal(set, "next_anchor");
  positions_.expect_equal(set, "positions");
  slots_.expect_equal(set, "slots");
  finish_reason_.expect_equal(set, "finish_reason");
  status_.expect_equal(set, "status");
}

double AcceptWorkload::mean_accept_len() {
  double sum = 0;
  for (int set = 0; set < sets_; ++set) {
    sum = std::accumulate(accept_lens_.host(set), accept_lens_.host(set) + batch_, sum);
  }
  return sum / sets_ / batch_;
}

Traffic AcceptWorkload::traffic() {
  double visited = 0;
  double longest = 0;
  for (const DraftTree& tree : trees_) {
    visited += static_cast<double>(tree.path.size());
    longest = max_of(longest, static_cast<double>(tree.path.size()));
  }
  // Rows, links and slots of a request, then its record.
  double bytes = draft_tokens_.bytes() + predict_.bytes() + slots_.bytes() +
                 3 * accept_index_.bytes() + 12 * status_.bytes();
  if (from_logits_) bytes += visited / sets_ * LogitPool::kRowBytes;
  return {bytes, visited / static_cast<double>(trees_.size()), longest};
}

}  // namespace specfast::bench
