// One episode of an environment, kept whole, so that two of them can be compared and looked at.
//
// Thread: one.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "sandbox/environment.h"

namespace tailrace {

struct PlayedEpisode {
  sandbox::Observation first;
  std::vector<std::string> actions;
  std::vector<sandbox::StepResult> steps;  // of each action, and of cut() where it was cut
  bool is_cut = false;

  double reward() const;
  const sandbox::StepResult& end() const { return steps.back(); }  // once it is played
};

// Where two episodes differ, for a person: "turn 2: reward 0 became 1". None: bit for bit the same.
std::optional<std::string> difference(const PlayedEpisode& before, const PlayedEpisode& after);

// Plays turn by turn, and cuts an episode that did not end within the turns that the environment
// names. A call that the environment answers with a Failure is a Failure here, with its turn.
class EpisodePlayer {
 public:
  explicit EpisodePlayer(sandbox::Environment& environment) : environment_(environment) {}

  Result<void> begin(const sandbox::Task& task);
  Result<void> turn(const std::string& action);
  Result<void> cut();
  bool is_done() const { return done_; }
  const PlayedEpisode& played() const { return played_; }

 private:
  Result<void> take(Result<sandbox::StepResult> result);

  sandbox::Environment& environment_;
  PlayedEpisode played_;
  bool done_ = false;
};

// Calls until the answer is not pending. A Failure after a minute.
Result<sandbox::StepResult> step_when_ready(sandbox::Environment& environment,
                                            const std::string& action);
Result<sandbox::StepResult> cut_when_ready(sandbox::Environment& environment);

using NextAction = std::function<std::string(int64_t turn)>;
Result<PlayedEpisode> play_episode(sandbox::Environment& environment, const sandbox::Task& task,
                                   const NextAction& next);

}  // namespace tailrace
