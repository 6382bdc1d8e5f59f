// An episode that a test plays by hand: what an environment answers is encoded at once.
#pragma once

#include <utility>

#include "rollout/episode/episode.h"
#include "sandbox/environment_source.h"

namespace tailrace {

struct PlayedEpisode : Episode {
  using Episode::Episode;

  Next observed(Result<sandbox::Observation> first, double seconds) {
    return Episode::observed(heard(sandbox::first_step(std::move(first))), seconds);
  }
  Next stepped(Result<sandbox::StepResult> result, double seconds) {
    return Episode::stepped(heard(std::move(result)), seconds);
  }

 private:
  Result<Heard> heard(Result<sandbox::StepResult> answer) const {
    if (!answer) return answer.failure();
    Result<Heard> heard = Heard{.step = std::move(answer).value()};
    encoder()(heard);
    return heard;
  }
};

}  // namespace tailrace
