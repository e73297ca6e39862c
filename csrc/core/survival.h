#pragma once

#include "core/sigmoid.h"
#include "core/status.h"

namespace specfast {

// What a drafter says about its own drafts: in each form a number per draft, in chain order.
enum class ConfidenceForm : int32_t {
  kSurvival,    // probability that the target accepts this draft and all before it
  kConfidence,  // probability that it accepts this draft once it has accepted those before it
  kLogits,      // logit of that probability, before its temperature
};

// The survivals of one chain, one draft after the other. They never rise, whatever is given: a
// number that is no probability counts as the nearest one that is, NaN and a logit without a legal
// temperature as 0 (kBadParam), and a survival above the one before it as that one.
class SurvivalChain {
 public:
  SPECFAST_HD explicit SurvivalChain(ConfidenceForm form) : form_(form) {}

  SPECFAST_HD float next(float given, float temperature) {
    float value = given;
    if (form_ == ConfidenceForm::kLogits) {
      bool has_temperature = temperature > 0.0f && temperature < INFINITY;
      value = has_temperature ? sigmoid(given / temperature) : NAN;
    }
    bool probability = value >= 0.0f && value <= 1.0f;
    if (!probability) {
      status_ = kBadParam;
      value = value > 1.0f ? 1.0f : 0.0f;
    }
    // A minus zero becomes zero: keys are compared by their bits.
    survival_ = form_ == ConfidenceForm::kSurvival ? min_of(value + 0.0f, survival_)
                                                   : value * survival_ + 0.0f;
    return survival_;
  }
  SPECFAST_HD int32_t status() const { return status_; }

 private:
  ConfidenceForm form_;
  float survival_ = 1.0f;
  int32_t status_ = kStatusOk;
};

// Compares like a survival; 0 is below every key.
SPECFAST_HD uint32_t survival_key(float survival) { return float_bits(survival) + 1; }

}  // namespace specfast
