#pragma once

#include "core/candidate_lists.h"
#include "core/tree_record.h"
#include "random.h"
#include "set_array.cuh"
#include "workload.h"

namespace specfast::bench {

// Expansions that a drafter would make: topk candidates of each of the topk best of a level.
struct Expansion {
  int topk;
  int depth;
};

// The candidates of EAGLE-2 drafts, the record that a tree op fills, and both their Params.
class TreeWorkload : public Workload {
 public:
  explicit TreeWorkload(const Point& point);

  int sets() const override { return sets_; }

 protected:
  CandidateLists lists(Side side, int set);
  TreeRecord record(Side side, int set);
  void expect_equal_records(int set);
  double input_bytes() const { return scores_.bytes() + parent_list_.bytes(); }
  double record_bytes() const;

  int batch_;
  int nodes_;
  Expansion expansion_;
  int candidates_;
  int sets_;
  SetArray<int64_t> anchors_, tokens_;

 private:
  void expand(Random& random, float* scores, int64_t* parent_list) const;

  MaskMode mask_mode_;
  int64_t mask_bytes_;
  SetArray<float> scores_;
  SetArray<int64_t> parent_list_;
  SetArray<int32_t> prefix_lens_;

  SetArray<int64_t> draft_tokens_;
  SetArray<int32_t> positions_, parents_, retrieve_index_, retrieve_next_token_;
  SetArray<int32_t> retrieve_next_sibling_, status_;
  SetArray<uint8_t> mask_;
};

}  // namespace specfast::bench
