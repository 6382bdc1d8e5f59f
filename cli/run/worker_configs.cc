#include "cli/run/worker_configs.h"

#include <algorithm>
#include <utility>

#include "cli/run/agents.h"
#include "cli/run/datasets.h"
#include "cli/run/threads.h"

namespace tailrace {

ChosenDevice rollout_device(const RunOptions& o, const ModelConfig& model) {
  return choose_device(o.model.device, model, compute_dtype(o.model.compute, model),
                       DeviceAsker::kRun);
}

std::string why_trainer_on_cpu(const RunOptions& o) {
  if (o.algo.advantage == AdvantageKind::kGae)
    return "a critic (algo.advantage) learns on the CPU alone so far";
  const bool warms_up = !o.sft.data.empty() || o.sft.demonstrations > 0;
  if (!supervised_only(o) && o.optim.kind == OptimizerKind::kMuon)
    return "Muon (optim.kind) runs on the CPU alone so far";
  if (warms_up && o.sft.optim.kind == OptimizerKind::kMuon)
    return "Muon (sft.optim.kind) runs on the CPU alone so far";
  return "";
}

Device trainer_device(const RunOptions& o, const ModelConfig& model) {
  return why_trainer_on_cpu(o).empty() ? rollout_device(o, model).device : Device{};
}

TrainerWorkerConfig trainer_config(const RunOptions& o, const ModelConfig& model) {
  TrainerWorkerConfig config;
  config.seed = static_cast<uint64_t>(o.run.seed);
  config.steps = o.run.steps;
  config.model = model;
  config.compute = compute_dtype(o.model.compute, model);
  config.device = trainer_device(o, model);
  config.model_dir = o.model.path;
  config.adapter_dir = o.lora.adapter;
  config.max_sequence_tokens = o.rollout.engine.max_context_tokens;
  config.anchor_interval = o.weights.anchor_interval;
  config.algo = o.algo;
  if (needs_critic(o.algo.advantage)) config.critic = o.critic;
  // Law 4.2: with mask the trainer leaves old tokens out. With drop and wait the scheduler sees to
  // it that there are none.
  if (const scheduler::Mode mode = o.scheduler.mode.mode();
      mode.off_policy() && mode.on_stale == scheduler::OnStale::kMask)
    config.max_staleness = mode.max_staleness;
  config.streams = o.scheduler.mode.hand_over == scheduler::HandOverBy::kGroups;
  config.optim = o.optim;
  config.train = o.train;
  config.train.threads = plan_threads(o).trainer;
  config.sft = o.sft;
  config.checkpoint = o.checkpoint;
  return config;
}

RolloutWorkerConfig rollout_config(const RunOptions& o, const ModelConfig& model,
                                   const PoolSection& pool, Device device) {
  RolloutWorkerConfig config;
  config.pool = pool.name;
  config.seed = static_cast<uint64_t>(o.run.seed);
  // Shapes alone: the weights come with the versions that the trainer publishes. Those are of an
  // adapter where there is one, and its base lies in files.
  config.model = model;
  if (model.lora) config.base_dir = o.model.path;
  config.compute = compute_dtype(o.model.compute, model);
  config.device = device;
  config.shares_device = o.run.colocate;
  for (const DatasetSection& dataset : datasets_of(o)) {
    RolloutDataset played{
        .env = dataset.env, .settings = dataset.settings, .rows = {}, .held_out_rows = {}};
    played.limits = o.files.limits();
    // Files that nobody uses are ones that nobody has checked. Both have the same columns: where
    // env.too_long has written one anew, it has written the other.
    const auto use = [&](std::filesystem::path& file, bool held_out) {
      RowsFile rows = rows_of(dataset, held_out);
      file = std::move(rows.file);
      played.columns = std::move(rows.columns);
    };
    if (dataset.ratio > 0) use(played.rows, /*held_out=*/false);
    if (o.eval.prompts > 0 && !dataset.eval_dataset.empty())
      use(played.held_out_rows, /*held_out=*/true);
    config.datasets.push_back(std::move(played));
  }
  config.rollout = o.rollout;
  config.rollout.threads = plan_threads(o).worker;
  config.rollout.engine.max_sequences = pool.max_sequences;
  // More would wait at the worker for a process.
  if (const int64_t agents = agents_at_once(o); agents > 0)
    config.slots = std::min(agents, pool.max_sequences);
  config.rollout.engine.keep_choices = o.algo.router_replay == RouterReplay::kReplay;
  config.keeps_sets = o.algo.sampling_mask == SamplingMask::kKeep;
  return config;
}

}  // namespace tailrace
