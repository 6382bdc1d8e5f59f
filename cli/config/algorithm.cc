#include "cli/config/algorithm.h"

#include <algorithm>
#include <functional>
#include <map>
#include <span>
#include <string_view>

#include <fmt/format.h>

#include "core/base/join_texts.h"

namespace tailrace {
namespace {

// The first key of each line, in the order of the loss. The keys behind it in the option list of
// `algo` stand on its line, up to the next one of these.
constexpr std::string_view kLines[] = {"name",     "advantage", "credit.kind", "length.penalty",
                                       "ratio",    "surrogate", "clip_low",    "correction.kind",
                                       "loss_agg", "kl.coef"};

// Told where they are on: they mend the machine, or stand beside the algorithm.
constexpr std::string_view kToldWhenOn[] = {"sampling_mask", "router_replay", "distill.policy"};

bool holds(std::span<const std::string_view> keys, std::string_view key) {
  return std::ranges::find(keys, key) != keys.end();
}

std::map<size_t, OptionDoc> in_order(const AlgoOptions& options) {
  std::map<size_t, OptionDoc> keys;
  for (const SectionDoc& section : describe_options(options))
    for (const OptionDoc& option : section.options) keys.emplace(option.place, option);
  return keys;
}

}  // namespace

std::vector<std::string> describe_algorithm(const RunOptions& options, const ConfigKeys& keys) {
  const std::map<size_t, OptionDoc> standard = in_order(AlgoOptions{});
  const std::map<std::string, OptionDoc> elsewhere = options_by_key(options);
  std::map<std::string, std::vector<std::string>, std::less<>> shown;  // by what begins the line
  std::string line;
  for (const auto& [place, option] : in_order(options.algo)) {
    // Options come in the order of their list, so that each one stands on the line that began last.
    if (holds(kLines, option.key)) line = option.key;
    const bool is_off = holds(kToldWhenOn, option.key) && option.value == standard.at(place).value;
    if (option.idle || is_off) continue;
    shown[line].push_back(fmt::format("{} {} ({})", option.key, option.value,
                                      keys.source(join_key("algo", option.key))));
  }
  // The algorithm's options in other sections.
  for (const char* key : {"scheduler.replace_zero_signal", "rollout.greedy_member"}) {
    const OptionDoc& option = elsewhere.at(key);
    if (option.value == "true")
      shown[std::string(kLines[1])].push_back(fmt::format("{} true ({})", key, keys.source(key)));
  }
  if (constexpr const char* kBound = "scheduler.max_gen_batches"; !elsewhere.at(kBound).idle)
    shown[std::string(kLines[1])].push_back(
        fmt::format("{} {} ({})", kBound, elsewhere.at(kBound).value, keys.source(kBound)));
  std::vector<std::string> critic;
  for (const auto& [key, option] : elsewhere)
    if (key.starts_with("critic.") && !option.idle)
      critic.push_back(fmt::format("{} {} ({})", key, option.value, keys.source(key)));
  std::vector<std::string> lines;
  for (const std::string_view first : kLines)
    if (const auto found = shown.find(first); found != shown.end())
      lines.push_back(join_texts(found->second, ", "));
  if (!critic.empty()) lines.push_back(join_texts(critic, ", "));
  return lines;
}

}  // namespace tailrace
