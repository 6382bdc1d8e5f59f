#include "rollout/options.h"

#include <algorithm>
#include <bit>

#include "core/base/error.h"

namespace tailrace {

void SamplingOptions::visit(OptionVisitor& v) {
  v.field(
      "temperature", temperature,
      {.help = "divides the logits; 0 is greedy", .min = 0, .aliases = {"rollout_temperature"}});
  v.field("top_k", top_k, {.help = "keep the k likeliest tokens; -1 or 0 is off", .min = -1});
  v.field("top_p", top_p,
          {.help = "keep the smallest set of likeliest tokens with this probability; 1 is off",
           .min = 1e-6,
           .max = 1});
  v.field("min_p", min_p,
          {.help = "keep tokens with at least this share of the largest probability; 0 is off",
           .min = 0,
           .max = 1});
}

SamplingParams SamplingOptions::params() const {
  SamplingParams params;
  params.temperature = temperature;
  params.top_k = top_k;
  params.top_p = top_p;
  params.min_p = min_p;
  return params;
}

void EngineOptions::visit(OptionVisitor& v) {
  v.field("max_context_tokens", max_context_tokens,
          {.help = "tokens of a sequence, prompt included; 0: max_prompt_tokens + "
                   "max_response_tokens when both are given, else the model's positions, at most "
                   "train.microbatch_tokens",
           .min = 0,
           .aliases = {"sequence_length"}});
  v.field("block_tokens", block_tokens,
          {.help = "positions in a KV cache block, a power of two", .min = 8, .max = 128});
  v.field("kv_cache_mb", kv_cache_mb,
          {.help = "most memory that a worker's KV cache takes (MiB)", .min = 1});
  v.field("kv_cache_blocks", kv_cache_blocks,
          {.help = "blocks of a worker's KV cache; 0: as many as are of use and kv_cache_mb holds",
           .min = 0});
  v.field("max_batch_tokens", max_batch_tokens,
          {.help = "tokens in one forward pass; longer prompts are prefilled in pieces", .min = 1});
  v.field("max_sequences", max_sequences, {.help = "sequences decoded together", .min = 1});
}

void RolloutOptions::visit(OptionVisitor& v) {
  v.field("prompts_per_step", prompts_per_step,
          {.help = "prompts consumed by one step",
           .min = 1,
           .aliases = {"rollout_batch_size", "train_batch_size", "num_prompts_per_step"}});
  v.field("group_size", group_size,
          {.help = "samples of each prompt",
           .min = 1,
           .aliases = {"n", "n_samples_per_prompt", "num_generations",
                       "num_return_sequences_in_group"}});
  v.section("sampling", sampling, "how tokens are drawn");
  v.field("max_prompt_tokens", max_prompt_tokens,
          {.help = "longest first observation; 0: whatever fits the context",
           .min = 0,
           .aliases = {"max_prompt_length"}});
  v.field(
      "max_response_tokens", max_response_tokens,
      {.help = "most tokens after the prompt, observations of later turns included; 0: whatever "
               "fits the context",
       .min = 0,
       .aliases = {"max_response_length"}});
  v.field("max_action_tokens", max_action_tokens,
          {.help = "most tokens sampled in a turn; 0: what the environment suggests", .min = 0});
  v.field("max_turns", max_turns,
          {.help = "most actions of an episode; 0: what the environment says, which is also the "
                   "most",
           .min = 0,
           .aliases = {"max_rollout_turns", "max_steps", "max_tool_calling_iterations"}});
  engine.visit(v);
  v.field("workers", workers, {.help = "rollout worker processes", .min = 1});
  v.field("threads", threads, {.help = "threads of a worker's decode engine", .min = 1});
  v.field("env_threads", env_threads,
          {.help = "threads of a worker that run environments", .min = 1});
  v.field("step_timeout_s", step_timeout_s,
          {.help = "deadline of one reset or step of an environment (s)", .min = 1e-3});
}

void RolloutOptions::validate() {
  int64_t needed = max_prompt_tokens + max_response_tokens;
  if (engine.max_context_tokens == 0) {
    if (max_prompt_tokens == 0 || max_response_tokens == 0) {
      throw UserError(
          "rollout.max_context_tokens is missing: give it, or both rollout.max_prompt_tokens and "
          "rollout.max_response_tokens.");
    }
    engine.max_context_tokens = needed;
  }
  if (engine.max_context_tokens < 2) {
    throw UserError(
        "rollout.max_context_tokens is {}; a prompt and its answer need at least 2.\n       Try "
        "max_context_tokens = 256.",
        engine.max_context_tokens);
  }
  if (engine.max_context_tokens < needed) {
    throw UserError(
        "rollout.max_context_tokens is {}, less than max_prompt_tokens + max_response_tokens = {} "
        "+ {}.\n       Try max_context_tokens = {}.",
        engine.max_context_tokens, max_prompt_tokens, max_response_tokens, needed);
  }
  if (!std::has_single_bit(static_cast<uint64_t>(engine.block_tokens))) {
    throw UserError(
        "rollout.block_tokens is {}; it must be a power of two from 8 to 128.\n       Try "
        "block_tokens = {}.",
        engine.block_tokens,
        std::clamp<uint64_t>(std::bit_ceil(static_cast<uint64_t>(engine.block_tokens)), 8, 128));
  }
}

}  // namespace tailrace
