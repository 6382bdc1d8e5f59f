// How rollouts are made: the section `rollout` of a configuration.
#pragma once

#include <cstdint>

#include "core/base/options.h"
#include "core/generate.h"

namespace tailrace {

struct SamplingOptions {
  double temperature = 1.0;
  double top_p = 1.0;
  double min_p = 0.0;
  int64_t top_k = -1;

  void visit(OptionVisitor& v);
  SamplingParams params() const;  // lengths and stops are the episode's to fill in
};

// What the decode engine itself reads.
struct EngineOptions {
  int64_t max_context_tokens = 0;  // of a sequence, prompt included
  int64_t block_tokens = 16;
  int64_t kv_cache_mb = 256;
  int64_t kv_cache_blocks = 0;  // 0: what kv_cache_mb holds
  int64_t max_batch_tokens = 2048;
  int64_t max_sequences = 256;

  void visit(OptionVisitor& v);
};

struct RolloutOptions {
  int64_t prompts_per_step = 64;
  int64_t group_size = 8;
  SamplingOptions sampling;
  int64_t max_prompt_tokens = 0;  // 0: what the context leaves
  int64_t max_response_tokens =
      0;                          // all that follows the prompt, observations included; 0: as above
  int64_t max_action_tokens = 0;  // of one turn; 0: what the environment suggests
  int64_t max_turns = 0;          // 0: what the environment says
  EngineOptions engine;           // its keys stand beside the others in `rollout`
  int64_t workers = 1;
  int64_t threads = 1;  // of one worker's decode engine
  int64_t env_threads = 1;
  double step_timeout_s = 30;

  void visit(OptionVisitor& v);
  // Rules over several fields, and the default of max_context_tokens. Throws UserError.
  void validate();
};

}  // namespace tailrace
