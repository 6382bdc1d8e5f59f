#include "cli/inputs/planned_model.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "cli/config/datasets.h"
#include "cli/config/named_file.h"
#include "core/base/error.h"
#include "core/model/adapter_files.h"
#include "core/model/reward_head.h"
#include "core/text/tokenizer.h"
#include "core/wire/frame.h"

namespace tailrace {
namespace {

ModelConfig policy_of(const ResolvedRun& run, const sandbox::EnvironmentRegistry& environments) {
  const RunOptions& options = run.options;
  if (!options.model.creates())
    return read_named("model.path", [&] { return read_policy_config(options.model.path); });
  return model_config(options.model.create,
                      text::kFirstWord + std::ssize(vocabulary_of(run.datasets, environments)));
}

}  // namespace

Lora lora_of(const RunOptions& options) {
  const LoraSection& given = options.lora;
  if (!given.trains()) return {};
  Lora lora;
  if (!given.adapter.empty()) {
    lora = read_named("lora.adapter", [&] { return read_adapter_config(given.shape_folder()); });
  } else {
    lora.rank = given.rank;
    lora.alpha = given.alpha;
    for (const std::string_view name : kEnumNames<LoraTarget>)
      if (given.targets.empty() || given.targets.front() == "all-linear" ||
          std::ranges::find(given.targets, name) != given.targets.end())
        lora.targets.push_back(*value_of<LoraTarget>(name));
  }
  lora.base = options.model.path;
  return lora;
}

ModelConfig planned_model(const ResolvedRun& run,
                          const sandbox::EnvironmentRegistry& environments) {
  const RunOptions& options = run.options;
  ModelConfig config = policy_of(run, environments);
  const TrainOptions& train = options.train;
  if (config.num_experts == 0 && (train.balance_coef != 0 || train.balance_bias_rate != 0))
    throw UserError::at(train.balance_coef != 0 ? "train.balance_coef" : "train.balance_bias_rate",
                        "is {}, but the policy has no experts that it could balance. Try 0.",
                        train.balance_coef != 0 ? train.balance_coef : train.balance_bias_rate);
  if (options.algo.router_replay == RouterReplay::kReplay) {
    if (config.num_experts == 0)
      throw UserError::at("algo.router_replay",
                          "is replay, but the policy has no experts to choose from. Try off.");
    // Half of what a message holds, as kept sets.
    const int64_t choices = config.expert_shape().per_token(),
                  most = wire::kMaxMessageBytes / 2 / int64_t{sizeof(uint16_t)} / choices;
    if (options.rollout.engine.max_context_tokens > most)
      throw UserError::at("rollout.max_context_tokens",
                          "is {}, but algo.router_replay is replay: a token has {} choices of "
                          "experts, and those of {} tokens can travel. Try {}.",
                          options.rollout.engine.max_context_tokens, choices, most, most);
  }
  config.lora = lora_of(options);
  if (config.lora && config.num_experts > 0)
    throw UserError::at("lora.rank",
                        "is {}, but the policy has experts; an adapter goes beside dense models "
                        "so far. Try 0.",
                        config.lora.rank);
  // The files of a model that was never trained so have none.
  if (train.balance_bias_rate != 0) config.choice_bias = true;
  return config;
}

}  // namespace tailrace
