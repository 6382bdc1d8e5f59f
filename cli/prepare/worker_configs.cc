#include "cli/prepare/worker_configs.h"

#include <algorithm>
#include <utility>

#include "cli/config/datasets.h"
#include "cli/inputs/agents.h"
#include "cli/inputs/policies.h"
#include "cli/inputs/prompts.h"
#include "cli/inputs/threads.h"

namespace tailrace {

TrainerWorkerConfig trainer_config(const PlacedRun& placed, const WorkerSeat& seat) {
  const ResolvedRun& run = placed.run;
  const RunOptions& o = run.options;
  TrainerWorkerConfig config;
  config.worker = seat.worker;
  config.rank = seat.rank;
  config.endpoint = seat.endpoint.address;
  config.run = seat.run;
  config.tokenizer_dir = seat.run.tokenizer();
  config.colocation = seat.colocation;
  config.seed = static_cast<uint64_t>(o.run.seed);
  config.steps = o.run.steps;
  if (o.optim.schedule != LrSchedule::kConstant) config.schedule_steps = seat.most_steps;
  config.model = placed.model;
  config.compute = placed.compute;
  config.device = placed.trainer;
  config.model_dir = o.model.path;
  config.adapter_dir = o.lora.adapter;
  config.max_sequence_tokens = o.rollout.engine.max_context_tokens;
  config.anchor_interval = o.weights.anchor_interval;
  config.algo = o.algo;
  if (needs_critic(o.algo.advantage)) config.critic = o.critic;
  // Law 4.2: with mask the trainer leaves old tokens out. With drop and wait the scheduler sees to
  // it that there are none.
  if (run.mode.off_policy() && run.mode.on_stale == scheduler::OnStale::kMask)
    config.max_staleness = run.mode.max_staleness;
  config.streams = run.mode.hand_over == scheduler::HandOverBy::kGroups;
  config.optim = o.optim;
  config.train = o.train;
  config.train.threads = run.threads.trainer;
  config.num_stages = std::ssize(run.stages);
  if (!o.stages.empty()) config.num_stages = std::ssize(o.stages);
  for (const RunStage& planned : run.stages) {
    RowStage stage = planned;
    // The files of the run, which prepare_run() has made of those that the keys name.
    RowOptions& rows = stage.rows();
    rows.data = planned.has_demonstrations() ? seat.run.demonstrations().string()
                                             : seat.run.stage_rows(stage.name).string();
    if (!rows.eval_data.empty()) rows.eval_data = seat.run.stage_eval_rows(stage.name).string();
    config.stages.push_back(std::move(stage));
  }
  config.teachers = teachers_of_stages(o, placed.model);
  config.checkpoint = o.checkpoint;
  return config;
}

RolloutWorkerConfig rollout_config(const PlacedRun& placed, const PoolSection& pool,
                                   const WorkerSeat& seat) {
  const ResolvedRun& run = placed.run;
  const RunOptions& o = run.options;
  RolloutWorkerConfig config;
  config.worker = seat.worker;
  config.joined = seat.joined;
  config.cluster = seat.cluster;
  config.host = seat.host;
  config.incarnation = seat.incarnation;
  config.endpoint = seat.endpoint;
  config.patience = seat.patience;
  config.run = seat.run;
  config.tokenizer_dir = seat.run.tokenizer();
  config.chat = chat_of_run(seat.run, o);
  config.prove_inputs = seat.prove_inputs;
  config.fetch_weights = seat.fetch_weights;
  config.pool = pool.name;
  config.seed = static_cast<uint64_t>(o.run.seed);
  // Shapes alone: the weights come with the versions that the trainer publishes. Those are of an
  // adapter where there is one, and its base lies in files.
  config.model = placed.model;
  if (placed.model.lora) config.base_dir = o.model.path;
  config.compute = placed.compute;
  config.device = placed.rollout.device;
  config.shares_device = o.run.colocate && !seat.joined;
  if (config.shares_device) config.colocation = seat.colocation;
  for (const RunDataset& dataset : run.datasets) {
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
  config.rollout.threads = seat.joined ? joined_threads(o) : run.threads.worker;
  config.rollout.engine.max_sequences = pool.max_sequences;
  // More would wait at the worker for a process.
  if (const int64_t agents = agents_at_once(run.datasets); agents > 0)
    config.slots = std::min(agents, pool.max_sequences);
  config.rollout.engine.keep_choices = o.algo.router_replay == RouterReplay::kReplay;
  config.keeps_sets = o.algo.sampling_mask == SamplingMask::kKeep;
  if (auto teacher = teacher_of(o, placed.model))
    config.teacher = {.model = std::move(teacher->model), .top_k = teacher->top_k};
  if (auto remote = remote_teacher_of(o, placed.model))
    config.remote_teacher = {.name = std::move(remote->name),
                             .url = std::move(remote->url),
                             .served_as = std::move(remote->served_as),
                             .key = std::move(remote->key),
                             .top_k = remote->top_k,
                             .num_ids = placed.model.num_ids(),
                             .at_once = remote->at_once};
  return config;
}

}  // namespace tailrace
