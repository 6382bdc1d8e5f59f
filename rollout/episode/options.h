// How episodes are made: the section `rollout` of a configuration, where the size of a step stands
// too (scheduler::StepOptions).
#pragma once

#include <cstdint>

#include "core/base/ids.h"
#include "core/config/options.h"
#include "rollout/engine/options.h"

namespace tailrace {

// How held-out prompts are sampled, as far as that is not as in training: `eval.sampling`.
struct EvalSampling {
  static constexpr int64_t kAsTraining = -1;
  // kAsTraining: of rollout.sampling; of top_k, which -1 switches off, it is -2.
  double temperature = kAsTraining, top_p = kAsTraining, min_p = kAsTraining;
  int64_t top_k = -2;

  void visit(OptionVisitor& v);
  void validate() const;  // throws UserError
  SamplingOptions over(SamplingOptions training) const;
};

// The part of the section `eval` that whoever plays episodes reads.
struct EvaluationOptions {
  EvalSampling sampling;
  void visit(OptionVisitor& v);
};

struct RolloutOptions {
  SamplingOptions sampling;
  EvaluationOptions evaluation;   // its keys stand in `eval`
  bool greedy_member = false;     // is_greedy_member() samples at temperature 0
  int64_t max_prompt_tokens = 0;  // 0: what the context leaves
  // All that follows the prompt, observations included; 0: as above.
  int64_t max_response_tokens = 0;
  int64_t max_action_tokens = 0;  // of one turn; 0: what the environment suggests
  int64_t max_turns = 0;          // 0: what the environment says
  EngineOptions engine;           // its keys stand beside the others in `rollout`
  int64_t threads = 0;            // of one worker's decode engine; 0: whoever starts it says
  int64_t env_threads = 1;
  int64_t env_starts_at_once = 0;  // of one program; 0: whoever starts it says
  double step_timeout_s = 30, start_timeout_s = 120;
  int64_t store_turns_tokens = 256;  // 0: only when a worker leaves

  void visit(OptionVisitor& v);
  // Rules over several fields, and the default of max_context_tokens. Throws UserError.
  void validate();
  SamplingOptions sampling_in(Lane lane) const {
    return lane == Lane::kEval ? evaluation.sampling.over(sampling) : sampling;
  }
  // Most that an episode can sample; validated.
  int64_t max_sampled_tokens() const;
};

}  // namespace tailrace
