#include "cli/prepare/placed_run.h"

#include <filesystem>
#include <utility>

#include "cli/inputs/planned_model.h"
#include "cli/inputs/threads.h"
#include "core/model/compute.h"
#include "core/text/tokenizer.h"
#include "trainer/loss/options.h"

namespace tailrace {

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

PlacedRun place(ResolvedRun run, ModelConfig model) {
  PlacedRun placed{.run = std::move(run), .model = std::move(model)};
  const ModelSection& section = placed.run.options.model;
  placed.compute = elements_of(section.compute, section.kv_cache_dtype, placed.model);
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
