#include "rollout/engine/options.h"

namespace tailrace {

void SamplingOptions::visit(OptionVisitor& v) {
  v.field("temperature", temperature,
          {.help = "divides the logits; 0 is greedy", .min = 0, .max = kMaxTemperature});
  v.field("top_k", top_k,
          {.help = "keep the k likeliest tokens; -1 or 0 is off", .min = -1, .max = kMaxCount});
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
           .max = kMaxSequenceTokens});
  v.field("block_tokens", block_tokens,
          {.help = "positions in a KV cache block, a power of two", .min = 8, .max = 128});
  v.field("kv_cache_mb", kv_cache_mb,
          {.help = "most memory that a worker's KV cache takes (MiB)",
           .min = 1,
           .max = 1 << 24,
           .resume = Resume::kMayChange});
  v.field("kv_cache_blocks", kv_cache_blocks,
          {.help = "blocks of a worker's KV cache; 0: as many as are of use and kv_cache_mb holds",
           .min = 0,
           .max = kMaxKvBlocks,
           .resume = Resume::kMayChange});
  v.field("max_batch_tokens", max_batch_tokens,
          {.help = "tokens in one forward pass; longer prompts are prefilled in pieces",
           .min = 1,
           .max = kMaxSequenceTokens,
           .resume = Resume::kMayChange});
  v.field(
      "max_sequences", max_sequences,
      {.help = "sequences decoded together", .min = 1, .max = 65536, .resume = Resume::kMayChange});
}

}  // namespace tailrace
