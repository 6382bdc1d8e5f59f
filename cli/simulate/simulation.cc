#include "cli/simulate/simulation.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "cli/config/named_file.h"
#include "cli/inputs/planned_model.h"
#include "cli/inputs/rewards.h"
#include "cli/prepare/placed_run.h"
#include "cli/prepare/setup.h"
#include "cli/simulate/recorded_episodes.h"
#include "core/base/error.h"
#include "core/model/compute.h"
#include "core/model/parameters.h"
#include "core/weights/manifest.h"
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

int64_t context_of(const RunOptions& o) {
  const RolloutOptions& limits = o.rollout;
  if (limits.engine.max_context_tokens > 0) return limits.engine.max_context_tokens;
  const bool both = limits.max_prompt_tokens > 0 && limits.max_response_tokens > 0;
  return both ? limits.max_prompt_tokens + limits.max_response_tokens : 0;
}

int64_t prompt_of(const RunOptions& o) {
  constexpr int64_t kUsual = 500;
  if (o.simulate.episodes.prompt_tokens > 0) return o.simulate.episodes.prompt_tokens;
  const int64_t context = context_of(o);
  return context > 0 ? std::min(kUsual, context / 2) : kUsual;
}

int64_t limit_of(const RunOptions& o) {
  const int64_t given = o.simulate.episodes.limit_tokens;
  return given > 0 ? given : o.rollout.max_response_tokens;
}

// Most tokens of a context: where nothing is limited, those of the smallest KV. 0: any number.
int64_t most_context(const RunOptions& o, const std::vector<simulator::PoolModel>& pools) {
  int64_t most = context_of(o);
  if (most > 0 || limit_of(o) > 0) return most;
  for (const simulator::PoolModel& pool : pools)
    if (const int64_t kv = pool.hardware.kv_tokens; kv > 0 && (most == 0 || kv < most)) most = kv;
  return most;
}

// Tokens that may follow a prompt of so many, observations included; 0: any number. Throws
// UserError about `key`, which gives the prompt, where nothing may.
int64_t room_behind(int64_t prompt, const RunOptions& o,
                    const std::vector<simulator::PoolModel>& pools, std::string_view key) {
  const int64_t limit = limit_of(o);
  const int64_t context = most_context(o, pools);
  if (context == 0) return limit;
  if (context <= prompt)
    throw UserError::at(key,
                        "is {}, but a context has {} tokens ({}): nothing is left for a response. "
                        "Try prompt_tokens: {}.",
                        prompt, context,
                        context_of(o) > 0 ? "rollout.max_context_tokens" : "kv_tokens",
                        context / 2);
  return limit > 0 ? std::min(limit, context - prompt) : context - prompt;
}

// Each worker's KV holds any episode alone, or it would never end on real hardware.
void check_kv(const std::vector<simulator::PoolModel>& pools, int64_t context,
              std::string_view why) {
  for (const simulator::PoolModel& pool : pools)
    if (const int64_t kv = pool.hardware.kv_tokens; kv > 0 && kv < context)
      throw UserError::at(fmt::format("hardware.{}.kv_tokens", pool.hardware.name),
                          "is {}, and one episode may need {} ({}).\n       Try kv_tokens: {}, or "
                          "lower limits: episodes.limit_tokens, "
                          "rollout.max_context_tokens.",
                          kv, context, why, context);
}

simulator::EpisodeModel episode_model(const RunOptions& o, int64_t prompt, int64_t room) {
  const SimulatedEpisodesSection& e = o.simulate.episodes;
  constexpr double kUsualMedian = 1500;
  // Where only the KV of the hardware bounds a context, it says nothing of how long answers are.
  const bool is_limited = limit_of(o) > 0 || context_of(o) > 0;
  const auto limit = static_cast<double>(is_limited ? room : 0),
             given = static_cast<double>(e.response_tokens);
  return {.prompt_tokens = prompt,
          .length = {.median = given > 0   ? given
                               : limit > 0 ? std::max(1.0, limit / 5)
                                           : kUsualMedian,
                     .sigma_prompt = e.sigma_prompt,
                     .sigma_response = e.sigma_response,
                     .endless = e.endless_ratio,
                     .limit = room},
          .turns = {Distribution::Kind::kConstant, e.turns},
          .env_tokens = e.env_tokens,
          .room = room,
          .reset = log_normal(e.reset_seconds, e.reset_sigma),
          .env = log_normal(e.env_seconds, e.env_sigma),
          .verify = log_normal(e.verify_seconds, e.verify_sigma),
          .success = e.success};
}

std::unique_ptr<simulator::EpisodeSource> replayed(const RunOptions& o, Simulation& simulation) {
  constexpr std::string_view kKey = "episodes.from";
  const std::vector<simulator::PoolModel>& pools = simulation.cluster.pools;
  std::vector<simulator::ReplayedEpisodes::Record> records;
  int64_t cut = 0, longest = 0;
  const auto recorded = read_named(std::string(kKey), [&] {
    return read_recorded_episodes(o.simulate.episodes.from, &simulation.notes);
  });
  for (const auto& [member, found] : recorded) {
    if (found.turns.empty()) continue;
    simulator::Episode episode = episode_of(found);
    const int64_t context = most_context(o, pools);
    if (context > 0 && episode.prompt_tokens >= context)
      throw UserError::at(kKey,
                          "is {}, with a prompt of {} tokens ({}), but a context has {} ({}). "
                          "Raise it, or try another run.",
                          o.simulate.episodes.from, episode.prompt_tokens, to_string(member),
                          context, context_of(o) > 0 ? "rollout.max_context_tokens" : "kv_tokens");
    if (const int64_t room = room_behind(episode.prompt_tokens, o, pools, kKey); room > 0)
      cut += episode.cut(room);
    longest = std::max(longest, episode.context());
    records.push_back({.member = member, .episode = std::move(episode)});
  }
  if (records.empty())
    throw UserError::at(kKey, "is {}, whose episodes sampled nothing. Try another run.",
                        o.simulate.episodes.from);
  check_kv(pools, longest, "of episodes.from");
  if (cut > 0)
    simulation.notes.push_back(fmt::format(
        "{} of {} recorded episodes are longer than this run allows, and end at its limit", cut,
        records.size()));
  return std::make_unique<simulator::ReplayedEpisodes>(std::move(records), simulation.seed);
}

std::unique_ptr<simulator::EpisodeSource> drawn(const ResolvedRun& run, Simulation& simulation) {
  const RunOptions& o = run.options;
  const std::vector<simulator::PoolModel>& pools = simulation.cluster.pools;
  const int64_t prompt = prompt_of(o);
  const int64_t room = room_behind(prompt, o, pools, "episodes.prompt_tokens");
  check_kv(pools, prompt + room, fmt::format("a prompt of {} and a response of {}", prompt, room));
  const SimulatedEpisodesSection& e = o.simulate.episodes;
  // A turn has a token at least, and the environment answers behind each but the last.
  const double least = e.turns + (e.turns - 1) * static_cast<double>(e.env_tokens);
  if (room > 0 && least > static_cast<double>(room))
    simulation.notes.push_back(
        fmt::format("{:g} turns (hardware.episodes.turns) with {} tokens of the environment behind "
                    "each do not fit in the {} tokens that may follow a prompt: episodes are "
                    "truncated there",
                    e.turns, e.env_tokens, room));
  return std::make_unique<simulator::DrawnEpisodes>(
      std::vector<simulator::EpisodeModel>(run.datasets.size(), episode_model(o, prompt, room)),
      simulation.seed);
}

// Bytes that a worker fetches of a version, whole: a delta, of which nobody knows how much changes,
// is weights.payload_bytes. 0: not known.
int64_t payload_of(const ResolvedRun& run, const sandbox::EnvironmentRegistry& environments) {
  const RunOptions& o = run.options;
  if (o.simulate.weights.payload_bytes > 0) return o.simulate.weights.payload_bytes;
  if (!knows_model(o)) return 0;
  const ModelConfig config = planned_model(run, environments);
  const ParameterLayout layout =
      config.lora ? ParameterLayout::of_adapter(config) : ParameterLayout(config);
  return published_bytes(layout, compute_dtype(o.model.compute, config));
}

// Mbit/s between the scheduler's host and the cluster of a pool; 0: none, or not known.
double link_of(const RunOptions& o, const std::string& cluster) {
  const auto found = std::ranges::find(o.clusters, cluster, &ClusterSection::name);
  return found == o.clusters.end() ? 0 : static_cast<double>(found->link_mbit);
}

simulator::TrainModel train_model(const RunOptions& o, const HardwareSection& hardware) {
  const SimulatedTrainerSection& t = o.simulate.trainer;
  const auto workers = static_cast<double>(t.workers),
             passes = static_cast<double>(o.train.ppo_epochs);
  const double rate = hardware.train_tokens_per_s * workers;
  return {.step = t.step_seconds,
          .token = rate > 0 ? passes / rate : 0,
          .update = t.update_seconds * passes * static_cast<double>(o.train.minibatches_per_step),
          .publish = t.publish_seconds,
          .save = t.save_seconds,
          .drops_equal_groups = o.algo.filter_zero_signal == ZeroSignalFilter::kDrop &&
                                compares_members(o.algo.advantage),
          // By turns with the rollout worker, whose device it has.
          .price_per_hour = o.run.colocate ? 0
                                           : hardware.price_per_hour *
                                                 static_cast<double>(hardware.devices) * workers};
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

// The pools of the run with their hardware, and as many workers as the hardware file says.
void set_pools(const ResolvedRun& run, int64_t payload, simulator::Cluster& cluster) {
  const RunOptions& o = run.options;
  const SimulateSection& s = o.simulate;
  const std::vector<PoolSection>& pools = run.pools;
  if (s.workers > 0 && pools.size() > 1)
    throw UserError::at("workers",
                        "is {}, but rollout.pools has several pools. Say it of each: "
                        "pools: [{{name: {}, workers: {}}}].",
                        s.workers, pools[0].name, s.workers);
  for (size_t i = 0; i < pools.size(); ++i) {
    simulator::PoolModel& pool = cluster.pools[i];
    const auto own = std::ranges::find(s.pools, pool.name, &SimulatedPoolSection::name);
    const bool has_own = own != s.pools.end();
    pool.hardware =
        hardware_of(s, has_own && !own->hardware.empty() ? own->hardware : s.rollout_hardware);
    if (has_own && own->workers > 0)
      pool.workers = own->workers;
    else if (s.workers > 0)
      pool.workers = s.workers;
    // Workers of a pool in a cluster take their weights over the cluster's link.
    const double shared =
        s.weights.shared_link_mbit > 0 ? s.weights.shared_link_mbit : link_of(o, pools[i].cluster);
    pool.transfer = {.payload_bytes = static_cast<double>(payload),
                     .fetch = s.weights.fetch_seconds,
                     .bytes_per_s = s.weights.link_mbit * kBytesPerSecond,
                     .shared_bytes_per_s = shared * kBytesPerSecond,
                     .switch_over = s.weights.switch_ms / 1000};
    pool.lockstep = s.lockstep;
  }
}

}  // namespace

int64_t Simulation::rollout_workers() const {
  int64_t workers = 0;
  for (const simulator::PoolModel& pool : cluster.pools) workers += pool.workers;
  return workers;
}

int64_t Simulation::rollout_devices() const {
  int64_t devices = 0;
  for (const simulator::PoolModel& pool : cluster.pools)
    devices += pool.workers * pool.hardware.devices;
  return devices;
}

bool knows_model(const RunOptions& options) {
  return options.model.creates() || fs::exists(fs::path(options.model.path) / "config.json");
}

simulator::Cluster cluster_of(const ResolvedRun& run) {
  const RunOptions& options = run.options;
  simulator::Cluster cluster;
  cluster.pools.clear();
  for (const PoolSection& pool : run.pools)
    cluster.pools.push_back({.name = pool.name,
                             .workers = pool.workers,
                             .slots = pool.max_sequences,
                             .store_turns_tokens = options.rollout.store_turns_tokens});
  cluster.reward_workers = options.reward.workers;
  cluster.reward_slots = std::max<int64_t>(RewardWorkerOptions{}.threads, run.rewards.at_once);
  return cluster;
}

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

Simulation make_simulation(const ResolvedRun& run,
                           const sandbox::EnvironmentRegistry& environments) {
  const RunOptions& options = run.options;
  const SimulateSection& s = options.simulate;
  ResolvedRun simulated = run;
  if (s.steps > 0) simulated.options.run.steps = s.steps;
  Simulation simulation;
  simulation.law = scheduler_config(simulated);
  simulation.seed = static_cast<uint64_t>(s.seed);
  simulation.seconds = s.days * 86400;
  simulation.trainer_hardware = hardware_section(s, s.trainer.hardware);
  simulation.trainer_workers = s.trainer.workers;
  simulation.takes_turns = options.run.colocate;
  const int64_t payload = payload_of(run, environments);
  if (s.hardware.empty())
    simulation.notes.push_back(
        "hardware lists none: its defaults are taken, about an H100 with a dense policy "
        "of 8 B parameters");
  const bool has_link = s.weights.link_mbit > 0 || s.weights.shared_link_mbit > 0;
  if (payload == 0 && has_link)
    simulation.notes.push_back(
        "the size of the weights is not known (hardware.weights.payload_bytes): their transfer "
        "takes hardware.weights.fetch_seconds alone");
  simulator::Cluster& cluster = simulation.cluster;
  cluster = cluster_of(run);
  set_pools(run, payload, cluster);
  if (s.reward_workers > 0) cluster.reward_workers = s.reward_workers;
  cluster.trainer = train_model(options, simulation.trainer_hardware);
  cluster.faults = fault_model(s.faults);
  cluster.wire.delay = s.message_ms / 1000;
  simulation.episodes =
      s.episodes.from.empty() ? drawn(run, simulation) : replayed(options, simulation);
  return simulation;
}

}  // namespace tailrace
