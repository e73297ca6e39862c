#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "core/accept_params.h"
#include "draft_trees.h"
#include "logit_pool.cuh"
#include "set_array.cuh"
#include "workload.h"

namespace specfast::bench {

// Verify windows for the accept ops: drafts that agree with the target along a known path, its
// logits (or its predictions, where the point has no dtype), every rule of the tail switched on.
class AcceptWorkload : public Workload {
 public:
  using MakeTree = DraftTree (*)(Random&, const Point&);

  AcceptWorkload(const Point& point, int width, MakeTree make_tree);

  int sets() const override { return sets_; }
  Traffic traffic() override;

 protected:
  AcceptParams accept_params(Side side, int set);
  TargetRows target_rows(Side side, int set);
  const DraftTree& tree(int set, int request) const { return trees_[set * batch_ + request]; }
  // Makes the host's mirror of all rows; those of the planned paths it has.
  void fetch_all_rows(int set);
  // The records of both sides are equal, and their paths those that were planned.
  void expect_equal_records(int set);
  void expect_equal_fields(int set);
  // Rows on the paths of the host's records, per request: once all sets are checked.
  double mean_accept_len();

  int batch_;
  int nodes_;
  int sets_;

 private:
  int64_t first_row(int set) const { return LogitPool::window_begin(set, sets_, rows_); }
  void fill(int set);

  int width_;
  int rows_;
  bool from_logits_;
  std::vector<DraftTree> trees_;

  SetArray<int64_t> draft_tokens_, target_predict_, out_cache_loc_;
  SetArray<int32_t> prefix_lens_, verify_lens_;
  SetArray<int32_t> eos_token_ids_, stop_token_ids_, max_tokens_left_, min_tokens_left_;
  SetArray<uint8_t> ignore_eos_;

  SetArray<int32_t> predict_, accept_index_, num_correct_drafts_, accept_lens_, commit_lens_;
  SetArray<int32_t> new_seq_lens_, out_tokens_, bonus_, next_anchor_, positions_;
  SetArray<int32_t> finish_reason_, status_;
  SetArray<int64_t> slots_;
};

}  // namespace specfast::bench
