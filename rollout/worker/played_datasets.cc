#include "rollout/worker/played_datasets.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "core/base/error.h"
#include "core/text/dataset.h"
#include "core/wire/trajectory_codec.h"
#include "kernels/base/backend.h"
#include "rollout/episode/prefix.h"

namespace tailrace {
namespace {

TaskSource task_source_for(uint64_t seed, const RolloutDataset& dataset,
                           const sandbox::EnvironmentInfo& info) {
  if (!info.needs_dataset) return TaskSource(seed);
  if (dataset.rows.empty() && dataset.held_out_rows.empty())
    throw UserError("the environment {} needs a dataset, and the config names none.", info.name);
  const auto read = [&](const std::filesystem::path& file) {
    if (file.empty()) return std::vector<text::DatasetRow>();
    auto rows = text::read_dataset(file, dataset.columns, dataset.limits);
    if (rows.empty()) throw UserError("{} has no rows.", file.string());
    return rows;
  };
  return TaskSource(seed, read(dataset.rows), read(dataset.held_out_rows));
}

}  // namespace

PlayedDatasets::PlayedDatasets(const RolloutWorkerConfig& config,
                               const sandbox::EnvironmentRegistry& environments,
                               const chat::PromptFormat& format, Log& log)
    : config_(config), log_(log), numerics_class_(numerics_class(config.compute, config.device)) {
  for (const RolloutDataset& dataset : config.datasets) {
    auto source = environments.source(dataset.env, dataset.settings);
    const sandbox::EnvironmentInfo info = source->info();
    const auto sampling_in = [&](Lane lane) {
      return episode_sampling(config.rollout.sampling_in(lane), info, config.model, format);
    };
    played_.push_back({.source = std::move(source),
                       .info = info,
                       .tasks = task_source_for(config.seed, dataset, info),
                       .limits = episode_limits(config.rollout, info),
                       .sampling = sampling_in(Lane::kTrain),
                       .eval_sampling = sampling_in(Lane::kEval)});
  }
}

PlayerOptions PlayedDatasets::player_options() const {
  PlayerOptions options{.runner = runner_settings(config_.rollout),
                        .agents_folder = config_.run.agents() / config_.worker};
  for (const Played& played : played_)
    if (const auto agent = played.source->agent())
      options.max_request_bytes = std::max(options.max_request_bytes, agent->max_request_bytes);
  return options;
}

bool PlayedDatasets::know(const wire::Grant& grant) const {
  return static_cast<size_t>(grant.lease.member.dataset) < played_.size();
}

EpisodeSpec PlayedDatasets::spec(const wire::Grant& grant) const {
  const Played& played = of(grant);
  const bool evaluates = grant.lane == Lane::kEval;
  EpisodeSpec spec{.lease = grant.lease,
                   .lane = grant.lane,
                   .task = played.tasks.task(grant.lane, grant.lease.member),
                   .key = member_key(config_.seed, grant.lane, grant.lease.member),
                   .sampling = played.sampling_in(grant.lane),
                   .limits = played.limits,
                   .numerics_class = numerics_class_,
                   .keeps_sets = config_.keeps_sets && !evaluates,
                   .experts = config_.rollout.engine.keep_choices && !evaluates
                                  ? config_.model.expert_shape()
                                  : ExpertShape{}};
  if (config_.rollout.greedy_member && is_greedy_member(grant.lane, grant.lease.member))
    spec.sampling.temperature = 0;
  // A program cannot be told again what it has heard.
  if (played.source->agent() == nullptr) spec.prefix = usable_prefix(grant, spec);
  return spec;
}

std::optional<Trajectory> PlayedDatasets::usable_prefix(const wire::Grant& grant,
                                                        const EpisodeSpec& spec) const {
  if (grant.prefix.empty()) return std::nullopt;
  const std::string name = fmt::format("{} lane={}", to_string(grant.lease), name_of(grant.lane));
  const auto ignore = [&](const std::string& reason) {
    log_.warning("prefix ignored {} reason=it {}", name, reason);
    return std::nullopt;
  };
  auto decoded = wire::decode_trajectory(grant.prefix);
  if (!decoded) return ignore("cannot be read: " + decoded.failure().message);
  Trajectory& prefix = decoded.value();
  if (auto misfit = find_misfit(prefix, spec, of(grant).info.name, config_.model.num_ids()))
    return ignore(*misfit);
  if (grant.lane == Lane::kEval &&
      (prefix.min_version() != grant.version || prefix.max_version() != grant.version))
    return ignore("was sampled by another version");
  log_.info("goes on {} turns={} tokens={}", name, prefix.turns, prefix.num_tokens());
  return std::move(prefix);
}

Trajectory PlayedDatasets::refused(const wire::Grant& grant, Outcome outcome) const {
  Trajectory trajectory;
  trajectory.lease = grant.lease;
  trajectory.lane = grant.lane;
  if (know(grant)) {
    trajectory.env = of(grant).info.name;
    trajectory.sampling = of(grant).sampling_in(grant.lane);
  }
  trajectory.outcome = outcome;
  return trajectory;
}

}  // namespace tailrace
