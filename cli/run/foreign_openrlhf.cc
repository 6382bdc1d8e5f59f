// The flags of OpenRLHF's train_ppo_ray, as they are with dots and as they were before.
#include "cli/run/foreign_names.h"

namespace tailrace {

std::vector<ForeignName> openrlhf_names() {
  constexpr std::string_view kUpdate =
      "it counts samples of an update. Write train.minibatches_per_step = rollout batch size x "
      "n_samples_per_prompt / train batch size.";
  constexpr std::string_view kMicro = "passes are packed by tokens. Write train.microbatch_tokens.";
  constexpr std::string_view kClip = "write both bounds: algo.clip_low and algo.clip_high.";
  constexpr std::string_view kWarmup = "write optim.warmup_updates, a number of updates.";
  constexpr std::string_view kReward =
      "write reward.command: [python3, FILE] (docs/rewards.md), or env.settings.verifier, which "
      "names a built-in one.";
  constexpr std::string_view kGpus =
      "the first GPU of a machine computes, or its CPU (model.device); train.ranks and "
      "rollout.workers say how many share it. Remove it.";
  // Groups are no baseline of these: one without a signal among its members teaches too.
  constexpr std::string_view kOfAll = "algo.whiten_advantages=true algo.filter_zero_signal=none";
  constexpr std::string_view kWhitened = "algo.whiten_advantages=true";
  constexpr std::string_view kInReward = "algo.kl.placement=reward algo.kl.estimator=k1";
  constexpr std::string_view kCriticRate =
      "it is the rate of a whole model there, and of a linear head that begins at 0 here. Write "
      "critic.lr, about a hundred times as much, or remove it.";
  constexpr std::string_view kCriticModel =
      "the critic is a head on the policy's hidden states, and no model of its own. Remove it.";
  constexpr std::string_view kConstantRate =
      "the rate of the critic is constant (critic.lr). Remove it.";
  constexpr std::string_view kNoStd =
      "whitening always divides by the deviation. Write algo.whiten_advantages: false, or remove "
      "it.";
  constexpr std::string_view kFixedKl =
      "the coefficient of the penalty is constant (algo.kl.coef). Remove it.";
  constexpr std::string_view kTwoSided =
      "OpenRLHF raises small weights besides, and here they are cut from above alone. Write "
      "algo.correction.kind: tis, and algo.correction.cap.";
  constexpr std::string_view kSequenceMask =
      "there are no weights of tokens beside a test of the sequence. Write algo.correction.kind: "
      "mask with algo.correction.level: sequence_mean, or kind: tis.";
  constexpr std::string_view kBounds =
      "it is two numbers. Write algo.correction.low (of icepop, mis and mask) and "
      "algo.correction.cap.";
  constexpr std::string_view kEnable =
      "write algo.correction.kind: tis, icepop, mis or mask; none switches it off.";
  constexpr std::string_view kGspo =
      "write algo.name: gspo, the preset with its ratio, clip range and aggregation.";
  constexpr std::string_view kNoLimits =
      "rewards are as the verifier or the environment gives them. Remove it.";
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
      {.theirs = "gae", .ours = "gae", .also = kOfAll},
      {.theirs = "reinforce", .ours = "reward", .also = kOfAll},
      {.theirs = "reinforce_baseline", .ours = "group_mean", .also = kWhitened}};
  // slime calls its own so too.
  std::vector<ForeignValue> bare_advantages = advantages;
  bare_advantages.insert(
      bare_advantages.end(),
      {{.theirs = "grpo", .ours = "group_mean_std"},
       {.theirs = "gspo", .told = kGspo},
       {.theirs = "ppo", .told = "write algo.name: ppo, the preset with whitened advantages."},
       {.theirs = "reinforce_plus_plus",
        .told = "write algo.name: reinforce_pp, the preset with whitened advantages."},
       {.theirs = "reinforce_plus_plus_baseline",
        .told = "write algo.name: reinforce_pp_baseline, the preset with whitened advantages."}});
  const std::vector<ForeignValue> in_reward = {{.theirs = "*", .also = kInReward}};
  const std::vector<ForeignValue> in_loss = {{.theirs = "true", .ours = "loss"},
                                             {.theirs = "false", .ours = ""}};
  const std::vector<ForeignValue> frozen = {{.theirs = "-1", .ours = ""}, {.theirs = "*"}};
  const std::vector<ForeignValue> overlong = {
      {.theirs = "*", .also = "algo.length.penalty=soft_overlong"}};
  const std::vector<ForeignValue> corrections = {{.theirs = "icepop", .ours = "icepop"},
                                                 {.theirs = "tis", .told = kTwoSided},
                                                 {.theirs = "seq-mask-tis", .told = kSequenceMask}};
  const std::vector<ForeignValue> losses = {{.theirs = "ppo", .ours = "ppo_clip"},
                                            {.theirs = "gspo", .told = kGspo}};
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
      {.programs = "OpenRLHF, ROLL", .name = "entropy_loss_coef", .key = "algo.entropy_coef"},
      {.programs = "OpenRLHF", .name = "actor.entropy_coef", .key = "algo.entropy_coef"},
      {.programs = "OpenRLHF", .name = "kl_estimator", .key = "algo.kl.estimator"},
      {.programs = "OpenRLHF", .name = "aux_loss_coef", .key = "train.balance_coef"},
      {.programs = "OpenRLHF, ROLL",
       .name = "init_kl_coef",
       .key = "algo.kl.coef",
       .values = in_reward},
      {.programs = "OpenRLHF",
       .name = "algo.kl.init_coef",
       .key = "algo.kl.coef",
       .values = in_reward},
      {.programs = "OpenRLHF",
       .name = "algo.kl.use_loss",
       .key = "algo.kl.placement",
       .values = in_loss},
      {.programs = "OpenRLHF, ROLL, slime", .name = "lambd", .key = "algo.lambda"},
      {.programs = "OpenRLHF", .name = "algo.advantage.lambd", .key = "algo.lambda"},
      {.programs = "OpenRLHF", .name = "algo.advantage.gamma", .key = "algo.gamma"},
      {.programs = "OpenRLHF, ROLL, slime", .name = "value_clip", .key = "critic.value_clip"},
      {.programs = "OpenRLHF", .name = "critic.max_norm", .key = "critic.max_grad_norm"},
      {.programs = "OpenRLHF",
       .name = "freezing_actor_steps",
       .key = "critic.warmup_steps",
       .values = frozen},
      {.programs = "OpenRLHF",
       .name = "overlong_buffer_len",
       .key = "algo.length.buffer",
       .values = overlong},
      {.programs = "OpenRLHF",
       .name = "reward.overlong_buffer_len",
       .key = "algo.length.buffer",
       .values = overlong},
      {.programs = "OpenRLHF", .name = "overlong_penalty_factor", .key = "algo.length.factor"},
      {.programs = "OpenRLHF",
       .name = "reward.overlong_penalty_factor",
       .key = "algo.length.factor"},
      {.programs = "OpenRLHF",
       .name = "vllm_is_correction_type",
       .key = "algo.correction.kind",
       .values = corrections},
      {.programs = "OpenRLHF",
       .name = "algo.advantage.is_correction_type",
       .key = "algo.correction.kind",
       .values = corrections},
      {.programs = "OpenRLHF",
       .name = "policy_loss_type",
       .key = "algo.surrogate",
       .values = losses},
      {.programs = "OpenRLHF",
       .name = "actor.policy_loss_type",
       .key = "algo.surrogate",
       .values = losses},
      {.programs = "OpenRLHF, slime",
       .name = "advantage_estimator",
       .key = "algo.advantage",
       .values = bare_advantages},
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
      {.programs = "OpenRLHF", .name = "vllm_is_truncated_threshold", .told = kBounds},
      {.programs = "OpenRLHF", .name = "algo.advantage.is_correction_threshold", .told = kBounds},
      {.programs = "OpenRLHF", .name = "enable_vllm_is_correction", .told = kEnable},
      {.programs = "OpenRLHF", .name = "algo.advantage.is_correction_enable", .told = kEnable},
      {.programs = "OpenRLHF", .name = "no_advantage_std_norm", .told = kNoStd},
      {.programs = "OpenRLHF", .name = "algo.advantage.no_std_norm", .told = kNoStd},
      {.programs = "OpenRLHF, ROLL", .name = "kl_target", .told = kFixedKl},
      {.programs = "OpenRLHF, ROLL", .name = "kl_horizon", .told = kFixedKl},
      {.programs = "OpenRLHF", .name = "reward_clip_range", .told = kNoLimits},
      {.programs = "OpenRLHF", .name = "reward.clip_range", .told = kNoLimits},
      {.programs = "OpenRLHF", .name = "critic_learning_rate", .told = kCriticRate},
      {.programs = "OpenRLHF", .name = "critic.adam", .told = kCriticRate},
      {.programs = "OpenRLHF", .name = "critic.lr_warmup_ratio", .told = kConstantRate},
      {.programs = "OpenRLHF", .name = "critic.lr_scheduler", .told = kConstantRate},
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
       .key = "train.recompute"},
      {.programs = "OpenRLHF", .name = "train.colocate_all", .key = "run.colocate"},
      {.programs = "OpenRLHF", .name = "data.apply_chat_template", .told = kTemplate},
      {.programs = "OpenRLHF", .name = "logger", .told = kLogs},
      {.programs = "OpenRLHF", .name = "critic_pretrain", .told = kCriticModel},
      {.programs = "OpenRLHF", .name = "critic.model_name_or_path", .told = kCriticModel},
      {.programs = "OpenRLHF", .name = "critic.num_nodes", .told = kGpus},
      {.programs = "OpenRLHF", .name = "critic.num_gpus_per_node", .told = kGpus},
      {.programs = "OpenRLHF", .name = "actor_num_gpus_per_node", .told = kGpus},
      {.programs = "OpenRLHF", .name = "actor_num_nodes", .told = kGpus},
      {.programs = "OpenRLHF", .name = "vllm_num_engines", .told = kGpus},
      {.programs = "OpenRLHF", .name = "colocate_all_models", .key = "run.colocate"},
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
