#include "cli/run/simulation.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "cli/run/datasets.h"
#include "cli/run/named_file.h"
#include "cli/run/plan.h"
#include "cli/run/pools.h"
#include "cli/run/recorded_episodes.h"
#include "cli/run/rewards.h"
#include "cli/run/setup.h"
#include "core/base/error.h"
#include "core/model/parameters.h"
#include "reward/worker/worker.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
using simulator::Distribution;

constexpr double kBytesPerSecond = 1e6 / 8;  // of 1 Mbit/s

Distribution log_normal(double median, double sigma) {
  if (median == 0 || sigma == 0) return {Distribution::Kind::kConstant, median};
  return {Distribution::Kind::kLogNormal, median, sigma};
}

int64_t prompt_of(const RunOptions& o) {
  constexpr int64_t kUsual = 500;
  if (o.simulate.episodes.prompt_tokens > 0) return o.simulate.episodes.prompt_tokens;
  const int64_t context = o.rollout.engine.max_context_tokens;
  return context > 0 ? std::min(kUsual, context / 2) : kUsual;
}

int64_t limit_of(const RunOptions& o) {
  const SimulatedEpisodesSection& episodes = o.simulate.episodes;
  if (episodes.limit_tokens > 0) return episodes.limit_tokens;
  if (o.rollout.max_response_tokens > 0) return o.rollout.max_response_tokens;
  const int64_t context = o.rollout.engine.max_context_tokens;
  if (context == 0) return 0;
  const int64_t prompt = prompt_of(o);
  if (context <= prompt)
    throw UserError::at("simulate.episodes.prompt_tokens",
                        "is {}, but a context has {} tokens (rollout.max_context_tokens): nothing "
                        "is left for a response. Try prompt_tokens: {}.",
                        prompt, context, context / 2);
  return context - prompt;
}

simulator::EpisodeModel episode_model(const RunOptions& o) {
  const SimulatedEpisodesSection& e = o.simulate.episodes;
  constexpr double kUsualMedian = 1500;
  const auto limit = static_cast<double>(limit_of(o)),
             given = static_cast<double>(e.response_tokens);
  return {.prompt_tokens = prompt_of(o),
          .length = {.median = given > 0   ? given
                               : limit > 0 ? std::max(1.0, limit / 5)
                                           : kUsualMedian,
                     .sigma_prompt = e.sigma_prompt,
                     .sigma_response = e.sigma_response,
                     .endless = e.endless_ratio,
                     .limit = limit_of(o)},
          .turns = {Distribution::Kind::kConstant, e.turns},
          .env_tokens = e.env_tokens,
          .reset = log_normal(e.reset_seconds, e.reset_sigma),
          .env = log_normal(e.env_seconds, e.env_sigma),
          .verify = log_normal(e.verify_seconds, e.verify_sigma),
          .success = e.success};
}

// What was played, as the simulator has it.
simulator::Episode episode_of(const RecordedEpisode& recorded) {
  simulator::Episode episode{.prompt_tokens = recorded.prompt_tokens,
                             .reset_seconds = recorded.reset_seconds,
                             .turns = {},
                             .truncated = recorded.outcome == Outcome::kTruncated,
                             .reward = recorded.reward.value_or(0),
                             .verify_seconds = recorded.verify_seconds};
  for (const RecordedTurn& turn : recorded.turns)
    episode.turns.push_back({.tokens = std::max<int64_t>(1, turn.tokens),
                             .env_seconds = turn.env_seconds,
                             .env_tokens = turn.env_tokens});
  return episode;
}

std::vector<simulator::ReplayedEpisodes::Record> records_of(const RunOptions& o) {
  constexpr std::string_view kKey = "simulate.episodes.from";
  std::vector<simulator::ReplayedEpisodes::Record> records;
  for (const auto& [member, recorded] : read_named(
           std::string(kKey), [&] { return read_recorded_episodes(o.simulate.episodes.from); }))
    if (!recorded.turns.empty())
      records.push_back({.lane = Lane::kTrain, .member = member, .episode = episode_of(recorded)});
  if (records.empty())
    throw UserError::at(kKey, "is {}, whose episodes sampled nothing. Try another run.",
                        o.simulate.episodes.from);
  return records;
}

std::unique_ptr<simulator::EpisodeSource> episodes_of(const RunOptions& o) {
  const auto seed = static_cast<uint64_t>(o.simulate.seed);
  if (!o.simulate.episodes.from.empty())
    return std::make_unique<simulator::ReplayedEpisodes>(records_of(o), seed);
  return std::make_unique<simulator::DrawnEpisodes>(
      std::vector<simulator::EpisodeModel>(datasets_of(o).size(), episode_model(o)), seed);
}

// What a worker fetches of a version: its parameters in float32, or the adapter's. 0: not known.
int64_t payload_of(const RunOptions& o, const sandbox::EnvironmentRegistry& environments) {
  if (o.simulate.weights.payload_bytes > 0) return o.simulate.weights.payload_bytes;
  if (!o.model.creates() && !fs::exists(fs::path(o.model.path) / "config.json")) return 0;
  const ModelConfig config = planned_model(o, environments);
  const ParameterLayout layout =
      config.lora ? ParameterLayout::of_adapter(config) : ParameterLayout(config);
  return layout.num_parameters() * static_cast<int64_t>(sizeof(float));
}

// Mbit/s between the scheduler's host and the cluster of a pool; 0: none, or not known.
double link_of(const RunOptions& o, const std::string& cluster) {
  const auto found = std::ranges::find(o.clusters, cluster, &ClusterSection::name);
  return found == o.clusters.end() ? 0 : static_cast<double>(found->link_mbit);
}

simulator::TrainModel train_model(const RunOptions& o) {
  const SimulatedTrainerSection& t = o.simulate.trainer;
  const HardwareSection hardware =
      hardware_section(o.simulate, t.hardware, "simulate.trainer.hardware");
  const auto workers = static_cast<double>(t.workers),
             passes = static_cast<double>(o.train.ppo_epochs);
  const double rate = hardware.train_tokens_per_s * workers;
  return {
      .step = t.step_seconds,
      .token = rate > 0 ? passes / rate : 0,
      .update = t.update_seconds * passes * static_cast<double>(o.train.minibatches_per_step),
      .publish = t.publish_seconds,
      .save = t.save_seconds,
      .price_per_hour = hardware.price_per_hour * static_cast<double>(hardware.devices) * workers};
}

simulator::FaultModel fault_model(const SimulatedFaultsSection& f) {
  constexpr double kHour = 3600;
  return {.rollout_mean = f.worker_mtbf_hours * kHour,
          .trainer_mean = f.trainer_mtbf_hours * kHour,
          .noticed = f.noticed_seconds,
          .restart = f.restart_seconds,
          .hang_mean = f.hang_mtbf_hours * kHour,
          .hang = f.hang_seconds,
          .env = f.env_failed,
          .install = f.install_failed,
          .broken_task = f.broken_tasks};
}

// Its pools with their hardware; a run without pools has one that has no name.
void add_pools(const RunOptions& o, int64_t payload, Simulation& simulation) {
  const SimulateSection& s = o.simulate;
  const std::vector<PoolSection> pools = pools_of(o);
  if (s.workers > 0 && pools.size() > 1)
    throw UserError::at("simulate.workers",
                        "is {}, but rollout.pools has several pools. Say it of each: "
                        "simulate.pools: [{{name: {}, workers: {}}}].",
                        s.workers, pools[0].name, s.workers);
  simulation.cluster.pools.clear();
  for (const PoolSection& pool : pools) {
    const auto own = std::ranges::find(s.pools, pool.name, &SimulatedPoolSection::name);
    const bool has_own = own != s.pools.end();
    const std::string name = has_own && !own->hardware.empty() ? own->hardware : s.rollout_hardware;
    const int64_t workers = has_own && own->workers > 0 ? own->workers
                            : s.workers > 0             ? s.workers
                                                        : pool.workers;
    const double shared =
        s.weights.shared_link_mbit > 0 ? s.weights.shared_link_mbit : link_of(o, pool.cluster);
    simulation.cluster.pools.push_back(
        {.name = pool.name,
         .workers = workers,
         .slots = pool.max_sequences,
         .hardware = hardware_of(s, name),
         .transfer = {.payload_bytes = static_cast<double>(payload),
                      .fetch = s.weights.fetch_seconds,
                      .bytes_per_s = s.weights.link_mbit * kBytesPerSecond,
                      .shared_bytes_per_s = shared * kBytesPerSecond,
                      .switch_over = s.weights.switch_ms / 1000},
         .lockstep = s.lockstep,
         .store_turns_tokens = o.rollout.store_turns_tokens});
    simulation.rollout_workers += workers;
    simulation.rollout_devices +=
        workers * hardware_section(s, name, "simulate.rollout_hardware").devices;
  }
}

}  // namespace

Simulation make_simulation(const RunOptions& options,
                           const sandbox::EnvironmentRegistry& environments) {
  const SimulateSection& s = options.simulate;
  RunOptions run = options;
  if (s.steps > 0) run.run.steps = s.steps;
  Simulation simulation;
  simulation.law = scheduler_config(run);
  simulation.episodes = episodes_of(options);
  simulation.seed = static_cast<uint64_t>(s.seed);
  simulation.seconds = s.days * 86400;
  const int64_t payload = payload_of(options, environments);
  if (s.hardware.empty())
    simulation.notes.push_back(
        "simulate.hardware lists none: its defaults are taken, about an H100 with a dense policy "
        "of 8 B parameters");
  const bool has_link = s.weights.link_mbit > 0 || s.weights.shared_link_mbit > 0;
  if (payload == 0 && has_link)
    simulation.notes.push_back(
        "the size of the weights is not known (simulate.weights.payload_bytes): their transfer "
        "takes simulate.weights.fetch_seconds alone");
  add_pools(options, payload, simulation);
  simulator::Cluster& cluster = simulation.cluster;
  cluster.reward_workers = s.reward_workers > 0 ? s.reward_workers : options.reward.workers;
  cluster.reward_slots =
      std::max<int64_t>(RewardWorkerOptions{}.threads, scores_at_once(options.reward));
  cluster.trainer = train_model(options);
  cluster.faults = fault_model(s.faults);
  cluster.wire.delay = s.message_ms / 1000;
  simulation.trainer_devices =
      s.trainer.workers *
      hardware_section(s, s.trainer.hardware, "simulate.trainer.hardware").devices;
  return simulation;
}

}  // namespace tailrace
