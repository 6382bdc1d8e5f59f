// The options of the decode engine in the section `rollout`, and how tokens are drawn.
#pragma once

#include <cstdint>
#include <optional>

#include "core/config/options.h"
#include "core/generate.h"

namespace tailrace {

// 0 is greedy. Below the least one the inverse comes near what a float can hold.
inline constexpr double kMinTemperature = 1e-3, kMaxTemperature = 1000;
constexpr bool is_temperature(double value) {
  return value == 0 || (value >= kMinTemperature && value <= kMaxTemperature);
}

inline constexpr int64_t kMaxKvBlocks = 1 << 24;

struct SamplingOptions {
  double temperature = 1.0;
  double top_p = 1.0;
  double min_p = 0.0;
  int64_t top_k = -1;

  void visit(OptionVisitor& v);
  SamplingParams params() const;  // lengths and stops are the episode's to fill in
};

// The options that the decode engine itself reads.
struct EngineOptions {
  int64_t max_context_tokens = 0;  // of a sequence, prompt included
  int64_t block_tokens = 16;
  int64_t kv_cache_mb = 256;
  int64_t kv_cache_blocks = 0;  // 0: what kv_cache_mb holds
  int64_t max_batch_tokens = 2048;
  int64_t max_sequences = 256;
  bool keep_choices = false;  // Generation::choices; no key of its own (algo.router_replay)
  // No keys: of the logits that are made at once (0: what suits the device), and whether a step is
  // planned while the one before runs (none: on a GPU), and whether steps that decode alone are
  // graphs (none: on a GPU; elsewhere there are no graphs).
  int64_t logit_floats = 0;
  std::optional<bool> overlaps, graphs;

  void visit(OptionVisitor& v);
};

}  // namespace tailrace
