#include "cli/prepare/placed_run.h"

#include <filesystem>
#include <utility>

#include <fmt/format.h>

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
  if (const DistillOptions& distill = o.algo.distill;
      distill.has_teacher() && distill.kind != DistillLoss::kPolicyGradient)
    return fmt::format(
        "the loss {} of a teacher (algo.distill.loss) has its head on the CPU so far",
        name_of(distill.kind));
  if (!run.supervised_only && o.optim.kind == OptimizerKind::kMuon)
    return "Muon (optim.kind) runs on the CPU alone so far";
  for (const RunStage& stage : run.stages) {
    if (stage.rows().optim.kind == OptimizerKind::kMuon)
      return fmt::format("Muon ({}) runs on the CPU alone so far", stage.key("optim.kind"));
    if (std::holds_alternative<DistillStageOptions>(stage.work))
      return fmt::format("the loss of a teacher ({}) has its head on the CPU so far", stage.item);
    if (!stage.trains_policy())
      return fmt::format("a reward model ({}) is trained on the CPU alone so far", stage.item);
  }
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
