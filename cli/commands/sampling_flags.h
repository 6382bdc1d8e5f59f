// The flags that say how tokens are drawn, shared by the commands that sample.
#pragma once

#include <CLI/CLI.hpp>

#include "rollout/episode/options.h"

namespace tailrace {

inline void add_sampling_flags(CLI::App& command, SamplingOptions& sampling) {
  command.add_option("--temperature", sampling.temperature, "divides the logits; 0: greedy")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  command.add_option("--top-k", sampling.top_k, "keep the k likeliest tokens; -1 or 0: off")
      ->check(CLI::Range(-1, 1 << 30))
      ->capture_default_str();
  command
      .add_option("--top-p", sampling.top_p, "keep the smallest set with this probability; 1: off")
      ->check(CLI::Range(1e-6, 1.0))
      ->capture_default_str();
  command
      .add_option("--min-p", sampling.min_p,
                  "keep tokens with this share of the largest probability; 0: off")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
}

}  // namespace tailrace
