#include "rollout/episode/options.h"

#include <algorithm>
#include <bit>
#include <string_view>

#include <fmt/format.h>

#include "core/base/error.h"

namespace tailrace {

void EvalSampling::visit(OptionVisitor& v) {
  v.field("temperature", temperature,
          {.help = "divides the logits; 0 is greedy, -1 as rollout.sampling",
           .min = kAsTraining,
           .max = kMaxTemperature});
  v.field("top_k", top_k,
          {.help = "keep the k likeliest tokens; -1 or 0 is off, -2 as rollout.sampling",
           .min = -2,
           .max = kMaxCount});
  v.field("top_p", top_p,
          {.help = "keep the smallest set of likeliest tokens with this probability; 1 is off, -1 "
                   "as rollout.sampling",
           .min = kAsTraining,
           .max = 1});
  v.field("min_p", min_p,
          {.help = "keep tokens with at least this share of the largest probability; 0 is off, -1 "
                   "as rollout.sampling",
           .min = kAsTraining,
           .max = 1});
}

void EvalSampling::validate() const {
  const auto refuse = [](std::string_view key, double value, std::string_view range) {
    throw UserError::at(fmt::format("eval.sampling.{}", key),
                        "is {}; it must be {}, or -1 (as rollout.sampling).", value, range);
  };
  if (temperature != kAsTraining && !is_temperature(temperature))
    refuse("temperature", temperature,
           fmt::format("0 (greedy), from {} to {}", kMinTemperature, kMaxTemperature));
  if (top_p != kAsTraining && top_p < 1e-6) refuse("top_p", top_p, "from 1e-06 to 1");
  if (min_p != kAsTraining && min_p < 0) refuse("min_p", min_p, "from 0 to 1");
}

SamplingOptions EvalSampling::over(SamplingOptions training) const {
  if (temperature != kAsTraining) training.temperature = temperature;
  if (top_p != kAsTraining) training.top_p = top_p;
  if (min_p != kAsTraining) training.min_p = min_p;
  if (top_k != -2) training.top_k = top_k;
  return training;
}

void EvaluationOptions::visit(OptionVisitor& v) {
  v.section("sampling", sampling, "how tokens of held-out prompts are drawn");
}

void RolloutOptions::visit(OptionVisitor& v) {
  v.section("sampling", sampling, "how tokens are drawn");
  v.field("greedy_member", greedy_member,
          {.help = "member 0 of each group takes the likeliest token each time: the baseline of "
                   "ReMax"});
  v.field("max_prompt_tokens", max_prompt_tokens,
          {.help = "longest first observation; 0: whatever fits the context",
           .min = 0,
           .max = kMaxSequenceTokens});
  v.field(
      "max_response_tokens", max_response_tokens,
      {.help = "most tokens after the prompt, observations of later turns included; 0: whatever "
               "fits the context",
       .min = 0,
       .max = kMaxSequenceTokens});
  v.field("max_action_tokens", max_action_tokens,
          {.help = "most tokens sampled in a turn; 0: what the environment suggests",
           .min = 0,
           .max = kMaxSequenceTokens});
  v.field("max_turns", max_turns,
          {.help = "most actions of an episode; 0: what the environment says, which is also the "
                   "most",
           .min = 0,
           .max = kMaxCount});
  engine.visit(v);
  v.field(
      "threads", threads,
      {.help = "threads of a worker's decode engine; 0: its share of the machine's cores, at most "
               "16",
       .min = 0,
       .max = kMaxThreads,
       .resume = Resume::kMayChange});
  v.field("env_threads", env_threads,
          {.help = "threads of a worker that run environments",
           .min = 1,
           .max = kMaxThreads,
           .resume = Resume::kMayChange});
  v.field("step_timeout_s", step_timeout_s,
          {.help = "deadline of one reset or step of an environment (s)",
           .min = 1e-3,
           .max = 1e8,
           .resume = Resume::kMayChange});
  v.field("start_timeout_s", start_timeout_s,
          {.help = "deadline of the start of an environment's program (env.command), until it has "
                   "answered its first line (s); the deadline of a reset counts from then",
           .min = 1e-3,
           .max = 1e8,
           .resume = Resume::kMayChange});
  v.field("env_starts_at_once", env_starts_at_once,
          {.help = "processes of an environment's program that a worker starts at once; other "
                   "episodes wait for a start. 0: as many as the machine has cores, from 4 to 16",
           .min = 0,
           .max = 1024,
           .resume = Resume::kMayChange});
  v.field("store_turns_tokens", store_turns_tokens,
          {.help = "finished turns of an episode go to the trajectory store whenever it has grown "
                   "by so many tokens (and by half) since the last time; an attempt that is lost "
                   "or moved goes on from there; 0: only when its worker leaves",
           .min = 0,
           .max = kMaxSequenceTokens,
           .resume = Resume::kMayChange});
}

void RolloutOptions::validate() {
  if (!is_temperature(sampling.temperature)) {
    throw UserError::at("rollout.sampling.temperature",
                        "is {}; it must be 0 (greedy) or from {} to {}. Try 1.0.",
                        sampling.temperature, kMinTemperature, kMaxTemperature);
  }
  evaluation.sampling.validate();
  int64_t needed = max_prompt_tokens + max_response_tokens;
  // The model's own limit, which `help` promises, is filled in before by whoever has read the
  // model's config.
  if (engine.max_context_tokens == 0) {
    if (max_prompt_tokens == 0 || max_response_tokens == 0) {
      throw UserError::at("rollout.max_context_tokens",
                          "is missing: give it, or both rollout.max_prompt_tokens and "
                          "rollout.max_response_tokens.");
    }
    engine.max_context_tokens = needed;
  }
  if (engine.max_context_tokens < 2) {
    throw UserError::at("rollout.max_context_tokens",
                        "is {}; a prompt and its answer need at least 2.\n       Try "
                        "rollout.max_context_tokens = 256.",
                        engine.max_context_tokens);
  }
  if (engine.max_context_tokens < needed) {
    throw UserError::at(
        "rollout.max_context_tokens",
        "is {}, less than max_prompt_tokens + max_response_tokens = {} + {}.\n       Try "
        "rollout.max_context_tokens = {}.",
        engine.max_context_tokens, max_prompt_tokens, max_response_tokens, needed);
  }
  // The help of rollout.block_tokens promises a power of two; a range alone cannot say it.
  if (!std::has_single_bit(static_cast<uint64_t>(engine.block_tokens))) {
    throw UserError::at(
        "rollout.block_tokens",
        "is {}; it must be a power of two from 8 to 128.\n       Try rollout.block_tokens = {}.",
        engine.block_tokens,
        std::clamp<uint64_t>(std::bit_ceil(static_cast<uint64_t>(engine.block_tokens)), 8, 128));
  }
}

int64_t RolloutOptions::max_sampled_tokens() const {
  const int64_t context = engine.max_context_tokens;
  return max_response_tokens > 0 ? std::min(max_response_tokens, context) : context;
}

}  // namespace tailrace
