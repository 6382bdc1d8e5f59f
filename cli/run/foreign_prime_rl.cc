// prime-rl's configuration of `rl` runs, newer and older spellings.
#include "cli/run/foreign_names.h"

namespace tailrace {

std::vector<ForeignName> prime_rl_names() {
  constexpr std::string_view kSamples =
      "it counts samples. Write rollout.prompts_per_step = batch_size / group_size.";
  constexpr std::string_view kSources =
      "write env.name, and env.dataset where it wants one; several are a list under datasets:.";
  constexpr std::string_view kGpus =
      "the first GPU of a machine computes, or its CPU (model.device); train.ranks and "
      "rollout.workers say how many share it. Remove it.";
  constexpr std::string_view kLogs =
      "each step goes to metrics.jsonl and TensorBoard files in the run directory. Remove it.";
  constexpr std::string_view kLoss =
      "its mask leaves tokens out where a clip bounds their ratio. Write algo.clip_low and "
      "algo.clip_high.";
  constexpr std::string_view kSchedule =
      "write optim.schedule: linear or cosine, which fall until behind the last update, and "
      "optim.min_lr_ratio.";
  constexpr std::string_view kAhead =
      "write scheduler.mode: async, and scheduler.ahead, the steps that are sampled ahead.";
  return {
      // ---- taken
      {.programs = "prime-rl", .name = "model.name", .key = "model.path"},
      {.programs = "prime-rl", .name = "trainer.model.lora.rank", .key = "lora.rank"},
      {.programs = "prime-rl", .name = "trainer.model.lora.alpha", .key = "lora.alpha"},
      {.programs = "prime-rl", .name = "trainer.model.lora.target_modules", .key = "lora.targets"},
      {.programs = "prime-rl", .name = "seq_len", .key = "rollout.max_context_tokens"},
      {.programs = "prime-rl", .name = "orchestrator.group_size", .key = "rollout.group_size"},
      {.programs = "prime-rl",
       .name = "orchestrator.train.group_size",
       .key = "rollout.group_size"},
      {.programs = "prime-rl",
       .name = "orchestrator.rollouts_per_example",
       .key = "rollout.group_size"},
      {.programs = "prime-rl",
       .name = "orchestrator.sampling.temperature",
       .key = "rollout.sampling.temperature"},
      {.programs = "prime-rl",
       .name = "orchestrator.train.sampling.temperature",
       .key = "rollout.sampling.temperature"},
      {.programs = "prime-rl",
       .name = "orchestrator.sampling.max_tokens",
       .key = "rollout.max_action_tokens"},
      {.programs = "prime-rl",
       .name = "orchestrator.train.sampling.max_completion_tokens",
       .key = "rollout.max_action_tokens"},
      {.programs = "prime-rl",
       .name = "orchestrator.max_off_policy_steps",
       .key = "scheduler.max_staleness"},
      {.programs = "prime-rl", .name = "orchestrator.eval.interval", .key = "eval.interval_steps"},
      {.programs = "prime-rl", .name = "eval.interval", .key = "eval.interval_steps"},
      {.programs = "prime-rl",
       .name = "orchestrator.eval.rollouts_per_example",
       .key = "eval.group_size"},
      {.programs = "prime-rl",
       .name = "orchestrator.eval.num_examples",
       .key = "eval.prompts",
       .values = {{.theirs = "-1", .told = "write eval.prompts, the number of held-out prompts."},
                  {.theirs = "*"}}},
      {.programs = "prime-rl", .name = "ckpt.interval", .key = "checkpoint.interval_steps"},
      {.programs = "prime-rl", .name = "ckpt.keep_last", .key = "checkpoint.keep_last"},
      {.programs = "prime-rl",
       .name = "trainer.optim.type",
       .key = "optim.kind",
       .values = {{.theirs = "adamw", .ours = "adamw"}, {.theirs = "muon", .ours = "muon"}}},
      {.programs = "prime-rl", .name = "trainer.optim.lr", .key = "optim.lr"},
      {.programs = "prime-rl", .name = "trainer.optim.weight_decay", .key = "optim.weight_decay"},
      {.programs = "prime-rl", .name = "trainer.optim.max_norm", .key = "optim.max_grad_norm"},
      {.programs = "prime-rl",
       .name = "trainer.scheduler.warmup_steps",
       .key = "optim.warmup_updates"},
      {.programs = "prime-rl",
       .name = "trainer.scheduler.type",
       .key = "optim.schedule",
       .values = {{.theirs = "constant", .ours = "constant"},
                  {.theirs = "linear", .told = kSchedule},
                  {.theirs = "cosine", .told = kSchedule}}},

      {.programs = "prime-rl",
       .name = "trainer.enable_router_replay",
       .key = "algo.router_replay",
       .values = {{.theirs = "true", .ours = "replay"}, {.theirs = "false", .ours = "off"}}},

      // ---- refused
      {.programs = "prime-rl", .name = "orchestrator.batch_size", .told = kSamples},
      {.programs = "prime-rl",
       .name = "orchestrator.token_batch_size",
       .told = "it counts tokens, and a step has a number of prompts here. Write "
               "rollout.prompts_per_step."},
      {.programs = "prime-rl", .name = "orchestrator.train.source", .told = kSources},
      {.programs = "prime-rl", .name = "orchestrator.env", .told = kSources},
      {.programs = "prime-rl", .name = "max_async_level", .told = kAhead},
      {.programs = "prime-rl", .name = "orchestrator.max_async_level", .told = kAhead},
      {.programs = "prime-rl", .name = "trainer.max_async_level", .told = kAhead},
      {.programs = "prime-rl", .name = "trainer.loss.ipo_mask_low", .told = kLoss},
      {.programs = "prime-rl", .name = "trainer.loss.ipo_mask_high", .told = kLoss},
      {.programs = "prime-rl",
       .name = "trainer.loss.kl_tau",
       .told = "it pulls to what sampled, not to the start. Write algo.kl.coef and "
               "algo.kl.target: behaviour."},
      {.programs = "prime-rl", .name = "trainer.loss.dppo_mask_low", .told = kLoss},
      {.programs = "prime-rl", .name = "trainer.loss.dppo_mask_high", .told = kLoss},
      {.programs = "prime-rl",
       .name = "trainer.loss.type",
       .told = "write algo.name, a preset, or algo.surrogate."},
      {.programs = "prime-rl",
       .name = "trainer.optim.betas1",
       .told = "write both as one list: optim.betas: [0.9, 0.999]."},
      {.programs = "prime-rl",
       .name = "trainer.optim.betas2",
       .told = "write both as one list: optim.betas: [0.9, 0.999]."},
      {.programs = "prime-rl",
       .name = "trainer.ac",
       .told = "train.microbatch_tokens bounds the memory of activations. Remove it."},
      {.programs = "prime-rl",
       .name = "trainer.model",
       .told = "attention is built in, and model.compute says how weights are stored. Remove it."},
      {.programs = "prime-rl",
       .name = "orchestrator.buffer",
       .told = "groups whose rewards are all equal are replaced with "
               "scheduler.replace_zero_signal: true. Write that, or remove it."},
      {.programs = "prime-rl", .name = "deployment", .told = kGpus},
      {.programs = "prime-rl",
       .name = "inference",
       .told = "the engine that samples is built in, and needs no server. Remove it."},
      {.programs = "prime-rl", .name = "monitors", .told = kLogs},
      {.programs = "prime-rl", .name = "wandb", .told = kLogs},
      {.programs = "prime-rl",
       .name = "weight_broadcast",
       .told = "versions of the weights are files of the run. Remove it."},
      {.programs = "prime-rl",
       .name = "ckpt.resume_step",
       .told = "'tailrace launch --run-dir DIR' continues a run. Remove it."},
  };
}

}  // namespace tailrace
