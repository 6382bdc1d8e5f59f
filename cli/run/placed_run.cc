#include "cli/run/placed_run.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string_view>
#include <utility>

#include "cli/run/datasets.h"
#include "cli/run/named_file.h"
#include "cli/run/threads.h"
#include "core/base/error.h"
#include "core/model/adapter_files.h"
#include "core/model/compute.h"
#include "core/text/tokenizer.h"
#include "core/wire/frame.h"
#include "trainer/loss/options.h"

namespace tailrace {
namespace {

ModelConfig policy_of(const ResolvedRun& run, const sandbox::EnvironmentRegistry& environments) {
  const RunOptions& options = run.options;
  if (!options.model.creates())
    return read_named("model.path", [&] { return read_model_config(options.model.path); });
  return model_config(options.model.create,
                      text::kFirstWord + std::ssize(vocabulary_of(run.datasets, environments)));
}

}  // namespace

std::string why_trainer_on_cpu(const ResolvedRun& run) {
  const RunOptions& o = run.options;
  if (o.algo.advantage == AdvantageKind::kGae)
    return "a critic (algo.advantage) learns on the CPU alone so far";
  if (!run.supervised_only && o.optim.kind == OptimizerKind::kMuon)
    return "Muon (optim.kind) runs on the CPU alone so far";
  if (run.warms_up && o.sft.optim.kind == OptimizerKind::kMuon)
    return "Muon (sft.optim.kind) runs on the CPU alone so far";
  return "";
}

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

PlacedRun place(ResolvedRun run, ModelConfig model) {
  PlacedRun placed{.run = std::move(run), .model = std::move(model)};
  const ModelSection& section = placed.run.options.model;
  placed.compute = compute_dtype(section.compute, placed.model);
  placed.rollout = choose_device(section.device, placed.model, placed.compute, DeviceAsker::kRun);
  placed.why_trainer_cpu = why_trainer_on_cpu(placed.run);
  if (placed.why_trainer_cpu.empty()) placed.trainer = placed.rollout.device;
  placed.evaluates_in_turn =
      evaluates_in_turn(placed.run.threads, placed.trainer, placed.rollout.device);
  return placed;
}

PlacedRun place(ResolvedRun run, const sandbox::EnvironmentRegistry& environments) {
  ModelConfig model = planned_model(run, environments);
  return place(std::move(run), std::move(model));
}

PlacedRun place(ResolvedRun run, const sandbox::EnvironmentRegistry& environments,
                const RunPaths& paths) {
  ModelConfig model = planned_model(run, environments);
  model.padded_ids = num_padded_ids(paths.tokenizer(), model);
  return place(std::move(run), std::move(model));
}

}  // namespace tailrace
