#include "cli/run/algorithm.h"

#include <map>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tailrace {

std::vector<std::string> describe_algorithm(const RunOptions& options, const ConfigKeys& keys) {
  const std::map<std::string, OptionDoc> values = options_by_key(options);
  const AlgoOptions& algo = options.algo;
  std::vector<std::string> lines, shown;
  const auto show = [&](std::string_view name, bool has_effect = true) {
    if (!has_effect) return;
    const std::string key = join_key("algo", name);
    shown.push_back(fmt::format("{} {} ({})", name, values.at(key).value, keys.source(key)));
  };
  const auto end_line = [&] {
    if (!shown.empty()) lines.push_back(fmt::format("{}", fmt::join(shown, ", ")));
    shown.clear();
  };
  show("name");
  end_line();
  show("advantage");
  show("std_eps", divides_by_std(algo.advantage));
  show("filter_zero_signal");
  end_line();
  show("ratio");
  end_line();
  show("surrogate");
  end_line();
  const bool clips = algo.surrogate.kind == SurrogateKind::kPpoClip;
  show("clip_low", clips);
  show("clip_high", clips || algo.surrogate.kind == SurrogateKind::kCispo);
  show("clip_c", clips);
  end_line();
  const bool corrects = algo.correction.kind != CorrectionKind::kNone;
  show("correction.kind");
  show("correction.level", corrects);
  show("correction.cap", corrects);
  show("sampling_mask", algo.sampling_mask != SamplingMask::kNone);
  show("router_replay", algo.router_replay != RouterReplay::kOff);
  end_line();
  show("loss_agg");
  show("loss_const_tokens", algo.aggregation.kind == AggregationKind::kSeqMeanTokenSumConst);
  end_line();
  const bool leaves = algo.kl.coef > 0;
  show("kl.coef");
  show("kl.estimator", leaves);
  show("kl.target", leaves);
  show("entropy_coef");
  end_line();
  return lines;
}

}  // namespace tailrace
