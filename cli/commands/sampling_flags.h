// The flags that say how tokens are drawn, shared by the commands that sample.
// `excludes`: options that none of them can stand beside.
#pragma once

#include <string>
#include <vector>

#include "core/config/flags.h"
#include "rollout/engine/options.h"

namespace tailrace {

inline void add_sampling_flags(Command& command, SamplingOptions& sampling,
                               const std::vector<std::string>& excludes = {}) {
  command.option("--temperature", sampling.temperature,
                 {.help = "divides the logits; 0: greedy",
                  .min = kMinTemperature,
                  .max = kMaxTemperature,
                  .or_zero = true,
                  .excludes = excludes});
  command.option("--top-k", sampling.top_k,
                 {.help = "keep the k likeliest tokens; -1 or 0: off",
                  .min = -1,
                  .max = 1 << 30,
                  .excludes = excludes});
  command.option("--top-p", sampling.top_p,
                 {.help = "keep the smallest set with this probability; 1: off",
                  .min = 1e-6,
                  .max = 1,
                  .excludes = excludes});
  command.option("--min-p", sampling.min_p,
                 {.help = "keep tokens with this share of the largest probability; 0: off",
                  .max = 1,
                  .excludes = excludes});
}

}  // namespace tailrace
