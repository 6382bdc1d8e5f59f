// The flags that say how tokens are drawn, shared by the commands that sample.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/commands/number_flag.h"
#include "rollout/engine/options.h"

namespace tailrace {

inline CLI::Validator temperature_flag() {
  const auto at_least = fmt::format("0 or {} to {}", kMinTemperature, kMaxTemperature);
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        const auto value = parse_number(text);
        if (value && is_temperature(*value)) return "";
        return fmt::format("{} is no temperature; it must be {}", text, at_least);
      },
      at_least);
}

inline void add_sampling_flags(CLI::App& command, SamplingOptions& sampling) {
  command.add_option("--temperature", sampling.temperature, "divides the logits; 0: greedy")
      ->transform(temperature_flag())
      ->capture_default_str();
  command.add_option("--top-k", sampling.top_k, "keep the k likeliest tokens; -1 or 0: off")
      ->transform(integer_from(-1, 1 << 30))
      ->capture_default_str();
  command
      .add_option("--top-p", sampling.top_p, "keep the smallest set with this probability; 1: off")
      ->transform(number_from(1e-6, 1))
      ->capture_default_str();
  command
      .add_option("--min-p", sampling.min_p,
                  "keep tokens with this share of the largest probability; 0: off")
      ->transform(number_from(0, 1))
      ->capture_default_str();
}

}  // namespace tailrace
