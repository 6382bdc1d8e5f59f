#include "cli/plan/calibrate.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "cli/plan/lengths.h"
#include "cli/plan/pilot.h"
#include "cli/plan/predict.h"
#include "cli/plan/rehearsed_rollout.h"
#include "cli/plan/rehearsed_trainer.h"
#include "cli/run/plan.h"
#include "cli/run/pools.h"
#include "cli/run/prompts.h"
#include "cli/run/setup.h"
#include "cli/run/worker_configs.h"
#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/text/tokenizer.h"

namespace tailrace {
namespace {

constexpr double kPlaySeconds = 10, kShortPlay = 0.5;

// What the workers read: a config, a tokenizer and nothing to learn from before RL.
void prepare(const RunPaths& paths, RunOptions options, const Registries& registries) {
  options.sft.demonstrations = 0;
  options.sft.data.clear();
  options.sft.eval_data.clear();
  std::error_code error;
  std::filesystem::create_directories(paths.weights(), error);
  if (error) throw UserError("{}", describe_errno("create", paths.weights(), error.value()));
  prepare_run(paths, options, registries, [](const std::string&) {});
}

RehearsedRollout::Largest largest_of(const RunOptions& o, const PlannedEpisodes& step,
                                     int64_t workers) {
  RehearsedRollout::Largest largest;
  const auto count = std::max<int64_t>(1, std::ssize(step.episodes));
  int64_t prompt = 0, all = 0;
  for (const PlannedEpisode& planned : step.episodes) {
    prompt += planned.episode.prompt_tokens;
    all += tokens_of(planned.episode);
  }
  largest.batch = (o.step.prompts_per_step * o.step.group_size + workers - 1) / workers;
  largest.prompt = std::max<int64_t>(1, prompt / count);
  largest.context = std::max<int64_t>(largest.prompt, all / count);
  largest.group_size = o.step.group_size;
  return largest;
}

using Say = std::function<void(const std::string&)>;

// All but what the pilot finds.
Calibration calibrate_parts(const RunOptions& o, const Registries& registries,
                            const PlannedEpisodes& known, const std::filesystem::path& folder,
                            const Say& say) {
  const RunPaths paths{folder};
  prepare(paths, o, registries);
  ModelConfig model = planned_model(o, registries.environments);
  model.padded_ids = num_padded_ids(paths.tokenizer(), model);
  const int64_t workers = num_rollout_workers(o);

  Calibration result;
  MachineCosts& costs = result.costs;
  say("loads the policy");
  RehearsedTrainer trainer(trainer_config(o, model));
  (void)trainer.publish(paths.weights(), 0);

  RolloutWorkerConfig config = rollout_config(o, model, pools_of(o).front());
  config.run = paths;
  config.tokenizer_dir = paths.tokenizer();
  config.chat = chat_of_run(paths, o);
  RehearsedRollout rollout(config, workers, registries);
  // The first versions take memory that later ones have.
  RehearsedTrainer::Published published;
  for (const int64_t version : {1, 2, 3}) {
    trainer.change_weights();  // what is known already is not read again
    published = trainer.publish(paths.weights(), version);
    costs.transfer.fetch = rollout.install(published);
  }
  costs.train.publish = published.seconds;
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
  if (play.whole) {
    for (const auto& episodes : play.episodes)
      for (const PlannedEpisode& planned : episodes) {
        result.played.episodes.push_back(planned);
        result.played.episodes.back().episode.verify_seconds = play.verify_seconds;
      }
    result.played.source =
        fmt::format("{} played now by {}", std::ssize(result.played.episodes),
                    o.model.creates() ? "random weights" : "the policy as it is");
  }
  const PlannedEpisodes step = !known.episodes.empty()           ? known
                               : !result.played.episodes.empty() ? result.played
                                                                 : longest_episodes(o, 0);
  say("decodes");
  costs.worker = rollout.measure(largest_of(o, step, workers));
  if (play.whole) {
    double engine = 0;
    int64_t turns = 0;
    for (const auto& episodes : play.episodes) {
      engine = std::max(
          engine, play_time(costs.worker, 0, o.rollout.engine.max_sequences, episodes).seconds);
      int64_t of_worker = 0;
      for (const PlannedEpisode& planned : episodes) of_worker += std::ssize(planned.episode.turns);
      turns = std::max(turns, of_worker);
    }
    if (turns > 0)
      costs.turn_seconds = std::max(0.0, play.seconds - engine) / static_cast<double>(turns);
  }
  say("trains");
  const simulator::TrainModel measured = trainer.measure(step.episodes, o.step.prompts_per_step);
  // Ranks share the tokens, and each makes the whole update.
  costs.train.token = measured.token / static_cast<double>(o.train.ranks);
  costs.train.update = measured.update;
  return result;
}

// What is left of a step of the pilot when the arithmetic of its policy is taken away.
double seconds_beside_the_model(const RunOptions& o, const Registries& registries,
                                const std::filesystem::path& program,
                                const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw UserError("{}", describe_errno("create", folder, error.value()));
  const RunOptions pilot = pilot_options(o, planned_model(o, registries.environments), folder);
  const PilotRun run = run_pilot(pilot, program, folder);
  const MachineCosts costs =
      calibrate_parts(pilot, registries, run.episodes, folder / "parts", [](const std::string&) {
      }).costs;
  std::vector<StepTime> steps;
  for (const auto& step : steps_of(pilot, run.episodes))
    steps.push_back(predict_step(pilot, costs, step));
  return std::max(0.0, run.step_seconds - mean(steps).step);
}

}  // namespace

Calibration calibrate(const RunOptions& o, const Registries& registries,
                      const PlannedEpisodes& known, const std::filesystem::path& program,
                      const std::filesystem::path& folder, const Say& say) {
  say("runs a few steps of a tiny policy");
  const double beside = seconds_beside_the_model(o, registries, program, folder / "pilot");
  Calibration calibration = calibrate_parts(o, registries, known, folder / "run", say);
  calibration.costs.beside_seconds = beside;
  return calibration;
}

}  // namespace tailrace
