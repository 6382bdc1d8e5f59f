#include "core/model/rope_scaling.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>

namespace tailrace {
namespace {

constexpr double kTurn = 2 * std::numbers::pi;

double mix(double slow, double fast, double share_of_fast) {
  return (1 - share_of_fast) * slow + share_of_fast * fast;
}

// How much of the unscaled angle stays, by its wavelength in positions.
double llama3_share(const RopeScaling& s, double inv_freq) {
  // Llama 3.1: pairs that turn more than high_freq_factor times over the original context keep
  // their angle, those below low_freq_factor are divided, and the rest are mixed in between.
  const double turns = static_cast<double>(s.original_positions) * inv_freq / kTurn;
  return std::clamp((turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor), 0.0,
                    1.0);
}

// The same by the place of the pair: a ramp between the pairs that turn beta_fast and beta_slow
// times.
class YarnRamp {
 public:
  YarnRamp(const RopeScaling& s, double theta, int64_t head_dim) {
    const auto dim = static_cast<double>(head_dim);
    // The pair i for which original_positions * theta^(-2i / dim) is so many turns.
    const auto pair_of = [&](double turns) {
      return dim * std::log(static_cast<double>(s.original_positions) / (turns * kTurn)) /
             (2 * std::log(theta));
    };
    first_ = pair_of(s.beta_fast);
    last_ = pair_of(s.beta_slow);
    if (s.truncate) first_ = std::floor(first_), last_ = std::ceil(last_);
    first_ = std::max(first_, 0.0);
    last_ = std::min(last_, dim - 1);
    if (first_ == last_) last_ += 0.001;  // no division by zero
  }
  double share(size_t pair) const {
    return 1 - std::clamp((static_cast<double>(pair) - first_) / (last_ - first_), 0.0, 1.0);
  }

 private:
  double first_, last_;
};

}  // namespace

double yarn_attention_factor(double factor, double mscale) {
  // YaRN's temperature of the attention (Peng et al. 2023): 1/sqrt(t) = 0.1 ln(s) + 1, folded into
  // the table of cosines and sines, so it multiplies queries and keys alike.
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

std::vector<double> rope_inv_freq(double theta, int64_t head_dim, const RopeScaling& scaling) {
  std::vector<double> frequencies(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    double& inv_freq = frequencies[i];
    inv_freq = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    const double divided = inv_freq / scaling.factor;
    switch (scaling.type) {
      case RopeScaling::Type::kNone:
        break;
      case RopeScaling::Type::kLinear:
        inv_freq = divided;
        break;
      case RopeScaling::Type::kLlama3:
        inv_freq = mix(divided, inv_freq, llama3_share(scaling, inv_freq));
        break;
      case RopeScaling::Type::kYarn:
        inv_freq = mix(divided, inv_freq, YarnRamp(scaling, theta, head_dim).share(i));
        break;
    }
  }
  return frequencies;
}

}  // namespace tailrace
