// Rows between the products of a drafter's layer, at the sizes of Qwen3-8B: hidden 4096, and 12288
// within its MLP. B is the number of rows; every set has rows of its own.

#include "ops/fused_add_rms_norm.h"
#include "ops/gather_eagle_inputs.h"
#include "ops/grouped_dynamic_conv.h"
#include "ops/silu_and_mul.h"
#include "random.h"
#include "set_array.cuh"
#include "workload.h"

namespace specfast::bench {
namespace {

using Bits = uint16_t;

constexpr int kHidden = 4096;
constexpr int kInner = 12288;
constexpr int kVocab = 32000;
constexpr double kColdBytes = 256e6;

int cold_sets(double bytes) { return clamp_to(static_cast<int>(kColdBytes / bytes), 2, 1024); }

void fill(SetArray<Bits>& array, int sets, Random& random) {
  for (int set = 0; set < sets; ++set) {
    for (int64_t i = 0; i < array.count(); ++i) {
      array.host(set)[i] = rounded_to<BFloat16>(2 * random.uniform() - 1).bits;
    }
  }
  array.upload();
}

class FusedAddRmsNorm : public Workload {
 public:
  explicit FusedAddRmsNorm(const Point& point)
      : rows_(point.batch),
        sets_(cold_sets(traffic().bytes)),
        x_(sets_, int64_t{rows_} * kHidden),
        residual_(sets_, x_.count()),
        weight_(sets_, kHidden),
        out_(sets_, x_.count()),
        sum_(sets_, x_.count()) {
    Random random(11);
    for (auto* array : {&x_, &residual_, &weight_}) fill(*array, sets_, random);
  }

  int sets() const override { return sets_; }
  void launch(int set, CUstream_st* stream) override {
    fused_add_rms_norm_cuda(params(Side::kDevice, set), stream);
  }
  void check(int set) override {
    fused_add_rms_norm_cpu(params(Side::kHost, set));
    out_.expect_equal(set, "out");
    sum_.expect_equal(set, "sum");
  }
  Traffic traffic() override { return {(4.0 * rows_ + 1) * kHidden * sizeof(Bits), 0, 0}; }

 private:
  FusedAddRmsNormParams params(Side side, int set) {
    FusedAddRmsNormParams p{};
    p.num_rows = rows_;
    p.width = kHidden;
    p.type = FloatType::kBFloat16;
    p.has_wide_rows = true;
    p.x = x_.on(side, set);
    p.residual = residual_.on(side, set);
    p.weight = weight_.on(side, set);
    p.eps = 1e-6f;
    p.out = out_.on(side, set);
    p.sum = sum_.on(side, set);
    p.x_stride = p.residual_stride = p.out_stride = p.sum_stride = kHidden;
    return p;
  }

  int rows_;
  int sets_;
  SetArray<Bits> x_, residual_, weight_, out_, sum_;
};

class SiluAndMul : public Workload {
 public:
  explicit SiluAndMul(const Point& point)
      : rows_(point.batch),
        sets_(cold_sets(traffic().bytes)),
        x_(sets_, int64_t{rows_} * 2 * kInner),
        out_(sets_, int64_t{rows_} * kInner) {
    Random random(12);
    fill(x_, sets_, random);
  }

  int sets() const override { return sets_; }
  void launch(int set, CUstream_st* stream) override {
    silu_and_mul_cuda(params(Side::kDevice, set), stream);
  }
  void check(int set) override {
    silu_and_mul_cpu(params(Side::kHost, set));
    out_.expect_equal(set, "out");
  }
  Traffic traffic() override { return {3.0 * rows_ * kInner * sizeof(Bits), 0, 0}; }

 private:
  SiluAndMulParams params(Side side, int set) {
    SiluAndMulParams p{};
    p.num_rows = rows_;
    p.width = kInner;
    p.type = FloatType::kBFloat16;
    p.has_wide_rows = true;
    p.x = x_.on(side, set);
    p.x_stride = 2 * kInner;
    p.out = out_.on(side, set);
    p.out_stride = kInner;
    return p;
  }

  int rows_;
  int sets_;
  SetArray<Bits> x_, out_;
};

// A node of each request, both halves normed.
class GatherEagleInputs : public Workload {
 public:
  explicit GatherEagleInputs(const Point& point)
      : batch_(point.batch),
        sets_(cold_sets(traffic().bytes)),
        tokens_(sets_, batch_),
        embedding_(1, int64_t{kVocab} * kHidden),
        features_(sets_, int64_t{batch_} * kHidden),
        weights_(1, 2 * kHidden),
        out_(sets_, int64_t{batch_} * 2 * kHidden) {
    Random random(13);
    for (auto* array : {&embedding_, &weights_}) fill(*array, 1, random);
    fill(features_, sets_, random);
    for (int set = 0; set < sets_; ++set) {
      for (int b = 0; b < batch_; ++b) tokens_.host(set)[b] = random.below(kVocab);
    }
    tokens_.upload();
  }

  int sets() const override { return sets_; }
  void launch(int set, CUstream_st* stream) override {
    gather_eagle_inputs_cuda(params(Side::kDevice, set), stream);
  }
  void check(int set) override {
    gather_eagle_inputs_cpu(params(Side::kHost, set));
    out_.expect_equal(set, "out");
  }
  Traffic traffic() override { return {(4.0 * batch_ + 2) * kHidden * sizeof(Bits), 0, 0}; }

 private:
  GatherEagleInputsParams params(Side side, int set) {
    GatherEagleInputsParams p{};
    p.batch_size = batch_;
    p.num_nodes = p.num_features = 1;
    p.width = kHidden;
    p.type = FloatType::kBFloat16;
    p.has_wide_rows = true;
    p.tokens = {tokens_.on(side, set), false};
    p.tokens_stride = 1;
    p.embedding = embedding_.on(side, 0);
    p.vocab_size = kVocab;
    p.features = features_.on(side, set);
    p.features_request_stride = p.features_stride = kHidden;
    p.embedding_norm_weight = weights_.on(side, 0);
    p.features_norm_weight = weights_.on(side, 0) + kHidden;
    p.eps = 1e-6f;
    p.out = out_.on(side, set);
    return p;
  }

  int batch_;
  int sets_;
  SetArray<int32_t> tokens_;
  SetArray<Bits> embedding_, features_, weights_, out_;
};

// Blocks of 8 rows, two taps, 16 channels a group.
class GroupedDynamicConv : public Workload {
 public:
  explicit GroupedDynamicConv(const Point& point)
      : batch_(point.batch),
        sets_(cold_sets(traffic().bytes)),
        x_(sets_, int64_t{batch_} * kRows * kHidden),
        base_(1, kTaps * kHidden),
        dynamic_(sets_, int64_t{batch_} * kRows * kTaps * kHidden / kGroup),
        out_(sets_, x_.count()) {
    Random random(16);
    for (auto* array : {&x_, &dynamic_}) fill(*array, sets_, random);
    fill(base_, 1, random);
  }

  int sets() const override { return sets_; }
  void launch(int set, CUstream_st* stream) override {
    grouped_dynamic_conv_cuda(params(Side::kDevice, set), stream);
  }
  void check(int set) override {
    grouped_dynamic_conv_cpu(params(Side::kHost, set));
    out_.expect_equal(set, "out");
  }
  Traffic traffic() override { return {2.0 * batch_ * kRows * kHidden * sizeof(Bits), 0, 0}; }

 private:
  static constexpr int kRows = 8;
  static constexpr int kTaps = 2;
  static constexpr int kGroup = 16;

  GroupedDynamicConvParams params(Side side, int set) {
    GroupedDynamicConvParams p{};
    p.batch_size = batch_;
    p.num_rows = kRows;
    p.width = kHidden;
    p.num_taps = kTaps;
    p.group_size = kGroup;
    p.type = FloatType::kBFloat16;
    p.has_wide_rows = true;
    p.x = x_.on(side, set);
    p.x_request_stride = kRows * kHidden;
    p.x_stride = kHidden;
    p.base = base_.on(side, 0);
    p.dynamic = dynamic_.on(side, set);
    p.dynamic_tap_stride = kHidden / kGroup;
    p.dynamic_stride = kTaps * p.dynamic_tap_stride;
    p.dynamic_request_stride = kRows * p.dynamic_stride;
    p.out = out_.on(side, set);
    return p;
  }

  int batch_;
  int sets_;
  SetArray<Bits> x_, base_, dynamic_, out_;
};

std::vector<Point> points_of(const char* variant) {
  std::vector<Point> points;
  for (int rows : {1, 8, 64, 512}) points.push_back({variant, rows, 1, 0, "bf16"});
  return points;
}

Registrar fused_add_rms_norm(benchmark<FusedAddRmsNorm>("fused_add_rms_norm",
                                                        points_of("4096 channels, cold")));
Registrar silu_and_mul(benchmark<SiluAndMul>("silu_and_mul", points_of("12288 channels, cold")));
Registrar gather_eagle_inputs(benchmark<GatherEagleInputs>("gather_eagle_inputs",
                                                           points_of("2 x 4096 channels, cold")));

Registrar grouped_dynamic_conv(benchmark<GroupedDynamicConv>(
    "grouped_dynamic_conv", {{"blocks of 8 x 4096, cold", 1, 8, 0, "bf16"},
                             {"blocks of 8 x 4096, cold", 8, 8, 0, "bf16"},
                             {"blocks of 8 x 4096, cold", 64, 8, 0, "bf16"}}));

}  // namespace
}  // namespace specfast::bench
