#include "cli/plan/calibrate.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "cli/inputs/fitted_prompts.h"
#include "cli/inputs/planned_model.h"
#include "cli/plan/local_run.h"
#include "cli/plan/pilot.h"
#include "cli/plan/rehearsed_rollout.h"
#include "cli/plan/rehearsed_trainer.h"
#include "cli/prepare/placed_run.h"
#include "cli/prepare/setup.h"
#include "cli/prepare/worker_configs.h"
#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/weights/manifest.h"

namespace tailrace {
namespace {

constexpr double kPlaySeconds = 10, kShortPlay = 0.5;

// Prepares the workers' files: a config, a tokenizer and nothing to learn from before RL.
// Returns what a role of that run would read of it.
PlacedRun prepare(const RunPaths& paths, const ResolvedRun& given, const Registries& registries) {
  RunOptions options = given.options;
  options.sft = {};
  options.reward_model = {};
  options.preference = {};
  options.distill = {};
  options.stages.clear();
  PlacedRun placed = place(changed(given, std::move(options)), registries.environments);
  std::error_code error;
  std::filesystem::create_directories(paths.weights(), error);
  if (error) throw UserError("{}", describe_errno("create", paths.weights(), error.value()));
  prepare_run(paths, placed, registries, [](const std::string&) {});
  find_fitted_prompts(paths, placed.run);
  return place(std::move(placed.run), registries.environments, paths);
}

RehearsedRollout::Largest largest_of(const RunOptions& o, std::span<const PlannedEpisode> step,
                                     int64_t workers) {
  RehearsedRollout::Largest largest;
  int64_t prompt = 0, all = 0;
  for (const PlannedEpisode& planned : step) {
    prompt += planned.episode.prompt_tokens;
    all += planned.episode.context();
  }
  const auto count = std::ssize(step);
  largest.batch = (count + workers - 1) / workers;
  largest.prompt = std::max<int64_t>(1, prompt / count);
  largest.context = std::max<int64_t>(largest.prompt, all / count);
  largest.group_size = o.step.group_size;
  return largest;
}

// Seconds of the workers' engines alone for a step of `groups` groups each.
double engine_seconds(const ResolvedRun& run, const Registries& registries,
                      const simulator::Hardware& worker, const EpisodeSource& episodes,
                      int64_t groups) {
  RunOptions o = run.options;
  o.step.prompts_per_step = groups;
  o.scheduler.mode = {};
  o.eval = {};
  const SimulatedMode mode = simulate_here(changed(run, std::move(o)), registries.environments,
                                           {.worker = worker}, episodes, 1);
  return mode.run.steps.empty() ? 0 : mode.run.steps[0].handed - mode.run.steps[0].begun;
}

using Say = std::function<void(const std::string&)>;

// All but what the pilot finds. `given`: local_run().
Calibration calibrate_parts(const ResolvedRun& given, const Registries& registries,
                            const EpisodeSource& known, const std::filesystem::path& folder,
                            const Say& say) {
  const RunPaths paths{folder};
  const PlacedRun placed = prepare(paths, given, registries);
  const ResolvedRun& run = placed.run;
  const RunOptions& o = run.options;
  const int64_t workers = run.rollout_workers;

  Calibration result;
  MachineCosts& costs = result.costs;
  say("loads the policy");
  const WorkerSeat seat{.run = paths};
  const RolloutWorkerConfig config = rollout_config(placed, run.pools.front(), seat);
  RehearsedTrainer trainer(trainer_config(placed, seat),
                           numerics_class(config.compute, config.device));
  (void)trainer.publish(paths.weights(), 0);
  RehearsedRollout rollout(config, workers, registries);
  // The first version takes memory that later ones have, and any may meet a busy disk.
  RehearsedTrainer::Published published;
  std::vector<double> publish, install;
  for (const int64_t version : {1, 2, 3}) {
    trainer.change_weights();  // what is known already is not read again
    published = trainer.publish(paths.weights(), version);
    publish.push_back(published.seconds);
    install.push_back(rollout.install(published));
  }
  std::ranges::sort(publish);
  std::ranges::sort(install);
  costs.train.publish = publish[1];
  costs.transfer.fetch = install[1];
  costs.transfer.payload_bytes = published.payload_bytes;

  say("plays episodes");
  const int64_t groups = std::max<int64_t>(1, o.step.prompts_per_step / workers);
  RehearsedRollout::Play play = rollout.play(o, groups, kPlaySeconds);
  if (play.whole && play.seconds < kShortPlay) {
    // The same episodes; their times are not the same.
    std::vector<double> seconds = {play.seconds};
    for (int again = 0; again < 4; ++again)
      seconds.push_back(rollout.play(o, groups, kPlaySeconds).seconds);
    std::ranges::sort(seconds);
    play.seconds = seconds[seconds.size() / 2];
  }
  EpisodeSource played;
  if (play.whole && !play.episodes.empty())
    played = std::make_shared<simulator::ReplayedEpisodes>(play.episodes, o.run.seed);
  if (known != nullptr) {
    result.episodes = known;
  } else if (played != nullptr) {
    for (PlannedEpisode& planned : play.episodes)
      planned.episode.verify_seconds = play.verify_seconds;
    result.source = fmt::format("{} that {} played now", std::ssize(play.episodes),
                                o.model.creates() ? "random weights" : "the policy as it is");
    result.episodes =
        std::make_shared<simulator::ReplayedEpisodes>(std::move(play.episodes), o.run.seed);
  } else {
    result.source = "drawn, as playing takes long: a fifth of what an answer may have, median";
    result.episodes = make_simulation(run, registries.environments).episodes;
  }
  const std::vector<PlannedEpisode> step = episodes_of_step(o, *result.episodes);
  say("decodes");
  costs.worker = rollout.measure(largest_of(o, step, workers));
  if (played != nullptr) {
    // The time that playing took beyond the engine's: environments, and the words with them. It is
    // dealt to the turns.
    const double beside =
        play.seconds - engine_seconds(run, registries, costs.worker, played, groups * workers);
    costs.worker.turn = std::max(0.0, beside) / static_cast<double>(play.turns);
  }
  say("trains");
  const simulator::TrainModel measured = trainer.measure(step);
  // Ranks share the tokens, and each makes the whole update.
  costs.train.token = measured.token / static_cast<double>(o.train.ranks);
  costs.train.update = measured.update;
  return result;
}

struct BesideTheModel {
  double turn = 0, step = 0;  // seconds
};

// The seconds of a pilot's step that a simulation of it lacks: of its samples by the
// turn, in which messages come and go, and the rest by the step.
BesideTheModel beside_the_model(const ResolvedRun& run, const Registries& registries,
                                const std::filesystem::path& program,
                                const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw UserError("{}", describe_errno("create", folder, error.value()));
  const RunPaths paths{folder / "run"};
  const ModelConfig model = planned_model(run, registries.environments);
  ResolvedRun pilot = changed(run, pilot_options(run.options, model, folder));
  const QuietStep measured = run_pilot(pilot, program, folder, paths);
  pilot = local_run(pilot, paths.root);
  const EpisodeSource episodes = make_simulation(pilot, registries.environments).episodes;
  const MachineCosts costs =
      calibrate_parts(pilot, registries, episodes, folder / "parts", [](const std::string&) {
      }).costs;
  const SimulatedMode mode =
      simulate_here(pilot, registries.environments, costs, episodes, pilot.options.run.steps);
  const simulator::RunSummary summary = mode.run.summary();
  const double rollout = std::max(0.0, measured.rollout - summary.rollout_median);
  double turns = 0;
  for (const PlannedEpisode& planned : episodes_of_step(pilot.options, *episodes))
    turns += static_cast<double>(planned.episode.turns.size());
  return {.turn = rollout * static_cast<double>(pilot.rollout_workers) / turns,
          .step = std::max(0.0, measured.whole() - summary.step_median - rollout)};
}

}  // namespace

Calibration calibrate(const ResolvedRun& run, const Registries& registries,
                      const EpisodeSource& known, const std::filesystem::path& program,
                      const std::filesystem::path& folder, const Say& say) {
  say("runs a few steps of a tiny policy");
  const BesideTheModel beside = beside_the_model(run, registries, program, folder / "pilot");
  Calibration calibration = calibrate_parts(run, registries, known, folder / "run", say);
  calibration.costs.worker.turn += beside.turn;
  calibration.costs.train.step = beside.step;
  return calibration;
}

}  // namespace tailrace
