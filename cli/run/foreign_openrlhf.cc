// The flags of OpenRLHF's train_ppo_ray, as they are with dots and as they were before.
#include "cli/run/foreign_names.h"

namespace tailrace {

std::vector<ForeignName> openrlhf_names() {
  constexpr std::string_view kUpdate =
      "it counts samples of an update. Write train.minibatches_per_step = rollout batch size x "
      "n_samples_per_prompt / train batch size.";
  constexpr std::string_view kMicro = "passes are packed by tokens. Write train.microbatch_tokens.";
  constexpr std::string_view kClip = "write both bounds: algo.clip_low and algo.clip_high.";
  constexpr std::string_view kKl =
      "unless KL is in the loss (use_kl_loss) it is subtracted from rewards, which is another "
      "objective. Write algo.kl.coef for a penalty in the loss.";
  constexpr std::string_view kKlLoss =
      "the KL penalty is always in the loss. Write algo.kl.coef, and remove it.";
  constexpr std::string_view kWarmup = "write optim.warmup_updates, a number of updates.";
  constexpr std::string_view kReward =
      "write reward.command: [python3, FILE] (docs/rewards.md), or env.settings.verifier, which "
      "names a built-in one.";
  constexpr std::string_view kGpus =
      "training runs on CPUs: train.ranks and rollout.workers say how many processes there are. "
      "Remove it.";
  constexpr std::string_view kBatchNorm =
      "OpenRLHF divides these advantages by a deviation over tokens of the batch besides. Write "
      "algo.advantage: group_mean, or group_mean_batch_std.";
  constexpr std::string_view kCritic =
      "GAE needs a critic, which is not there yet. Write algo.advantage: group_mean_std.";
  constexpr std::string_view kNever =
      "a run always saves its last step. Remove it, or write checkpoint.interval_steps.";
  constexpr std::string_view kLogs =
      "each step goes to metrics.jsonl and TensorBoard files in the run directory. Remove it.";
  constexpr std::string_view kEval =
      "write eval.prompts: 0 for no evaluation, or eval.interval_steps: 0 for one before the first "
      "step and one after the last.";
  constexpr std::string_view kSchedule =
      "write optim.schedule: constant, linear or cosine, and optim.min_lr_ratio.";
  constexpr std::string_view kFilter =
      "write scheduler.replace_zero_signal: true, which replaces groups whose rewards are "
      "all equal.";
  constexpr std::string_view kRange =
      "only groups whose rewards are all equal are replaced "
      "(scheduler.replace_zero_signal). Remove it.";
  constexpr std::string_view kTemplate =
      "the chat template of the model folder is used where there is one (chat.style). "
      "Remove it.";
  constexpr std::string_view kEngine =
      "the engine that samples is built in, and needs no server. Remove it.";
  const std::vector<ForeignValue> advantages = {
      {.theirs = "group_norm", .ours = "group_mean_std"},
      {.theirs = "dr_grpo", .ours = "group_mean"},
      {.theirs = "rloo", .ours = "leave_one_out"},
      {.theirs = "gae", .told = kCritic},
      {.theirs = "reinforce", .told = kBatchNorm},
      {.theirs = "reinforce_baseline", .told = kBatchNorm}};
  const std::vector<ForeignValue> response = {
      {.theirs = "*", .also = "rollout.max_action_tokens=*"}};
  const std::vector<ForeignValue> epochs = {{.theirs = "*", .also = "run.steps=0"}};
  const std::vector<ForeignValue> saves = {{.theirs = "-1", .told = kNever}, {.theirs = "*"}};
  const std::vector<ForeignValue> evals = {{.theirs = "-1", .told = kEval}, {.theirs = "*"}};
  return {
      // ---- taken
      {.programs = "OpenRLHF", .name = "pretrain", .key = "model.path"},
      {.programs = "OpenRLHF", .name = "actor.model_name_or_path", .key = "model.path"},
      {.programs = "OpenRLHF", .name = "prompt_data", .key = "env.dataset"},
      {.programs = "OpenRLHF", .name = "data.prompt_dataset", .key = "env.dataset"},
      {.programs = "OpenRLHF", .name = "eval.dataset", .key = "env.eval_dataset"},
      {.programs = "OpenRLHF", .name = "train.seed", .key = "run.seed"},
      {.programs = "OpenRLHF", .name = "eval.n_samples_per_prompt", .key = "eval.group_size"},
      {.programs = "OpenRLHF", .name = "actor.adam.betas", .key = "optim.betas"},
      {.programs = "OpenRLHF", .name = "ckpt.output_dir", .key = "run.dir"},
      {.programs = "OpenRLHF", .name = "eval_dataset", .key = "env.eval_dataset"},
      {.programs = "OpenRLHF", .name = "lora_rank", .key = "lora.rank"},
      {.programs = "OpenRLHF", .name = "ds.lora.rank", .key = "lora.rank"},
      {.programs = "OpenRLHF", .name = "ds.lora.alpha", .key = "lora.alpha"},
      {.programs = "OpenRLHF, TRL",
       .name = "target_modules",
       .key = "lora.targets",
       .values = {{.theirs = "all-linear", .ours = ""}, {.theirs = "*"}}},
      {.programs = "OpenRLHF",
       .name = "ds.lora.target_modules",
       .key = "lora.targets",
       .values = {{.theirs = "all-linear", .ours = ""}, {.theirs = "*"}}},
      {.programs = "OpenRLHF", .name = "input_key", .key = "env.columns.prompt"},
      {.programs = "OpenRLHF", .name = "data.input_key", .key = "env.columns.prompt"},
      {.programs = "OpenRLHF", .name = "rollout_batch_size", .key = "rollout.prompts_per_step"},
      {.programs = "OpenRLHF", .name = "rollout.batch_size", .key = "rollout.prompts_per_step"},
      {.programs = "OpenRLHF", .name = "n_samples_per_prompt", .key = "rollout.group_size"},
      {.programs = "OpenRLHF", .name = "eval_n_samples_per_prompt", .key = "eval.group_size"},
      {.programs = "OpenRLHF",
       .name = "rollout.temperature",
       .key = "rollout.sampling.temperature"},
      {.programs = "OpenRLHF", .name = "rollout.top_p", .key = "rollout.sampling.top_p"},
      {.programs = "OpenRLHF", .name = "prompt_max_len", .key = "rollout.max_prompt_tokens"},
      {.programs = "OpenRLHF",
       .name = "generate_max_len",
       .key = "rollout.max_response_tokens",
       .values = response},
      {.programs = "OpenRLHF",
       .name = "rollout.max_new_tokens",
       .key = "rollout.max_response_tokens",
       .values = response},
      {.programs = "OpenRLHF", .name = "data.max_len", .key = "rollout.max_context_tokens"},
      {.programs = "OpenRLHF", .name = "max_len", .key = "rollout.max_context_tokens"},
      {.programs = "OpenRLHF", .name = "actor_learning_rate", .key = "optim.lr"},
      {.programs = "OpenRLHF", .name = "actor.adam.lr", .key = "optim.lr"},
      {.programs = "OpenRLHF", .name = "adam_betas", .key = "optim.betas"},
      {.programs = "OpenRLHF", .name = "l2", .key = "optim.weight_decay"},
      {.programs = "OpenRLHF", .name = "max_norm", .key = "optim.max_grad_norm"},
      {.programs = "OpenRLHF", .name = "actor.max_norm", .key = "optim.max_grad_norm"},
      {.programs = "OpenRLHF", .name = "max_epochs", .key = "train.ppo_epochs"},
      {.programs = "OpenRLHF", .name = "train.max_epochs", .key = "train.ppo_epochs"},
      {.programs = "OpenRLHF",
       .name = "train_max_tokens_per_gpu",
       .key = "train.microbatch_tokens"},
      {.programs = "OpenRLHF",
       .name = "train.max_tokens_per_gpu",
       .key = "train.microbatch_tokens"},
      {.programs = "OpenRLHF", .name = "num_episodes", .key = "run.epochs", .values = epochs},
      {.programs = "OpenRLHF", .name = "train.num_episodes", .key = "run.epochs", .values = epochs},
      {.programs = "OpenRLHF", .name = "ckpt_path", .key = "run.dir"},
      {.programs = "OpenRLHF",
       .name = "ckpt.save_steps",
       .key = "checkpoint.interval_steps",
       .values = saves},
      {.programs = "OpenRLHF", .name = "ckpt.max_num", .key = "checkpoint.keep_last"},
      {.programs = "OpenRLHF", .name = "max_ckpt_num", .key = "checkpoint.keep_last"},
      {.programs = "OpenRLHF", .name = "eval.steps", .key = "eval.interval_steps", .values = evals},
      {.programs = "OpenRLHF", .name = "dual_clip", .key = "algo.clip_c"},
      {.programs = "OpenRLHF", .name = "actor.dual_clip", .key = "algo.clip_c"},
      {.programs = "OpenRLHF", .name = "entropy_loss_coef", .key = "algo.entropy_coef"},
      {.programs = "OpenRLHF", .name = "actor.entropy_coef", .key = "algo.entropy_coef"},
      {.programs = "OpenRLHF", .name = "kl_estimator", .key = "algo.kl.estimator"},
      {.programs = "OpenRLHF", .name = "aux_loss_coef", .key = "train.balance_coef"},
      {.programs = "OpenRLHF",
       .name = "advantage_estimator",
       .key = "algo.advantage",
       .values = advantages},
      {.programs = "OpenRLHF",
       .name = "algo.advantage.estimator",
       .key = "algo.advantage",
       .values = advantages},

      // ---- refused: the value means another thing here
      {.programs = "OpenRLHF", .name = "train_batch_size", .told = kUpdate},
      {.programs = "OpenRLHF", .name = "train.batch_size", .told = kUpdate},
      {.programs = "OpenRLHF", .name = "micro_train_batch_size", .told = kMicro},
      {.programs = "OpenRLHF", .name = "train.micro_batch_size", .told = kMicro},
      {.programs = "OpenRLHF", .name = "micro_rollout_batch_size", .told = kMicro},
      {.programs = "OpenRLHF", .name = "eps_clip", .told = kClip},
      {.programs = "OpenRLHF", .name = "actor.eps_clip", .told = kClip},
      {.programs = "OpenRLHF", .name = "eps_clip_low_high", .told = kClip},
      {.programs = "OpenRLHF", .name = "actor.eps_clip_low_high", .told = kClip},
      {.programs = "OpenRLHF",
       .name = "vllm_is_truncated_threshold",
       .told = "it is two numbers, and weights are cut from above alone here. Write "
               "algo.correction.kind: tis, and algo.correction.cap with the upper one."},
      {.programs = "OpenRLHF", .name = "init_kl_coef", .told = kKl},
      {.programs = "OpenRLHF", .name = "algo.kl.init_coef", .told = kKl},
      {.programs = "OpenRLHF", .name = "algo.kl.use_loss", .told = kKlLoss},
      {.programs = "OpenRLHF", .name = "lr_warmup_ratio", .told = kWarmup},
      {.programs = "OpenRLHF", .name = "lr_scheduler", .told = kSchedule},
      {.programs = "OpenRLHF", .name = "dynamic_filtering", .told = kFilter},
      {.programs = "OpenRLHF", .name = "dynamic_filtering_reward_range", .told = kRange},
      {.programs = "OpenRLHF", .name = "label_key", .key = "env.columns.answer"},
      {.programs = "OpenRLHF", .name = "remote_rm_url", .told = kReward},
      {.programs = "OpenRLHF", .name = "agent_func_path", .told = kReward},
      {.programs = "OpenRLHF",
       .name = "reward_pretrain",
       .told =
           "there is no reward model. Give a verifier (env.settings.verifier) or reward.command."},
      {.programs = "OpenRLHF", .name = "async_train", .told = "write scheduler.mode: async."},
      {.programs = "OpenRLHF",
       .name = "async_queue_size",
       .told = "write scheduler.ahead, the steps that are sampled ahead."},

      {.programs = "OpenRLHF", .name = "actor.lr_warmup_ratio", .told = kWarmup},
      {.programs = "OpenRLHF", .name = "actor.lr_scheduler", .told = kSchedule},
      {.programs = "OpenRLHF", .name = "algo.dynamic_filtering_enable", .told = kFilter},
      {.programs = "OpenRLHF", .name = "algo.dynamic_filtering_range", .told = kRange},
      {.programs = "OpenRLHF", .name = "rollout.micro_batch_size", .told = kMicro},
      {.programs = "OpenRLHF", .name = "data.label_key", .key = "env.columns.answer"},
      {.programs = "OpenRLHF",
       .name = "eval.temperature",
       .told = "an evaluation samples as training does (rollout.sampling). Remove it."},
      {.programs = "OpenRLHF", .name = "reward.remote_url", .told = kReward},
      {.programs = "OpenRLHF", .name = "train.agent_func_path", .told = kReward},
      {.programs = "OpenRLHF",
       .name = "reward.model_name_or_path",
       .told =
           "there is no reward model. Give a verifier (env.settings.verifier) or reward.command."},
      {.programs = "OpenRLHF",
       .name = "train.async_enable",
       .told = "write scheduler.mode: async."},

      // ---- refused: nothing to say here
      {.programs = "OpenRLHF",
       .name = "save_path",
       .told = "each checkpoint in the run directory is a folder that transformers loads. Remove "
               "it."},
      {.programs = "OpenRLHF",
       .name = "normalize_reward",
       .told = "there is no reward model. Remove it; algo.advantage says what advantages are "
               "divided by."},
      {.programs = "OpenRLHF", .name = "vllm", .told = kEngine},
      {.programs = "OpenRLHF", .name = "ds", .told = kGpus},
      {.programs = "OpenRLHF",
       .name = "ref",
       .told = "the reference runs in the trainer, with its settings. Remove it."},
      {.programs = "OpenRLHF", .name = "actor.num_nodes", .told = kGpus},
      {.programs = "OpenRLHF", .name = "actor.num_gpus_per_node", .told = kGpus},
      {.programs = "OpenRLHF",
       .name = "actor.gradient_checkpointing_enable",
       .told = "train.microbatch_tokens bounds the memory of activations. Remove it."},
      {.programs = "OpenRLHF", .name = "train.colocate_all", .told = kGpus},
      {.programs = "OpenRLHF", .name = "data.apply_chat_template", .told = kTemplate},
      {.programs = "OpenRLHF", .name = "logger", .told = kLogs},
      {.programs = "OpenRLHF", .name = "critic_pretrain", .told = kCritic},
      {.programs = "OpenRLHF", .name = "critic_learning_rate", .told = kCritic},
      {.programs = "OpenRLHF", .name = "actor_num_gpus_per_node", .told = kGpus},
      {.programs = "OpenRLHF", .name = "actor_num_nodes", .told = kGpus},
      {.programs = "OpenRLHF", .name = "vllm_num_engines", .told = kGpus},
      {.programs = "OpenRLHF", .name = "colocate_all_models", .told = kGpus},
      {.programs = "OpenRLHF", .name = "zero_stage", .told = kGpus},
      {.programs = "OpenRLHF",
       .name = "packing_samples",
       .told = "sequences are always packed. Remove it."},
      {.programs = "OpenRLHF", .name = "apply_chat_template", .told = kTemplate},
      {.programs = "OpenRLHF", .name = "use_wandb", .told = kLogs},
      {.programs = "OpenRLHF", .name = "use_tensorboard", .told = kLogs},
      {.programs = "OpenRLHF",
       .name = "load_checkpoint",
       .told = "'tailrace launch --run-dir DIR' continues a run. Remove it."},
  };
}

}  // namespace tailrace
