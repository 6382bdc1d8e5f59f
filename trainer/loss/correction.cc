#include "trainer/loss/correction.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"

namespace tailrace {

CorrectionKind parse_correction(std::string_view name) {
  if (name == "none") return CorrectionKind::kNone;
  if (name == "tis") return CorrectionKind::kTis;
  TR_CHECK(false, "correction '{}' passed the options but is unknown", name);
  return {};
}

CorrectionLevel parse_correction_level(std::string_view name) {
  if (name == "token") return CorrectionLevel::kToken;
  if (name == "sequence") return CorrectionLevel::kSequence;
  TR_CHECK(false, "correction level '{}' passed the options but is unknown", name);
  return {};
}

int64_t correction_weights(const CorrectionConfig& config, std::span<const double> log_weight,
                           std::span<double> weight) {
  if (config.kind == CorrectionKind::kNone) {
    std::ranges::fill(weight, 1.0);
    return 0;
  }
  double sum = 0;
  for (double x : log_weight) sum += x;
  int64_t capped = 0;
  for (size_t i = 0; i < weight.size(); ++i) {
    // Compared in the log domain: a long sequence's product may overflow.
    double x = config.level == CorrectionLevel::kToken ? log_weight[i] : sum;
    bool cut = x > std::log(config.cap);
    weight[i] = cut ? config.cap : std::exp(x);
    capped += cut;
  }
  return capped;
}

}  // namespace tailrace
