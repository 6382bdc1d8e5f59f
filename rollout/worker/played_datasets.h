// The datasets that the grants of a run name: each one's environment or program, its tasks, and
// how tokens are drawn.
//
// Thread: the owner's thread only.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/chat/prompt_format.h"
#include "core/messages/message.h"
#include "core/run/log.h"
#include "rollout/episode/episode.h"
#include "rollout/episode/task_source.h"
#include "rollout/player/player.h"
#include "rollout/worker/worker_config.h"
#include "sandbox/registry.h"

namespace tailrace {

class PlayedDatasets {
 public:
  // Borrows the config and the log. Throws UserError where a file of a dataset cannot be read.
  PlayedDatasets(const RolloutWorkerConfig& config,
                 const sandbox::EnvironmentRegistry& environments, const chat::PromptFormat& format,
                 Log& log);

  PlayerOptions player_options() const;

  // A scheduler with another config than ours could ask for what we do not know.
  bool know(const wire::Grant& grant) const;
  // The spec of a grant that know() accepts: how it is played, behind the turns that it carries.
  // Turns that do not fit cost their time again and nothing else.
  EpisodeSpec spec(const wire::Grant& grant) const;
  const EnvironmentCalls::Source& source(const wire::Grant& grant) const {
    return of(grant).source;
  }
  // The result of one that is not played.
  Trajectory refused(const wire::Grant& grant, Outcome outcome) const;

 private:
  struct Played {
    EnvironmentCalls::Source source;
    sandbox::EnvironmentInfo info;
    TaskSource tasks;
    EpisodeLimits limits;
    SamplingParams sampling, eval_sampling;
    const SamplingParams& sampling_in(Lane lane) const {
      return lane == Lane::kEval ? eval_sampling : sampling;
    }
  };
  const Played& of(const wire::Grant& grant) const {
    return played_[static_cast<size_t>(grant.lease.member.dataset)];
  }
  std::optional<Trajectory> usable_prefix(const wire::Grant& grant, const EpisodeSpec& spec) const;

  const RolloutWorkerConfig& config_;
  Log& log_;
  const std::string numerics_class_;
  std::vector<Played> played_;  // by dataset
};

}  // namespace tailrace
