#include "cli/inputs/rules.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/config/counted.h"
#include "cli/config/datasets.h"
#include "cli/config/listen.h"
#include "cli/config/mistakes.h"
#include "cli/config/named_file.h"
#include "cli/config/pools.h"
#include "cli/config/stages.h"
#include "cli/inputs/dataset_rules.h"
#include "cli/inputs/planned_model.h"
#include "cli/inputs/policies.h"
#include "cli/inputs/resolved_run.h"
#include "cli/inputs/rewards.h"
#include "core/base/error.h"
#include "core/base/join_texts.h"
#include "core/base/nearest.h"
#include "core/base/time.h"
#include "core/generate.h"
#include "core/model/adapter_files.h"
#include "core/model/compute.h"
#include "core/model/parameters.h"
#include "core/text/dataset.h"
#include "core/weights/manifest.h"
#include "kernels/ops/attention.h"
#include "rollout/episode/episode.h"
#include "trainer/loss/presets.h"

namespace tailrace {
namespace {

// The learning rate of a warm-up from random weights; that of pretrained ones would change nothing.
constexpr double kFreshSftLr = 1e-3;

// Finds keys that were set to something else than their default although nothing reads them. A
// resolved config gives every key, so "given" alone says nothing. A key of a lower layer than what
// took its effect away is no mistake of a person: it goes back to its default.
class EffectChecker {
 public:
  EffectChecker(RunOptions& options, ConfigKeys& keys) : options_(options), keys_(keys) {
    RunOptions defaults;
    // Below `algo.` a default is what the named algorithm gives.
    defaults.algo = AlgoOptions::preset(options.algo.name);
    defaults.scheduler.mode = scheduler::ModeOptions::preset(options.scheduler.mode.name);
    // Items are found by their names: without one of the same name a key of a list would have no
    // default to be compared with.
    for (const DatasetSection& dataset : options.datasets)
      defaults.datasets.push_back({.name = dataset.name});
    for (const StageSection& stage : options.stages)
      defaults.stages.push_back({.name = stage.name});
    values_ = options_by_key(options);
    defaults_ = options_by_key(defaults);
  }

  // `idle` says why nothing reads these, with full keys. `advice`: for one of them, in the place of
  // the one that `idle` has for all.
  using Advice = std::function<std::string(const std::string& key)>;
  void refuse(const std::vector<std::string>& names, const Idle& idle, const Advice& advice = {}) {
    // -1 where a default has decided it, or nothing but the item of a list that the key is in: a
    // key that somebody gave without effect is then always a contradiction.
    int decided = -1;  // the layer that decided it
    for (const std::string& name : idle.deciders)
      if (const ConfigPlace* place = keys_.place(name)) decided = std::max(decided, place->layer);
    std::vector<std::string> reset;
    for (const std::string& name : names) {
      const ConfigPlace* place = keys_.place(name);
      const auto standard = defaults_.find(name);  // none: of an item of a list
      const bool has_default = standard != defaults_.end();
      if (!place || (has_default && values_.at(name).value == standard->second.value)) continue;
      // Written in the same file as what switches it off, or above it: a contradiction of one
      // person.
      if ((place->layer >= decided || !has_default) && !keys_.gives_way(name)) {
        mistakes_.add(keys_.placed(UserError::at(name, "has no effect: {}. {}", idle.reason,
                                                 advice ? advice(name) : idle.advice)));
        continue;
      }
      reset.push_back(fmt::format("{}={}", name, standard->second.value));
    }
    if (reset.empty()) return;
    bind_config(parse_config("", "the defaults", reset), options_);
    values_ = options_by_key(options_);
    for (std::string& name : reset) name.resize(name.find('='));
    if (idle.is_told)
      keys_.add_note(
          fmt::format("without effect, as {}: {}", idle.reason, join_texts(reset, ", ")));
  }

  // Throws all that refuse() has found.
  void tell() const { mistakes_.tell(); }

  // Keys that say so themselves (OptionInfo::idle), reason by reason.
  void refuse_idle() {
    std::map<size_t, const OptionDoc*> idle;  // in the order of the option lists
    for (const auto& [name, option] : values_)
      if (option.idle) idle.emplace(option.place, &option);
    std::vector<std::pair<Idle, std::vector<std::string>>> reasons;
    for (const auto& [place, option] : idle) {
      auto reason = std::ranges::find(reasons, option->idle, [](const auto& r) { return r.first; });
      if (reason == reasons.end()) reason = reasons.insert(reason, {option->idle, {}});
      reason->second.push_back(option->key);
    }
    for (const auto& [why, names] : reasons) refuse(names, why);
  }

 private:
  RunOptions& options_;
  ConfigKeys& keys_;
  std::map<std::string, OptionDoc> values_, defaults_;
  Mistakes mistakes_;
};

void validate_model(const RunOptions& o) {
  if (!o.model.path.empty() && o.model.creates())
    throw UserError::at(
        "model.path",
        "and model.create are both given; the policy is loaded or made, not both. Remove one.");
  if (o.model.path.empty() && !o.model.creates())
    throw UserError::at(
        "model.path",
        "is missing; it is the Hugging Face folder to start from (or give model.create.hidden_size "
        "and its neighbours for random weights). Try model.path=DIR.");
  if (!o.model.creates()) return;
  const ModelCreateSection& c = o.model.create;
  auto need = [&](std::string_view key, int64_t value) {
    if (value < 1) throw UserError::at(key, "is missing; a policy from random weights needs it");
  };
  need("model.create.layers", c.layers);
  need("model.create.heads", c.heads);
  // The proposal is the next multiple of 2 * heads, so that the size of a head is even as well.
  if (c.hidden_size % c.heads != 0)
    throw UserError::at("model.create.hidden_size",
                        "is {}; it must be a multiple of model.create.heads = {}. Try {}.",
                        c.hidden_size, c.heads, (c.hidden_size / (2 * c.heads) + 1) * 2 * c.heads);
  const int64_t head_dim = c.hidden_size / c.heads;
  // The proposal is heads of 64, as most models have them.
  if (head_dim % 2 != 0 || head_dim > kMaxHeadDim)
    throw UserError::at(
        "model.create.heads",
        "= {} gives heads of {}; hidden_size / heads must be an even number up to {}. Try "
        "model.create.heads={}.",
        c.heads, head_dim, kMaxHeadDim, std::max<int64_t>(1, c.hidden_size / 64));
  if (c.kv_heads > 0 && c.heads % c.kv_heads != 0)
    throw UserError::at("model.create.kv_heads",
                        "is {}; model.create.heads = {} must be a multiple of it. Try {}.",
                        c.kv_heads, c.heads, c.heads);
  if (c.experts == 0) return;
  if (c.experts_per_token > c.experts)
    throw UserError::at("model.create.experts_per_token",
                        "is {}; there are {} experts (model.create.experts). Try {}.",
                        c.experts_per_token, c.experts, std::max<int64_t>(1, c.experts / 4));
  const int64_t width = c.intermediate_size > 0 ? c.intermediate_size : 3 * c.hidden_size;
  if (width % c.experts_per_token != 0)
    throw UserError::at("model.create.intermediate_size",
                        "is {}, which model.create.experts_per_token = {} experts cannot share "
                        "equally. Try {}.",
                        width, c.experts_per_token,
                        (width / c.experts_per_token + 1) * c.experts_per_token);
}

void validate_adapter(const RunOptions& o) {
  const LoraSection& lora = o.lora;
  const std::vector<std::string> known(kEnumNames<LoraTarget>.begin(),
                                       kEnumNames<LoraTarget>.end());
  const bool all = lora.targets == std::vector<std::string>{"all-linear"};  // as peft says it
  for (const std::string& name : lora.targets) {
    if (!all && std::ranges::find(known, name) == known.end())
      throw UserError::at("lora.targets", "has '{}', which is no linear layer{} Accepted: {}.",
                          name, did_you_mean(name, known), join_texts(known, ", "));
    if (std::ranges::count(lora.targets, name) > 1)
      throw UserError::at("lora.targets", "has {} twice.", name);
  }
  if (lora.trains() && o.model.creates())
    throw UserError::at(lora.rank > 0 ? "lora.rank" : "lora.adapter",
                        "trains an adapter beside frozen weights, and model.create makes random "
                        "ones. Use model.path, or lora.rank=0.");
  std::vector<std::pair<std::string, OptimizerKind>> optimizers = {{"optim.kind", o.optim.kind}};
  for (const RunStage& stage : stages_of(o)) {
    optimizers.emplace_back(stage.key("optim.kind"), stage.rows().optim.kind);
    if (lora.trains() && !stage.trains_policy())
      throw UserError::at(
          stage.key("data"),
          "is of a whole reward model, which begins with the policy's weights, and "
          "the run trains an adapter beside frozen ones. Make it a run of its own.");
  }
  for (const auto& [key, kind] : optimizers) {
    if (lora.trains() && kind == OptimizerKind::kMuon)
      throw UserError::at(key,
                          "is muon, which updates whole weight matrices, and the run trains an "
                          "adapter. Use adamw.");
  }
  if (!lora.trains() && o.algo.kl.needs_reference() && o.algo.kl.reference == KlReference::kBase)
    throw UserError::at("algo.kl.reference",
                        "is base, the model beside which an adapter is trained, and this run "
                        "trains all weights. Use start, or lora.rank.");
  if (!lora.adapter.empty() && !is_adapter(lora.shape_folder()))
    throw UserError::at("lora.adapter", "is {}, which has no {}. It is a folder of peft.",
                        lora.adapter, kAdapterConfigFile);
}

int64_t max_positions(const ModelSection& model) {
  if (model.creates()) return model.create.max_positions;
  return read_named("model.path", [&] { return read_model_config(model.path).max_positions; });
}

// Lengths that a person gave are the cause of a context that the model does not have: another
// context would be refused because of them.
void validate_lengths(const RunOptions& o) {
  const int64_t prompt = o.rollout.max_prompt_tokens, response = o.rollout.max_response_tokens;
  if (prompt == 0 || response == 0) return;
  int64_t most = 0;
  try {
    most = max_positions(o.model);
  } catch (const UserError&) {
    return;  // whoever loads the model says what is wrong with it
  }
  if (prompt + response <= most) return;
  const bool is_answer = response >= prompt;
  const int64_t other = is_answer ? prompt : response;
  const std::string_view key =
      is_answer ? "rollout.max_response_tokens" : "rollout.max_prompt_tokens";
  const std::string advice = other < most
                                 ? fmt::format("Lower both, or try {}={}.", key, most - other)
                                 : fmt::format("Lower both to a sum of {}.", most);
  throw UserError::at(key,
                      "is {}, and with {} = {} an episode needs a context of {} tokens; the model "
                      "knows {} ({}).\n       {}",
                      is_answer ? response : prompt,
                      is_answer ? "rollout.max_prompt_tokens" : "rollout.max_response_tokens",
                      other, prompt + response, most,
                      o.model.creates() ? "model.create.max_positions" : "model.path", advice);
}

// Episodes that nobody limits have the room that the policy has.
void validate_rollout(RunOptions& o) {
  validate_lengths(o);
  int64_t& context = o.rollout.engine.max_context_tokens;
  if (context == 0 && (o.rollout.max_prompt_tokens == 0 || o.rollout.max_response_tokens == 0)) {
    // Not beyond a micro-batch: the trainer never splits a sequence.
    context = std::min(max_positions(o.model), o.train.microbatch_tokens);
  }
  o.rollout.validate();
  // The engine asks the same of a policy that is loaded, in the rollout workers.
  if (o.model.creates() && context > o.model.create.max_positions)
    throw UserError::at("rollout.max_context_tokens",
                        "is {}; the policy has model.create.max_positions = {}. Try "
                        "model.create.max_positions = {}.",
                        context, o.model.create.max_positions, context);
}

void validate_microbatch(const RunOptions& o) {
  const int64_t context = o.rollout.engine.max_context_tokens;
  if (o.train.microbatch_tokens < context)
    throw UserError::at(
        "train.microbatch_tokens",
        "is {}, less than one whole sequence (rollout.max_context_tokens = {}). Try {}.",
        o.train.microbatch_tokens, context, context);
}

void validate_batches(const RunOptions& o) {
  if (o.rollout.sampling.temperature == 0)
    throw UserError::at(
        "rollout.sampling.temperature",
        "is 0; greedy members of a group are all the same and teach nothing. Try 1.0.");
  if (o.train.minibatches_per_step > o.step.prompts_per_step)
    throw UserError::at(
        "train.minibatches_per_step",
        "is {}, more than the {} groups of a step (rollout.prompts_per_step); groups stay whole. "
        "Try {}.",
        o.train.minibatches_per_step, o.step.prompts_per_step, o.step.prompts_per_step);
  validate_microbatch(o);
}

// Ranks own whole slots, and their sums are a level of the slots' tree.
void validate_ranks(const RunOptions& o) {
  const int64_t ranks = o.train.ranks, slots = o.train.gradient_slots;
  if (ranks == 1) return;
  if (!std::has_single_bit(static_cast<uint64_t>(ranks)))
    throw UserError::at("train.ranks", "is {}; it must be a power of two. Try {}.", ranks,
                        std::bit_floor(static_cast<uint64_t>(ranks)));
  if (slots % ranks != 0)
    throw UserError::at("train.ranks",
                        "is {}, but train.gradient_slots = {} cannot be shared by them equally. "
                        "Try train.ranks={}, or in a new run train.gradient_slots={}.",
                        ranks, slots, std::gcd(ranks, slots), (slots / ranks + 1) * ranks);
}

// One trainer, one rollout worker, and never both at once.
void validate_colocation(const RunOptions& o) {
  if (!o.run.colocate) return;
  constexpr std::string_view kWhy =
      "but run.colocate is true: one trainer and one rollout worker take turns on a device";
  const auto one = [&](std::string_view key, int64_t value) {
    if (value != 1)
      throw UserError::at(key, "is {}, {}. Try {}=1, or run.colocate=false.", value, kWhy, key);
  };
  one("train.ranks", o.train.ranks);
  int64_t workers = 0;
  for (const PoolSection& pool : pools_of(o))
    if (pool.cluster.empty()) workers += pool.workers;
  if (workers != 1 && !o.rollout_processes.pools.empty())
    throw UserError::at("rollout.pools", "have {} workers, {}. Give one, or run.colocate=false.",
                        workers, kWhy);
  if (workers != 1)
    throw UserError::at("rollout.workers",
                        "is {}, {}. Try rollout.workers=1, or run.colocate=false.", workers, kWhy);
  if (o.scheduler.mode.ahead > 0)
    throw UserError::at(
        "scheduler.ahead",
        "is {}, {}, and none is ahead. Try scheduler.ahead=0, or run.colocate=false.",
        o.scheduler.mode.ahead, kWhy);
  if (o.lora.trains())
    throw UserError::at(o.lora.rank > 0 ? "lora.rank" : "lora.adapter",
                        "is given, {}, and the base of an adapter is not in what they share so "
                        "far. Try run.colocate=false.",
                        kWhy);
  if (o.algo.sampling_mask == SamplingMask::kKeep)
    throw UserError::at("algo.sampling_mask",
                        "is keep, {}, and kept sets are not in what they plan so far. Try "
                        "algo.sampling_mask=none, or run.colocate=false.",
                        kWhy);
  if (o.scheduler.mode.hand_over == scheduler::HandOverBy::kGroups)
    throw UserError::at("scheduler.hand_over",
                        "is groups, {}, and a step begins when it is whole. Try "
                        "scheduler.hand_over=step, or run.colocate=false.",
                        kWhy);
}

// A step whose groups are trained as they come is one update, and no group waits for another.
void validate_streaming(const RunOptions& o) {
  if (o.scheduler.mode.hand_over != scheduler::HandOverBy::kGroups) return;
  constexpr std::string_view kWhy =
      "but scheduler.hand_over is groups: a step is one update, whose gradients gather while its "
      "groups come.\n       Try";
  const auto refuse = [&](std::string_view key, int64_t value) {
    if (value > 1)
      throw UserError::at(key, "is {}, {} {}=1, or scheduler.hand_over=step.", value, kWhy, key);
  };
  refuse("train.minibatches_per_step", o.train.minibatches_per_step);
  refuse("train.ppo_epochs", o.train.ppo_epochs);
  refuse("train.ranks", o.train.ranks);
  if (o.train.balance_coef != 0)
    throw UserError::at("train.balance_coef",
                        "is {}, a loss over all tokens of a step, but scheduler.hand_over is "
                        "groups: the first are trained before it is known how many there are.\n"
                        "       Try train.balance_bias_rate=0.001 instead, or "
                        "scheduler.hand_over=step.",
                        o.train.balance_coef);
  const auto refuse_whole = [](std::string_view key, std::string_view value, std::string_view reads,
                               std::string_view instead) {
    throw UserError::at(key,
                        "is {}, which {}, but scheduler.hand_over is groups: the first are "
                        "trained before the last are sampled.\n       Try {}={}, or "
                        "scheduler.hand_over=step.",
                        value, reads, key, instead);
  };
  if (o.algo.advantage == AdvantageKind::kGroupMeanBatchStd)
    refuse_whole("algo.advantage", name_of(o.algo.advantage),
                 "divides by the deviation of a whole batch",
                 name_of(AdvantageKind::kGroupMeanStd));
  if (needs_critic(o.algo.advantage))
    refuse_whole("algo.advantage", name_of(o.algo.advantage),
                 "takes the values of a whole batch before its first update",
                 name_of(AdvantageKind::kGroupMean));
  if (o.algo.correction.normalize)
    refuse_whole("algo.correction.normalize", "true", "divides by the mean weight of a whole batch",
                 "false");
  if (o.algo.returns.whiten)
    refuse_whole("algo.whiten_advantages", "true", "divides by the deviation of a whole batch",
                 "false");
}

// Sets that travel with the tokens need a bound that only top_k gives: top_p and min_p may keep any
// part of the vocabulary.
void validate_sampling_mask(const RunOptions& o) {
  const SamplingParams sampling = o.rollout.sampling.params();
  if (!truncates(sampling)) return;
  constexpr std::string_view kTopK = "rollout.sampling.top_k";
  constexpr std::string_view kOneChoice =
      "is 1: every draw is the likeliest token, so that the members of a group are all the same "
      "and teach nothing. Try {}.";
  if (sampling.top_k == 1) throw UserError::at(kTopK, kOneChoice, "50, or -1 (off)");
  if (sampling.min_p == 1)
    throw UserError::at("rollout.sampling.min_p", kOneChoice, "0.05, or 0 (off)");
  if (o.algo.sampling_mask == SamplingMask::kNone) {
    // A token that was cut has no probability under the sampler: the divergence is infinite, and
    // its estimate would push every sampled token up.
    if (o.algo.kl.coef > 0 && o.algo.kl.target == KlTarget::kBehaviour)
      throw UserError::at("algo.kl.target",
                          "is behaviour, but truncated sampling (rollout.sampling) cuts tokens "
                          "that the policy may choose: the divergence from it is infinite. Try "
                          "algo.kl.target=ref, or algo.sampling_mask=keep.");
    // The product of the kept shares of an answer: it forgets long ones (0.95 ^ 1000 = 5e-23).
    if (o.algo.correction.kind != CorrectionKind::kNone &&
        o.algo.correction.level == CorrectionLevel::kSequence)
      throw UserError::at("algo.correction.level",
                          "is sequence, but truncated sampling (rollout.sampling) gives each token "
                          "a weight below 1, and their product over a long answer is nearly 0. Try "
                          "algo.correction.level=token, or algo.sampling_mask=keep.");
    return;
  }
  if (sampling.top_k < 1 || sampling.top_k > kMaxKeptTokens)
    throw UserError::at(kTopK,
                        "is {}, but algo.sampling_mask is keep: the kept sets travel with the "
                        "tokens, and top_k from 1 to {} bounds them. Try top_k=1000.",
                        sampling.top_k, kMaxKeptTokens);
  const int64_t tokens = o.rollout.max_sampled_tokens();
  if (sampling.top_k * tokens > kMaxKeptIds)
    throw UserError::at(kTopK,
                        "is {}, but algo.sampling_mask is keep: an episode of {} tokens then has "
                        "kept sets of {} ids, and {} can travel. Try top_k={}.",
                        sampling.top_k, tokens, sampling.top_k * tokens, kMaxKeptIds,
                        std::max<int64_t>(1, kMaxKeptIds / tokens));
}

// Keys that other sections leave without effect, and those that say so themselves.
// `environments`: of all datasets.
void refuse_without_effect(RunOptions& o, ConfigKeys& keys, std::span<const RunDataset> datasets,
                           std::span<const sandbox::EnvironmentInfo> environments) {
  EffectChecker effect(o, keys);
  effect.refuse_idle();
  if (!datasets.empty() && std::ranges::all_of(datasets, &std::string::empty, &RunDataset::dataset))
    effect.refuse(
        {"run.epochs"},
        {.reason = o.datasets.empty()
                       ? "the environment draws its tasks without end, only env.dataset has epochs"
                       : "the environments draw their tasks without end, only a dataset has epochs",
         .deciders = {"datasets", "env.dataset", "env.name"}});
  const auto longest =
      std::ranges::max_element(environments, {}, &sandbox::EnvironmentInfo::max_turns);
  if (longest != environments.end() && o.rollout.max_turns > longest->max_turns)
    effect.refuse({"rollout.max_turns"},
                  {.reason = fmt::format("{} ends an episode after {}", longest->name,
                                         counted(longest->max_turns, "turn")),
                   .deciders = {"datasets", "env.name", "env.settings.max_turns"}});
  if (!datasets.empty() &&
      std::ranges::all_of(datasets, [](const RunDataset& d) { return d.command.empty(); }))
    effect.refuse(
        {"rollout.start_timeout_s", "rollout.env_starts_at_once"},
        {.reason = o.datasets.empty() ? "the environment is no program (env.command)"
                                      : "no environment of the datasets is a program (command)",
         .deciders = {"datasets", "env.agent.run", "env.command", "env.name", "env.plugin"}});
  if (!truncates(o.rollout.sampling.params()))
    effect.refuse({"algo.sampling_mask"},
                  {.reason = "rollout.sampling.top_k, top_p and min_p are off and cut nothing",
                   .deciders = {"rollout.sampling.top_k", "rollout.sampling.top_p",
                                "rollout.sampling.min_p"}});
  effect.tell();
}

// Its workers say twice a second how they get on; below two of these everybody would stand still.
void validate_progress(const RunOptions& o) {
  const double seconds = seconds_of(o.scheduler.no_progress);
  if (seconds == 0 || seconds >= 1) return;
  throw UserError::at("scheduler.no_progress_seconds",
                      "is {}; it must be at least 1, or 0 (never): workers say twice a second how "
                      "they get on.\n       Try scheduler.no_progress_seconds=1.",
                      seconds);
}

// The tokens that an episode's turns can sample, or what fits the context where that is less.
struct ResponseLimit {
  int64_t tokens = 0;
  std::string text;
};

ResponseLimit response_limit(const RunOptions& o,
                             std::span<const sandbox::EnvironmentInfo> environments) {
  const int64_t fits = o.rollout.max_sampled_tokens();
  // Without an environment that says less.
  if (environments.empty()) return {fits, "response limit: what fits the context"};
  int64_t longest = 0, turns = 0, action_tokens = 0;
  for (const sandbox::EnvironmentInfo& environment : environments) {
    const EpisodeLimits limits = episode_limits(o.rollout, environment);
    // Both are bounded each, and their product need not fit.
    const bool overflows =
        limits.max_turns > std::numeric_limits<int64_t>::max() / limits.max_action_tokens;
    const int64_t tokens =
        overflows ? fits : std::min(fits, limits.max_turns * limits.max_action_tokens);
    if (tokens <= longest) continue;
    longest = tokens;
    turns = limits.max_turns, action_tokens = limits.max_action_tokens;
  }
  return {longest, longest < fits ? fmt::format("response limit: {} x {}", counted(turns, "turn"),
                                                counted(action_tokens, "token"))
                                  : "response limit: what fits the context"};
}

// Values of the law that a preset has in another section: whoever plays the law, with workers or in
// a simulation, needs them.
void derive_law(RunOptions& o, ConfigKeys& keys) {
  if (!refills_groups(o.algo.name) || !compares_members(o.algo.advantage) ||
      o.algo.distill.has_teacher() || keys.given("scheduler.replace_zero_signal"))
    return;
  o.scheduler.replace_zero_signal = true;
  keys.derived("scheduler.replace_zero_signal", fmt::format("preset {}", name_of(o.algo.name)));
}

// The versions that samples name are many, and those of a large model would fill a disk. By the
// size of one alone: a run that goes on, maybe with other checkpoints, must come to the same.
void derive_kept_versions(RunOptions& o, ConfigKeys& keys, const Registries& registries) {
  if (keys.given("weights.keep_sampled") || supervised_only(o)) return;
  int64_t bytes = 0;
  try {
    const ModelConfig config = planned_model(resolve(o), registries.environments);
    bytes =
        published_bytes(ParameterLayout::trained(config), compute_dtype(o.model.compute, config));
  } catch (const UserError&) {
    return;  // who reads the model next tells it
  }
  if (bytes <= kMostSampledVersionBytes) return;
  o.weights.keep_sampled = false;
  keys.derived("weights.keep_sampled", fmt::format("versions of {}", format_bytes(bytes)));
}

// Values that nobody gave and an algorithm needs: lengths from the response limit, and what its
// paper has in other sections.
void derive_from_algorithm(RunOptions& o, ConfigKeys& keys,
                           std::span<const sandbox::EnvironmentInfo> environments) {
  const ResponseLimit limit = response_limit(o, environments);
  AggregationConfig& aggregation = o.algo.aggregation;
  if (aggregation.kind == AggregationKind::kSeqMeanTokenSumConst && aggregation.const_tokens == 0) {
    aggregation.const_tokens = limit.tokens;
    keys.derived("algo.loss_const_tokens", limit.text);
  }
  LengthOptions& length = o.algo.length;
  if (length.penalty == LengthPenalty::kSoftOverlong) {
    if (length.limit == 0) {
      length.limit = limit.tokens;
      keys.derived("algo.length.limit", limit.text);
    }
    if (length.buffer == 0) {
      // DAPO's proportion: a buffer of 4096 tokens below a limit of 20480.
      length.buffer = std::max<int64_t>(1, length.limit / 5);
      keys.derived("algo.length.buffer", "a fifth of algo.length.limit");
    }
  }
  if (compares_members(o.algo.advantage) && o.step.group_size < 2)
    throw UserError::at("rollout.group_size",
                        "is {}, but algo.advantage {} compares the members of a group. Try 8, or "
                        "algo.advantage=reward.",
                        o.step.group_size, name_of(o.algo.advantage));
  if (o.algo.advantage != AdvantageKind::kGreedy) {
    if (o.rollout.greedy_member)
      throw UserError::at("rollout.greedy_member",
                          "is true, but algo.advantage is {}: only greedy takes that member as a "
                          "baseline. Remove it, or write algo.advantage: greedy.",
                          name_of(o.algo.advantage));
    return;
  }
  if (keys.given("rollout.greedy_member") && !o.rollout.greedy_member)
    throw UserError::at("rollout.greedy_member",
                        "is false, but algo.advantage is greedy: the greedy member of a group is "
                        "its baseline. Remove it.");
  // A group keeps the members that end first, and the greedy one may be the last.
  if (o.scheduler.mode.launch_members != 1)
    throw UserError::at("scheduler.launch_members_ratio",
                        "is {}, but algo.advantage is greedy: a group that keeps the first of its "
                        "members may lose the greedy one, its baseline. Try 1.",
                        o.scheduler.mode.launch_members);
  o.rollout.greedy_member = true;
  keys.derived("rollout.greedy_member", "algo.advantage greedy");
}

// A person who gave held-out rows wants them evaluated, and eval.prompts is 0 where nobody gives
// it.
void note_idle_rows(const RunOptions& o, std::span<const RunDataset> datasets, ConfigKeys& keys) {
  if (o.eval.prompts > 0 || keys.given("eval.prompts")) return;
  for (const RunDataset& dataset : datasets) {
    if (dataset.eval_dataset.empty()) continue;
    keys.add_note(
        fmt::format("{} is not read, as eval.prompts is 0. Write eval.prompts: N, its rows to "
                    "evaluate (eval.prompts: 0 for none)",
                    dataset.key("eval_dataset")));
  }
}

// The key of a stage that says of its training what `key` says of reinforcement learning; empty:
// there is none.
std::string key_of_stage(const RunStage& stage, std::string_view key) {
  constexpr std::string_view kSection = "sft.";
  std::string_view own = supervised_key(key);
  if (!own.starts_with(kSection)) return std::string(own);
  own.remove_prefix(kSection.size());
  const bool has_tokens = std::holds_alternative<SftOptions>(stage.work) ||
                          std::holds_alternative<DistillStageOptions>(stage.work);
  return stage.key(own == "batch_tokens" && !has_tokens ? "batch_rows" : own);
}

// Keys that only a run with an environment reads.
void refuse_without_steps(RunOptions& o, ConfigKeys& keys) {
  constexpr std::string_view kReason =
      "there is neither env nor datasets, and the run learns from rows alone";
  if (keys.given("run.steps") && o.run.steps != 0)
    throw UserError::at("run.steps", "has no effect: {}. Write {}, or remove it.", kReason,
                        stages_of(o).front().key("epochs"));
  EffectChecker effect(o, keys);
  const auto is_idle = [](std::string_view key) {
    constexpr std::string_view kSections[] = {"env.", "reward.", "algo.", "optim.", "eval."};
    constexpr std::string_view kKeys[] = {"run.epochs",
                                          "run.listen",
                                          "run.keys",
                                          "run.colocate",
                                          "train.ppo_epochs",
                                          "train.trace_steps",
                                          "train.minibatches_per_step",
                                          "checkpoint.interval_steps"};
    if (key.starts_with("rollout.")) return key != "rollout.max_context_tokens";
    return std::ranges::any_of(kSections, [&](auto section) { return key.starts_with(section); }) ||
           std::ranges::find(kKeys, key) != std::ranges::end(kKeys);
  };
  std::vector<std::string> idle;
  for (const auto& [key, option] : options_by_key(o))
    if (is_idle(key)) idle.push_back(key);
  effect.refuse(idle,
                {.reason = std::string(kReason), .deciders = {stages_of(o).front().key("data")}},
                [&](const std::string& key) {
                  const std::string own = key_of_stage(stages_of(o).front(), key);
                  return own.empty() ? "Remove it." : fmt::format("Write {}, or remove it.", own);
                });
  effect.tell();
}

void check_supervised_rules(RunOptions& o, ConfigKeys& keys) {
  if (o.model.creates())
    throw UserError::at("model.create",
                        "takes its vocabulary from the environment, and there is neither env nor "
                        "datasets. Use model.path.");
  validate_microbatch(o);
  refuse_without_steps(o, keys);
  o.run.steps = 0;
}

void validate_reward_stage(const RunOptions& o) {
  if (o.reward.stage.empty()) return;
  std::vector<std::string> names;
  for (const RunStage& stage : stages_of(o))
    if (!stage.trains_policy()) names.push_back(stage.name);
  if (std::ranges::find(names, o.reward.stage) != names.end()) return;
  throw UserError::at("reward.stage", "is {}, and {}.", o.reward.stage,
                      names.empty()
                          ? "no stage of the run trains a reward model. Write "
                            "reward_model.data, or reward.model: DIR"
                          : "the stages that train a reward model are " + join_texts(names, ", "));
}

// The list of stages may say where reinforcement learning ends.
void derive_steps(RunOptions& o, ConfigKeys& keys) {
  const std::optional<int64_t> steps = steps_of_stages(o);
  if (!steps) return;
  const bool differs = keys.given("run.steps") && o.run.steps != *steps;
  // A stored config says both, and the command line may change either.
  const auto overrides = [&](std::string_view key) { return keys.source(key) == "command line"; };
  if (differs && overrides("run.steps") && o.run.steps > 0)
    return set_steps_of_stages(o, o.run.steps);
  const std::string item = fmt::format("stages[{}]", o.stages.size() - 1);
  if (differs && !overrides(join_key(item, "until")) && !overrides(join_key(item, "rl.steps")))
    throw UserError::at("run.steps", "is {}, and the last of stages ends after {}. Leave one out.",
                        o.run.steps, *steps);
  o.run.steps = *steps;
  keys.derived("run.steps", "until of the last stage");
}

// `needs_policy`: it must be named.
void check_rules(RunOptions& o, ConfigKeys& keys, const Registries& registries,
                 bool needs_policy = true) {
  if (o.datasets.empty() && o.env.name.empty() && !supervised_only(o))
    throw UserError::at(
        "env.name", "is missing; it names the environment ('tailrace env list' lists them). {}",
        o.env.dataset.empty()
            ? "Training on rows alone needs sft.data, preference.data, reward_model.data or "
              "distill.data."
            : "The prompts of env.dataset are answered once each by env.name: text.");
  // Rules of different sections are told together, and those between sections once each section is
  // sound.
  Mistakes mistakes;
  const auto look = [&](const auto& check) {
    mistakes.look([&] {
      try {
        check();
      } catch (const UserError& error) {
        throw keys.placed(error);
      }
    });
  };
  look([&] { settle_verifiers(o, keys); });
  look([&] { validate(o.optim, "optim"); });
  look([&] { validate_stages(o, !supervised_only(o)); });
  look([&] { validate_reward_stage(o); });
  for (const RunStage& stage : stages_of(o))
    look([&] { std::visit([&](const auto& work) { validate(work, stage.item); }, stage.work); });
  look([&] {
    if (needs_policy || !o.model.path.empty() || o.model.creates()) validate_model(o);
    validate_adapter(o);
    validate_rollout(o);
  });
  // The rules below are about steps, of which this run has none.
  if (supervised_only(o)) {
    look([&] { validate_ranks(o); });
    look([&] { validate_policies(o); });
    mistakes.tell();
    check_supervised_rules(o, keys);
    return refuse_without_effect(o, keys, {}, {});
  }
  derive_steps(o, keys);
  derive_law(o, keys);
  const std::vector<RunDataset> datasets = datasets_of(o);
  std::vector<sandbox::EnvironmentInfo> environments;
  look([&] {
    validate_datasets(o, datasets, keys);
    for (const RunDataset& dataset : datasets)
      environments.push_back(validate_dataset(o, dataset, registries));
  });
  look([&] { validate_listen(o); });
  look([&] { validate_pools(o, datasets); });
  // Keys that say themselves that they have no effect need no environment to be told.
  if (mistakes.any())
    look([&] {
      EffectChecker effect(o, keys);
      effect.refuse_idle();
      effect.tell();
    });
  mistakes.tell();
  note_idle_rows(o, datasets, keys);
  derive_from_algorithm(o, keys, environments);
  // Behind derive_from_algorithm(), which fills in the lengths that nobody gave.
  look([&] { validate(o.algo, "algo"); });
  look([&] { validate_batches(o); });
  look([&] { validate_ranks(o); });
  look([&] { validate_streaming(o); });
  look([&] { validate_colocation(o); });
  look([&] { validate_policies(o); });
  look([&] { validate_sampling_mask(o); });
  look([&] { validate_progress(o); });
  look([&] { refuse_without_effect(o, keys, datasets, environments); });
  mistakes.tell();

  // Last, so that the rules above still see what a person has given.
  const bool warms_up = !o.sft.data.empty() || o.sft.demonstrations > 0;
  if (warms_up && o.model.creates() && !keys.given("sft.optim.lr")) o.sft.optim.lr = kFreshSftLr;
  for (size_t i = 0; i < o.stages.size(); ++i) {
    SftOptions& sft = o.stages[i].sft;
    const std::string key = fmt::format("stages[{}].sft.optim.lr", i);
    if (sft.demonstrations > 0 && o.model.creates() && o.stages[i].name.empty() && !keys.given(key))
      sft.optim.lr = kFreshSftLr;
  }
  derive_kept_versions(o, keys, registries);
}

// Whether it names environments, and all of them are known here.
bool knows_environments(const RunOptions& o, const Registries& registries) {
  std::set<std::string> known;
  for (const auto& environment : registries.environments.list()) known.insert(environment.name);
  return std::ranges::all_of(
      datasets_of(o), [&](const RunDataset& dataset) { return known.contains(dataset.env); });
}

// A config that could be launched is checked and completed as a launch does it, so that a plan is
// about the same run. One that names no environment, or one that is not here, can be planned only.
void check_simulated_rules(RunOptions& o, ConfigKeys& keys, const Registries& registries) {
  if (supervised_only(o))
    throw UserError::at(stages_of(o).front().key("data"),
                        "is all that the run learns from, and only steps of reinforcement learning "
                        "are simulated. Give env or datasets.");
  if (knows_environments(o, registries)) {
    check_rules(o, keys, registries, /*needs_policy=*/false);
  } else {
    const std::vector<RunDataset> datasets = datasets_of(o);
    validate_datasets(o, datasets, keys);
    validate_pools(o, datasets);
    derive_law(o, keys);
    derive_from_algorithm(o, keys, {});
    validate(o.algo, "algo");
    validate_streaming(o);
    validate_colocation(o);
    derive_kept_versions(o, keys, registries);
  }
  std::vector<std::string> pools;
  for (const PoolSection& pool : o.rollout_processes.pools) pools.push_back(pool.name);
  for (size_t i = 0; i < o.simulate.pools.size(); ++i) {
    const std::string& name = o.simulate.pools[i].name;
    if (std::ranges::find(pools, name) != pools.end()) continue;
    const std::string key = fmt::format("pools.{}.name", name);
    if (pools.empty())
      throw UserError::at(key,
                          "is {}, but rollout.pools lists no pools. Use rollout_hardware "
                          "and workers instead.",
                          name);
    throw UserError::at(key, "is {}, and rollout.pools has {}. Name one of these.", name,
                        join_texts(pools, ", "));
  }
}

}  // namespace

void validate_simulated(RunOptions& options, ConfigKeys& keys, const Registries& registries) {
  try {
    check_simulated_rules(options, keys, registries);
  } catch (const UserError& error) {
    throw keys.placed(error);
  }
}

void validate(RunOptions& options, ConfigKeys& keys, const Registries& registries) {
  try {
    check_rules(options, keys, registries);
  } catch (const UserError& error) {
    throw keys.placed(error);
  }
}

}  // namespace tailrace
