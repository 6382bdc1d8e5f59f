#include "cli/run/rules.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/run/counted.h"
#include "core/base/error.h"
#include "core/text/dataset.h"
#include "kernels/ops/attention.h"

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
    defaults.algo = AlgoOptions::preset(options.algo.name);
    values_ = options_by_key(options);
    defaults_ = options_by_key(defaults);
  }

  // `key`: a full key, or a section with a dot at its end. `switches`: the keys that decide whether
  // it has an effect.
  void refuse(const std::string& key, const std::vector<std::string>& switches,
              const std::string& reason) {
    int switched = -1;  // the layer that decided it
    for (const std::string& name : switches)
      if (const ConfigPlace* place = keys_.place(name)) switched = std::max(switched, place->layer);
    std::vector<std::string> idle;
    for (auto entry = values_.lower_bound(key);
         entry != values_.end() && entry->first.starts_with(key); ++entry) {
      const std::string& name = entry->first;
      const ConfigPlace* place = keys_.place(name);
      if (key.back() != '.' && name != key) continue;
      if (!place || entry->second.value == defaults_.at(name).value) continue;
      if (std::ranges::find(switches, name) != switches.end()) continue;
      if (place->layer >= switched)
        throw UserError("{}: {} has no effect: {}. Remove it.", place->text(), name, reason);
      idle.push_back(name);
    }
    if (idle.empty()) return;
    reset(idle);
    keys_.add_note(fmt::format("without effect, as {}: {}", reason, fmt::join(idle, ", ")));
  }

 private:
  void reset(const std::vector<std::string>& names) {
    // What has no default is given again.
    std::vector<std::string> values = {fmt::format("env.name={}", options_.env.name)};
    for (const std::string& name : names)
      values.push_back(fmt::format("{}={}", name, defaults_.at(name).value));
    bind_config(parse_config("", "the defaults", values), options_);
    values_ = options_by_key(options_);
  }

  RunOptions& options_;
  ConfigKeys& keys_;
  std::map<std::string, OptionDoc> values_, defaults_;
};

// "configs/a.yaml:14: model.path" for messages about one key.
std::string at(const ConfigKeys& keys, std::string_view key) {
  return keys.given(key) ? fmt::format("{}: {}", keys.where(key), key) : std::string(key);
}

void validate_model(const RunOptions& o, const ConfigKeys& keys) {
  if (!o.model.path.empty() && o.model.creates())
    throw UserError(
        "{} and model.create are both given; the policy is loaded or made, not both. Remove one.",
        at(keys, "model.path"));
  if (o.model.path.empty() && !o.model.creates())
    throw UserError(
        "model.path is missing; it is the Hugging Face folder to start from (or give "
        "model.create.hidden_size "
        "and its neighbours for random weights). Try model.path=DIR.");
  if (!o.model.creates()) return;
  const ModelCreateSection& c = o.model.create;
  auto need = [&](std::string_view key, int64_t value) {
    if (value < 1)
      throw UserError("model.create.{} is missing; a policy from random weights needs it", key);
  };
  need("layers", c.layers);
  need("heads", c.heads);
  if (c.hidden_size % c.heads != 0)
    throw UserError("{} is {}; it must be a multiple of model.create.heads = {}. Try {}.",
                    at(keys, "model.create.hidden_size"), c.hidden_size, c.heads,
                    (c.hidden_size / (2 * c.heads) + 1) * 2 * c.heads);
  const int64_t head_dim = c.hidden_size / c.heads;
  if (head_dim % 2 != 0 || head_dim > kMaxHeadDim)
    throw UserError(
        "{} = {} gives heads of {}; hidden_size / heads must be an even number up to {}. Try "
        "model.create.heads={}.",
        at(keys, "model.create.heads"), c.heads, head_dim, kMaxHeadDim,
        std::max<int64_t>(1, c.hidden_size / 64));
  if (c.kv_heads > 0 && c.heads % c.kv_heads != 0)
    throw UserError("{} is {}; model.create.heads = {} must be a multiple of it. Try {}.",
                    at(keys, "model.create.kv_heads"), c.kv_heads, c.heads, c.heads);
}

// Episodes that nobody limits have the room that the policy has.
void validate_rollout(RunOptions& o, const ConfigKeys& keys) {
  int64_t& context = o.rollout.engine.max_context_tokens;
  if (context == 0 && (o.rollout.max_prompt_tokens == 0 || o.rollout.max_response_tokens == 0)) {
    const int64_t positions = o.model.creates() ? o.model.create.max_positions
                                                : read_model_config(o.model.path).max_positions;
    context = std::min(positions, o.train.microbatch_tokens);
  }
  o.rollout.validate();
  if (o.model.creates() && context > o.model.create.max_positions)
    throw UserError(
        "{} is {}; the policy has model.create.max_positions = {}. Try max_positions = {}.",
        at(keys, "rollout.max_context_tokens"), context, o.model.create.max_positions, context);
}

// The registries know nothing of files: their messages get the line of the setting or of the name
// that they are about.
std::unique_ptr<sandbox::Environment> make_environment(const RunOptions& o, const ConfigKeys& keys,
                                                       const Registries& registries) {
  try {
    auto environment = registries.environments.make(o.env.name, o.env.settings);
    if (!environment->info().verifier.empty())
      registries.verifiers->at(environment->info().verifier);
    return environment;
  } catch (const UserError& error) {
    std::string key = "env.name", message = error.what();
    for (const auto& [setting, value] : o.env.settings)
      if (message.find(setting) != std::string::npos) key = fmt::format("env.settings.{}", setting);
    throw UserError("{}: {}", keys.where(key), message);
  }
}

sandbox::EnvironmentInfo validate_environment(const RunOptions& o, const ConfigKeys& keys,
                                              const Registries& registries) {
  auto environment = make_environment(o, keys, registries);
  const sandbox::EnvironmentInfo& info = environment->info();
  if (info.needs_dataset && o.env.dataset.empty())
    throw UserError("{} is {}, which needs env.dataset: a JSONL file with a prompt in each row",
                    at(keys, "env.name"), o.env.name);
  if (!info.needs_dataset && !o.env.dataset.empty())
    throw UserError("{} has no effect: {} draws its own tasks. Remove it.", at(keys, "env.dataset"),
                    o.env.name);
  if (!info.needs_dataset && !o.env.eval_dataset.empty())
    throw UserError("{} has no effect: {} draws its own tasks. Remove it.",
                    at(keys, "env.eval_dataset"), o.env.name);
  if (info.needs_dataset && o.eval.prompts > 0 && o.env.eval_dataset.empty())
    throw UserError(
        "{} is {} but env.eval_dataset is missing; evaluations need prompts of their own. Give it, "
        "or "
        "eval.prompts=0.",
        at(keys, "eval.prompts"), o.eval.prompts);
  if (o.model.creates() && info.vocabulary.empty())
    throw UserError(
        "model.create takes its vocabulary from the environment, and {} has none. Use model.path.",
        o.env.name);
  if (o.sft.demonstrations > 0) {
    Rng rng(0);
    sandbox::Task task{.seed = sandbox::task_seed(0, false, 0)};
    if (info.needs_dataset) {
      const auto rows = text::read_dataset(o.env.dataset, o.env.prompt_key);
      if (!rows.empty()) task.data = rows.front().json;
    }
    auto reset = environment->reset(task);
    if (!reset || !environment->demonstrate(rng))
      throw UserError("{} is {}, but {} has no demonstrator. Use sft.data, or remove it.",
                      at(keys, "sft.demonstrations"), o.sft.demonstrations, o.env.name);
  }
  return info;
}

void validate_batches(const RunOptions& o, const ConfigKeys& keys) {
  if (o.rollout.sampling.temperature == 0)
    throw UserError(
        "{} is 0; greedy members of a group are all the same and teach nothing. Try 1.0.",
        at(keys, "rollout.sampling.temperature"));
  if (o.rollout.group_size < 2)
    throw UserError("{} is {}; advantages compare the members of a group. Try 8.",
                    at(keys, "rollout.group_size"), o.rollout.group_size);
  if (o.train.minibatches_per_step > o.rollout.prompts_per_step)
    throw UserError(
        "{} is {}, more than the {} groups of a step (rollout.prompts_per_step); groups stay "
        "whole. Try {}.",
        at(keys, "train.minibatches_per_step"), o.train.minibatches_per_step,
        o.rollout.prompts_per_step, o.rollout.prompts_per_step);
  if (o.train.microbatch_tokens < o.rollout.engine.max_context_tokens)
    throw UserError(
        "{} is {}, less than one whole sequence (rollout.max_context_tokens = {}). Try {}.",
        at(keys, "train.microbatch_tokens"), o.train.microbatch_tokens,
        o.rollout.engine.max_context_tokens, o.rollout.engine.max_context_tokens);
  if (o.run.steps == 0 && o.run.epochs > 0 && o.optim.schedule != LrSchedule::kConstant)
    throw UserError(
        "{} is {}, which falls towards the last step, but run.steps is 0 (until the epochs end). "
        "Set run.steps, or try optim.schedule=constant.",
        at(keys, "optim.schedule"), name_of(o.optim.schedule));
}

void refuse_without_effect(RunOptions& o, ConfigKeys& keys,
                           const sandbox::EnvironmentInfo& environment) {
  EffectChecker effect(o, keys);
  if (!o.model.creates())
    effect.refuse("model.create.", {"model.create.hidden_size"},
                  "model.create.hidden_size is not given");
  if (o.sft.data.empty() && o.sft.demonstrations == 0)
    effect.refuse("sft.", {"sft.data", "sft.demonstrations"},
                  "neither sft.data nor sft.demonstrations is given");
  if (o.env.dataset.empty()) {
    effect.refuse("env.prompt_key", {"env.dataset", "env.name"}, "there is no env.dataset");
    effect.refuse("run.epochs", {"env.dataset", "env.name"},
                  "the environment draws its tasks without end, only env.dataset has epochs");
  }
  if (o.rollout.max_turns > environment.max_turns)
    effect.refuse("rollout.max_turns", {"env.name", "env.settings.max_turns"},
                  fmt::format("{} ends an episode after {}", o.env.name,
                              counted(environment.max_turns, "turn")));
  if (o.algo.kl.coef == 0)
    effect.refuse("algo.kl.", {"algo.kl.coef", "algo.name"}, "algo.kl.coef is 0");
  if (o.algo.correction.kind == CorrectionKind::kNone)
    effect.refuse("algo.correction.", {"algo.correction.kind"}, "algo.correction.kind is none");
  if (o.algo.surrogate.kind == SurrogateKind::kCispo)
    effect.refuse("algo.clip_low", {"algo.surrogate"}, "surrogate cispo has no lower bound");
  if (!divides_by_std(o.algo.advantage))
    effect.refuse(
        "algo.std_eps", {"algo.advantage", "algo.name"},
        fmt::format("algo.advantage is {}, which divides by nothing", name_of(o.algo.advantage)));
  if (o.optim.schedule == LrSchedule::kConstant)
    effect.refuse("optim.min_lr_ratio", {"optim.schedule"}, "optim.schedule is constant");
  if (o.sft.optim.schedule == LrSchedule::kConstant)
    effect.refuse("sft.optim.min_lr_ratio", {"sft.optim.schedule"},
                  "sft.optim.schedule is constant");
  if (o.optim.weight_decay == 0)
    effect.refuse("optim.decay_norms", {"optim.weight_decay"}, "optim.weight_decay is 0");
  if (o.sft.optim.weight_decay == 0)
    effect.refuse("sft.optim.decay_norms", {"sft.optim.weight_decay"},
                  "sft.optim.weight_decay is 0");
  if (o.eval.prompts == 0) effect.refuse("eval.", {"eval.prompts"}, "eval.prompts is 0");
  if (o.scheduler.breaker.window == 0)
    effect.refuse("scheduler.breaker_share_ratio", {"scheduler.breaker_window"},
                  "scheduler.breaker_window is 0");
}

}  // namespace

void validate(RunOptions& o, ConfigKeys& keys, const Registries& registries) {
  validate(o.algo, "algo");
  validate(o.optim, "optim");
  validate(o.sft, "sft");
  validate_model(o, keys);
  validate_rollout(o, keys);
  const sandbox::EnvironmentInfo environment = validate_environment(o, keys, registries);
  validate_batches(o, keys);
  refuse_without_effect(o, keys, environment);

  const bool warms_up = !o.sft.data.empty() || o.sft.demonstrations > 0;
  if (warms_up && o.model.creates() && !keys.given("sft.optim.lr")) o.sft.optim.lr = kFreshSftLr;
}

}  // namespace tailrace
