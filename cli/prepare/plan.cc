#include "cli/prepare/plan.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <limits>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "cli/config/counted.h"
#include "cli/config/listen.h"
#include "cli/config/mistakes.h"
#include "cli/config/named_file.h"
#include "cli/config/pools.h"
#include "cli/inputs/length.h"
#include "cli/prepare/worker_configs.h"
#include "core/base/error.h"
#include "core/base/machine.h"
#include "core/generate.h"
#include "core/model/adapter_files.h"
#include "core/model/compute.h"
#include "core/model/packed_weights.h"
#include "core/model/parameters.h"
#include "core/model/reward_head.h"
#include "core/text/tokenizer.h"
#include "core/weights/manifest.h"
#include "core/wire/frame.h"
#include "sandbox/registry.h"
#include "trainer/sft.h"
#include "trainer/worker/step_traces.h"

namespace tailrace {
namespace {

constexpr int64_t kShownParts = 4;  // of the memory, in a message
constexpr int64_t kMib = 1 << 20;
// Measured with small models, and a little beyond: code, threads, messages, logs.
constexpr int64_t kProcessBytes = 32 * kMib, kRewardBytes = 8 * kMib;
constexpr int64_t kBytesPerSample = 4096;  // of the scheduler's state, journal and index of bodies
// A tokenizer.json of this many bytes becomes about so many times as many in memory.
constexpr int64_t kTokenizerFactor = 10;

// Each has a state in the scheduler, and a step is journaled as a whole.
constexpr int64_t kMaxSamples = 10'000'000;

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Sizes are bounded one by one; products of many of them may still not fit.
int64_t add_product(int64_t sum, int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product) || __builtin_add_overflow(sum, product, &sum))
    return std::numeric_limits<int64_t>::max();
  return sum;
}

}  // namespace

// In the first steps a critic may learn alone.
int64_t policy_updates(const RunOptions& o, const Plan& plan) {
  const int64_t alone = needs_critic(o.algo.advantage) ? o.critic.warmup_steps : 0;
  return std::max<int64_t>(0, plan.steps - alone) * plan.updates_per_step;
}

namespace {

// Samples at once: those of the step that is trained, those ahead of it, and the surplus.
int64_t samples_in_flight(const ResolvedRun& run) {
  int64_t groups = 0;
  // Each dataset rounds by itself, as the credit of the scheduler does (law 3.1).
  for (const RunDataset& dataset : run.datasets)
    groups += run.mode.groups_to_launch(dataset.prompts + run.mode.ahead.of(dataset.prompts));
  return add_product(0, groups, run.mode.members_to_launch(run.options.step.group_size));
}

// Bytes of the kept sets of `episodes` at their longest, each id in `copies` places.
int64_t kept_sets_bytes(const RunOptions& o, const ModelConfig& config, int64_t episodes,
                        int64_t copies) {
  const int64_t ids = std::min(o.rollout.sampling.top_k, config.num_ids());
  const int64_t tokens = add_product(0, episodes, o.rollout.max_sampled_tokens());
  return add_product(0, tokens, ids * int64_t{sizeof(TokenId)} * copies);
}

// The likeliest token of V has a probability of 1 / V at least, and is then kept alone. (What does
// not need V is refused with the config.)
void refuse_one_choice(const SamplingParams& sampling, int64_t vocab_size) {
  if (sampling.top_p * static_cast<double>(vocab_size) > 1) return;
  throw UserError::at(
      "rollout.sampling.top_p",
      "is {}, and the likeliest of {} tokens always has as much: every draw is that "
      "token, so that the members of a group are all the same and teach nothing. "
      "Try 0.95, or 1 (off).",
      sampling.top_p, vocab_size);
}

void plan_kept_sets(const RunOptions& o, const ModelConfig& config, Plan& plan) {
  if (!truncates(o.rollout.sampling.params(), config.num_ids())) return;
  if (o.algo.sampling_mask == SamplingMask::kNone) {
    plan.warnings.push_back(fmt::format(
        "rollout.sampling cuts the distribution that is trained: a mismatch (rollout/cut_mass). "
        "{}.{}",
        o.algo.correction.kind == CorrectionKind::kNone
            ? "Nothing corrects it"
            : "algo.correction weighs tokens by the share that was kept",
        o.run.colocate ? "" : " algo.sampling_mask=keep removes it"));
    return;
  }
  // The trainer has the bytes, what they say, the batch made of it, and its micro-batch; a worker
  // has an episode and its bytes.
  plan.trainer.push_back({"kept sets of a step, at most (algo.sampling_mask)",
                          kept_sets_bytes(o, config, plan.samples_per_step, 4), /*certain=*/false});
  const int64_t running = std::min(o.rollout.engine.max_sequences, plan.samples_in_flight);
  plan.rollout_worker.push_back({"kept sets, at most (algo.sampling_mask)",
                                 kept_sets_bytes(o, config, running, 2),
                                 /*certain=*/false});
}

// Eight bytes of each likeliest token, and four of the sampled one.
void plan_teacher(const RunOptions& o, const ModelConfig& config, int64_t episodes, Plan& plan) {
  const DistillOptions& distill = o.algo.distill;
  if (!distill.has_teacher()) return;
  const int64_t top =
      needs_support(distill.kind) ? std::min(distill.top_k, config.num_ids()) : int64_t{0};
  const int64_t each = 8 * top + 4;
  constexpr std::string_view kName = "scores of a teacher, at most (algo.distill)";
  // The body and what it says, the batch, and the pass made of it; a worker has them in the episode
  // and in its message.
  plan.trainer.push_back({std::string(kName), add_product(0, plan.max_tokens_per_step, each * 4),
                          /*certain=*/false});
  plan.rollout_worker.push_back(
      {std::string(kName), add_product(0, episodes * o.rollout.engine.max_context_tokens, each * 2),
       /*certain=*/false});
}

// Two bytes a choice in bodies, and four in the batch.
void plan_choices(const RunOptions& o, const ModelConfig& config, int64_t episodes, Plan& plan) {
  if (o.algo.router_replay == RouterReplay::kOff) return;
  const int64_t choices = config.expert_shape().per_token();
  const int64_t context = o.rollout.engine.max_context_tokens;
  constexpr std::string_view kName = "experts of each token, at most (algo.router_replay)";
  // The body and what it says, the batch made of it, and the micro-batch; a worker has them in the
  // engine, in the episode and in its message.
  plan.trainer.push_back({std::string(kName),
                          add_product(0, plan.max_tokens_per_step, choices * 12),
                          /*certain=*/false});
  plan.rollout_worker.push_back(
      {std::string(kName), add_product(0, episodes * context, choices * 6), /*certain=*/false});
}

// A reward model in a reward worker: packed, with the float32 weights while it is loaded, and the
// keys and values of a text.
int64_t reward_model_bytes(const RunOptions& o, const ModelConfig& policy) {
  const ModelConfig config =
      o.reward.stage.empty()
          ? read_named("reward.model", [&] { return read_reward_config(o.reward.model); })
          : reward_model_config(policy);
  const int64_t tokens = o.reward.model_tokens > 0 ? o.reward.model_tokens : config.max_positions;
  return PackedWeights::bytes(config, Dtype::kF32, Device{}) +
         Parameters::bytes(ParameterLayout(config)) +
         tokens * 2 * config.num_layers * config.kv_size() * int64_t{sizeof(float)};
}

// 0 where the vocabulary comes from the environments: a few words.
int64_t tokenizer_file_bytes(const RunOptions& o) {
  if (o.model.creates()) return 0;
  std::error_code error;
  const auto bytes =
      std::filesystem::file_size(std::filesystem::path(o.model.path) / "tokenizer.json", error);
  return error ? 0 : static_cast<int64_t>(bytes);
}

// Updates of a training whose epochs have so many.
int64_t updates_of(const RowOptions& rows, int64_t per_epoch) {
  int64_t all = 0;
  if (__builtin_mul_overflow(rows.epochs, per_epoch, &all)) all = INT64_MAX;
  return rows.updates > 0 ? std::min(all, rows.updates) : all;
}

// Rows are shuffled before they are cut into updates: another order may give one more or less.
std::vector<StagePlan> plan_stages(const ResolvedRun& run, const ModelConfig& config) {
  const RunOptions& o = run.options;
  std::vector<StagePlan> plans;
  // Reading them also finds a broken row before the run begins.
  const SupervisedReader reader(o, config);
  Mistakes mistakes;
  for (const RunStage& stage : run.stages) {
    StagePlan& plan = plans.emplace_back(StagePlan{.item = stage.item});
    if (const auto* sft = std::get_if<SftOptions>(&stage.work))
      plan.demonstrations = sft->demonstrations;
    if (!stage.trains_policy()) reward_model_config(config);  // for what it refuses
    const auto read = [&](bool held_out) {
      return read_stage_file(stage, held_out, reader.reading(), o.train.microbatch_tokens);
    };
    if (!stage.rows().data.empty()) mistakes.look([&] { plan.files.data = read(false); });
    if (!stage.rows().eval_data.empty()) mistakes.look([&] { plan.files.eval_data = read(true); });
    plan.updates = updates_of(stage.rows(), plan.files.data.batches);
  }
  mistakes.tell();
  return plans;
}

// A rate that rises for longer than the run lasts never reaches its peak.
void warn_of_rates(const ResolvedRun& run, Plan& plan) {
  const RunOptions& o = run.options;
  auto warm_up = [&](std::string_view section, const OptimOptions& optim, int64_t updates) {
    if (updates > 0 && optim.warmup_updates > updates)
      plan.warnings.push_back(
          fmt::format("{}.warmup_updates is {}, but there are {}: the rate never reaches {}.lr",
                      section, optim.warmup_updates, counted(updates, "update"), section));
  };
  warm_up("optim", o.optim, policy_updates(o, plan));
  for (size_t i = 0; i < plan.stages.size(); ++i)
    warm_up(run.stages[i].key("optim"), run.stages[i].rows().optim, plan.stages[i].updates);
  constexpr double kLeastFreshLr = 1e-5;
  if (o.model.creates() && o.optim.lr < kLeastFreshLr)
    plan.warnings.push_back(
        fmt::format("optim.lr is {}, a rate for pretrained weights; a small policy from random "
                    "weights hardly moves with it. Try optim.lr=1e-3",
                    o.optim.lr));
}

void warn_of_adapter_rate(const ResolvedRun& run, Plan& plan) {
  const RunOptions& o = run.options;
  constexpr double kLeastAdapterLr = 5e-6;
  if (o.lora.trains() && !run.supervised_only && o.optim.lr < kLeastAdapterLr)
    plan.warnings.push_back(
        fmt::format("optim.lr is {}, a rate for all weights; an adapter wants about ten times as "
                    "much. Try optim.lr=1e-5",
                    o.optim.lr));
}

// The base is what the policy was before its warm-up.
void warn_of_adapter_reference(const ResolvedRun& run, Plan& plan) {
  const RunOptions& o = run.options;
  if (o.lora.trains() && !run.stages.empty() && o.algo.kl.needs_reference() &&
      !run.supervised_only && o.algo.kl.reference == KlReference::kBase)
    plan.warnings.push_back(
        "algo.kl.reference is base, so algo.kl holds the policy also against what the warm-up has "
        "taught. Try algo.kl.reference=start");
}

void warn_of_choice_bias(const RunOptions& o, Plan& plan) {
  if (o.train.balance_bias_rate == 0) return;
  plan.warnings.push_back(
      "train.balance_bias_rate makes biases of the choice of experts, which checkpoints carry and "
      "transformers leaves out: there the model chooses other experts. train.balance_coef balances "
      "without them");
}

// Whole groups and members: a small step may have nothing of a fraction.
void warn_of_idle_ratios(const ResolvedRun& run, Plan& plan) {
  const RunOptions& o = run.options;
  const scheduler::Mode& mode = run.mode;
  const auto warn = [&](std::string_view key, double value, const std::string& of) {
    plan.warnings.push_back(
        fmt::format("scheduler.{} = {} does nothing: of {} it is not one more", key, value, of));
  };
  const int64_t members = o.step.group_size;
  const scheduler::ModeOptions& given = o.scheduler.mode;
  const bool are_several = run.datasets.size() > 1;
  for (const RunDataset& dataset : run.datasets) {
    const int64_t prompts = dataset.prompts;
    if (prompts == 0 && o.eval.prompts == 0 && are_several)
      plan.warnings.push_back(
          fmt::format("{} takes no part: its ratio is 0, and eval.prompts is 0", dataset.name));
    if (prompts == 0) continue;
    const std::string of =
        counted(prompts, "prompt") + (are_several ? fmt::format(" of {}", dataset.name) : "");
    if (given.ahead > 0 && mode.ahead.of(prompts) == 0) warn("ahead", given.ahead, of);
    if (mode.launches_surplus() && mode.groups_to_launch(prompts) == prompts)
      warn("launch_prompts_ratio", given.launch_prompts, of);
  }
  if (given.launch_members > 1 && mode.members_to_launch(members) == members)
    warn("launch_members_ratio", given.launch_members, counted(members, "sample"));
}

// Each process says what it takes; what comes on top is not known so well.
void plan_memory(const PlacedRun& placed, Plan& plan) {
  const ResolvedRun& run = placed.run;
  const ModelConfig& config = placed.model;
  const RunOptions& o = run.options;
  const auto estimate = [](std::vector<MemoryItem>& items, std::string name, int64_t bytes) {
    items.push_back({std::move(name), bytes, /*certain=*/false});
  };
  plan.trainers = o.train.ranks;
  PlacedMemory of_trainer = trainer_memory(trainer_config(placed, {.most_steps = plan.steps}));
  plan.trainer = std::move(of_trainer.host);
  plan.rollout_workers = run.rollout_workers;
  // The largest worker here counts, or elsewhere where none is here.
  const PoolSection pool = std::ranges::max(
      run.launched_pools.empty() ? run.pools : run.launched_pools, {}, &PoolSection::max_sequences);
  plan.devices = plan_devices(placed);
  plan.devices.trainer_memory = std::move(of_trainer.device);
  if (!run.supervised_only) {
    // Those of other machines are planned on the CPU: what is there is not known.
    PlacedRun sampling = placed;
    sampling.rollout.device = plan.devices.rollout;
    PlacedMemory memory = rollout_memory(rollout_config(sampling, pool, {}));
    plan.rollout_worker = std::move(memory.host);
    plan.devices.rollout_worker = std::move(memory.device);
  }
  if (o.run.colocate && plan.devices.trainer.kind == DeviceKind::kCpu)
    plan.in_turn = share_turns(plan.trainer, plan.rollout_worker);
  else if (o.run.colocate)
    plan.devices.in_turn = share_turns(plan.devices.trainer_memory, plan.devices.rollout_worker);
  plan_kept_sets(o, config, plan);
  const int64_t traces =
      o.train.trace_steps > 0
          ? std::min(kMaxTraceBytes, add_product(0, plan.max_tokens_per_step, kTraceBytesPerToken))
          : 0;
  if (!run.supervised_only)
    estimate(plan.trainer, "tokens of a step at their longest, about",
             add_product(traces, plan.max_tokens_per_step, kStepBytesPerToken));
  // One stage after the other; of a pair the prompt is there twice.
  int64_t rows = 0;
  for (const StagePlan& stage : plan.stages)
    rows = std::max(rows, (stage.files.data.tokens + stage.files.eval_data.tokens) *
                              (stage.files.data.pass_tokens > 0 ? 2 : 1));
  if (rows > 0) estimate(plan.trainer, "rows of a stage", rows * kSftBytesPerToken);
  estimate(plan.trainer, "the process itself, about", kProcessBytes);
  if (config.lora && !run.supervised_only) {
    const ParameterLayout base(config);
    const auto& largest = std::ranges::max(base.entries(), {}, &ParameterInfo::size);
    estimate(plan.rollout_worker, "largest tensor of the base, while it is read",
             largest.size * int64_t{sizeof(float)});
  }
  const int64_t episodes = std::min(pool.max_sequences, plan.samples_in_flight);
  plan_choices(o, config, episodes, plan);
  plan_teacher(o, config, episodes, plan);
  if (!run.supervised_only) {
    estimate(plan.rollout_worker, "tokens of its episodes at their longest, about",
             add_product(0, episodes * o.rollout.engine.max_context_tokens, kEpisodeBytesPerToken));
    estimate(plan.rollout_worker, "tokenizer and the process itself, about",
             kProcessBytes + kTokenizerFactor * tokenizer_file_bytes(o));
  }
  // It writes a few samples as text.
  estimate(plan.others, "scheduler, about",
           add_product(kProcessBytes + kTokenizerFactor * tokenizer_file_bytes(o),
                       plan.samples_in_flight, kBytesPerSample));
  if (o.reward.workers > 0 && !run.supervised_only)
    estimate(plan.others, fmt::format("{}, about", counted(o.reward.workers, "reward worker")),
             o.reward.workers * kRewardBytes);
  if (o.reward.has_model() && !run.supervised_only)
    estimate(plan.others, "their reward models, about",
             o.reward.workers * reward_model_bytes(o, config));
  // It has read the tokenizer, to check the prompts.
  estimate(plan.others, "launch itself, about",
           kProcessBytes + kTokenizerFactor * tokenizer_file_bytes(o));
}

}  // namespace

int64_t Plan::total_bytes() const {
  const int64_t once =
      add_product(tailrace::total_bytes(others), tailrace::total_bytes(in_turn), 1);
  return add_product(add_product(once, tailrace::total_bytes(trainer), trainers),
                     tailrace::total_bytes(rollout_worker), rollout_workers);
}

int64_t Plan::certain_bytes() const {
  const int64_t once =
      add_product(tailrace::certain_bytes(others), tailrace::certain_bytes(in_turn), 1);
  return add_product(add_product(once, tailrace::certain_bytes(trainer), trainers),
                     tailrace::certain_bytes(rollout_worker), rollout_workers);
}

Plan make_plan(const PlacedRun& placed, int64_t available_bytes) {
  const ResolvedRun& run = placed.run;
  const ModelConfig& config = placed.model;
  const RunOptions& o = run.options;
  refuse_one_choice(o.rollout.sampling.params(), config.num_ids());
  validate(config, "model config");
  Plan plan;
  if (!run.supervised_only) plan.samples_per_step = o.step.prompts_per_step * o.step.group_size;
  plan.samples_in_flight = samples_in_flight(run);
  // The largest minibatch counts: groups stay whole.
  plan.samples_per_minibatch =
      ceil_divide(o.step.prompts_per_step, o.train.minibatches_per_step) * o.step.group_size;
  plan.updates_per_step = o.train.minibatches_per_step * o.train.ppo_epochs;
  plan.steps = most_steps(run);
  plan.max_tokens_per_step = plan.samples_per_step * o.rollout.engine.max_context_tokens;
  const ParameterLayout layout(config);
  plan.parameters = layout.num_parameters();
  plan.active_parameters = layout.num_active_parameters();
  const ParameterLayout trained = ParameterLayout::trained(config);
  plan.trained_parameters = trained.num_parameters();
  plan.version_bytes = published_bytes(trained, placed.compute.weights);
  plan.stages = plan_stages(run, config);

  plan_memory(placed, plan);

  // 0: the system does not say.
  if (available_bytes > 0 && plan.total_bytes() > available_bytes)
    plan.warnings.push_back(
        fmt::format("the run may need {} but {} are free, and a launch here wants --force. Try a "
                    "smaller rollout.kv_cache_mb, train.microbatch_tokens or rollout.workers.",
                    format_bytes(plan.total_bytes()), format_bytes(available_bytes)));
  if (std::string shortage = device_shortage(plan.devices, plan.trainers, plan.rollout_workers);
      !shortage.empty())
    plan.warnings.push_back(std::move(shortage));
  if (!plan.devices.why_trainer_cpu.empty() && !run.supervised_only)
    plan.warnings.push_back(
        "the trainer computes on the CPU, and scores again what a GPU has sampled: that is slow, "
        "and "
        "the numbers differ a little (mismatch/...)");
  warn_of_rates(run, plan);
  warn_of_choice_bias(o, plan);
  warn_of_adapter_rate(run, plan);
  warn_of_adapter_reference(run, plan);
  warn_of_idle_ratios(run, plan);
  if (run.mode.off_policy() && o.algo.correction.kind == CorrectionKind::kNone &&
      !weighs_behaviour(o.algo.surrogate.kind))
    plan.warnings.push_back(
        "algo.correction.kind is none: tokens of older weights are trained on as if they were of "
        "the newest. Try tis");
  if (o.step.prompts_per_step % o.train.minibatches_per_step != 0)
    plan.warnings.push_back(
        fmt::format("{} groups do not divide into {} minibatches evenly; the last ones are smaller",
                    o.step.prompts_per_step, o.train.minibatches_per_step));
  const bool lags = !o.run.colocate &&
                    !evaluates_in_turn(run.threads, plan.devices.trainer, plan.devices.rollout);
  plan.disk = plan_disk(placed, plan.steps, plan.max_tokens_per_step, lags);
  plan.threads = run.threads;
  if (std::string shortage = thread_shortage(plan.threads, o); !shortage.empty())
    plan.warnings.push_back(std::move(shortage));
  for (const PoolSection& pool : o.rollout_processes.pools) {
    if (datasets_in(run.datasets, pool.name).empty() && !evaluates_all(o, pool.name))
      plan.warnings.push_back(
          fmt::format("pool {} has nothing to do: each dataset names another one", pool.name));
  }
  return plan;
}

namespace {

// "1.2 GiB of moments (trainer), ...": the parts that take most, with all processes of their kind.
std::string largest_parts(const Plan& plan, bool certain_only) {
  struct Part {
    double bytes;  // a product of numbers that are bounded one by one
    std::string name;
  };
  std::vector<Part> parts;
  const auto add = [&](const std::vector<MemoryItem>& items, int64_t count, const char* process) {
    for (const MemoryItem& item : items)
      if (item.certain || !certain_only)
        parts.push_back(
            {static_cast<double>(item.bytes) * static_cast<double>(count),
             fmt::format("{} ({})", item.name, count == 1 ? process : counted(count, process))});
  };
  add(plan.trainer, plan.trainers, "trainer");
  add(plan.rollout_worker, plan.rollout_workers, "rollout worker");
  add(plan.in_turn, 1, "trainer and rollout worker");
  add(plan.others, 1, "others");
  std::ranges::stable_sort(parts, std::greater(), &Part::bytes);
  if (std::ssize(parts) > kShownParts) parts.resize(kShownParts);
  std::string text;
  for (const Part& part : parts) {
    const double most = static_cast<double>(std::numeric_limits<int64_t>::max() / 2);
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ",
                        format_bytes(static_cast<int64_t>(std::min(part.bytes, most))), part.name);
  }
  return text;
}

void refuse_memory(const Plan& plan, bool certain, const std::string& has, bool may_force) {
  const int64_t need = certain ? plan.certain_bytes() : plan.total_bytes();
  throw UserError(
      "the run {} {} of memory and {}. The largest parts: {}.\n       Make rollout.workers, "
      "rollout.kv_cache_mb, rollout.max_batch_tokens, train.microbatch_tokens, "
      "rollout.prompts_per_step or the model smaller "
      "('--dry-run' shows what each takes){}.",
      certain ? "needs" : "may need", format_bytes(need), has, largest_parts(plan, certain),
      may_force ? ", or begin all the same with --force" : "");
}

}  // namespace

void check_size(const Plan& plan, const MemoryFacts& machine, MemoryBound bound) {
  if (plan.samples_per_step > kMaxSamples)
    throw UserError::at("rollout.prompts_per_step",
                        "x rollout.group_size are {} samples a step; at most {} can be kept. Make "
                        "one of them smaller.",
                        plan.samples_per_step, kMaxSamples);
  if (plan.samples_in_flight > kMaxSamples)
    throw UserError::at("scheduler.ahead",
                        "and the ratios of what is launched give {} samples at once; at most {} "
                        "can be kept. Make one of them smaller.",
                        plan.samples_in_flight, kMaxSamples);
  if (bound == MemoryBound::kNone) return;
  const bool may_force = bound == MemoryBound::kMost;  // the bound of who takes --force
  int64_t memory = machine.total_bytes;
  if (machine.cgroup_limit_bytes > 0) memory = std::min(memory, machine.cgroup_limit_bytes);
  // 0: the system does not say.
  if (memory > 0 && plan.certain_bytes() > memory)
    refuse_memory(plan, /*certain=*/true, "this machine has " + format_bytes(memory), may_force);
  // Linux would promise it all the same, and kill who touches it.
  const int64_t free = machine.available_bytes;
  const std::string has = format_bytes(free) + " are free now";
  if (free > 0 && plan.certain_bytes() > free)
    refuse_memory(plan, /*certain=*/true, has, may_force);
  check_device_size(plan.devices, plan.trainers, plan.rollout_workers);
  if (bound == MemoryBound::kMost && free > 0 && plan.total_bytes() > free)
    refuse_memory(plan, /*certain=*/false, has, may_force);
}

}  // namespace tailrace
