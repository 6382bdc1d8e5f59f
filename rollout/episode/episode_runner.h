// Plays many episodes at once over one Generator: between two steps of it, prepare() takes what
// environments have answered, and behind each step take() hands new actions to them.
//
// Results do not depend on how episodes share the engine or on when environments answer (design
// rule 3 and counter-based sampling); only which weight version samples a token does.
//
// Thread: the owner's thread only (the generator's). Environments run elsewhere
// (environment_calls.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/generator_driver.h"
#include "core/trajectory/trajectory.h"
#include "rollout/episode/environment_calls.h"
#include "rollout/episode/episode.h"
#include "rollout/episode/options.h"
#include "sandbox/environment_source.h"

namespace tailrace {

struct FinishedEpisode {
  Trajectory trajectory;  // of a failure: what there was until then
  std::string failure;    // why it is env_failed; else empty
};

struct RunnerSettings {
  int env_threads = 1;
  Time step_timeout = std::chrono::seconds(30);
  int64_t store_turns_tokens = 0;  // take_turns(); 0: never while an episode runs
};
RunnerSettings runner_settings(const RolloutOptions& options);

class EpisodeRunner : private AnswerSink {
 public:
  // All are borrowed.
  EpisodeRunner(GeneratorDriver& generator, const chat::PromptFormat& format,
                const RunnerSettings& settings, const Clock& clock);
  ~EpisodeRunner() override;
  EpisodeRunner(const EpisodeRunner&) = delete;

  // In a fresh environment of the source. At most one episode runs for a lease and lane.
  void start(EpisodeSpec spec, EnvironmentCalls::Source source);
  // Ends an episode: the next take() returns it as kAborted with its tokens. False: none runs.
  bool abort(const LeaseId& lease, Lane lane);
  bool is_running(const LeaseId& lease, Lane lane) const {
    return by_lease_.contains({lane, lease});
  }

  std::vector<BodyId> running() const;

  // Before a step of the generator. When there is nothing to generate, waits up to `max_wait` for
  // an environment.
  void prepare(std::chrono::microseconds max_wait = {});
  // Behind it: what has ended.
  std::vector<FinishedEpisode> take();

  // Turns to be stored, so that another attempt may go on behind them (Episode::stored()). Of each
  // episode that has grown by store_turns_tokens since it gave some, and by half of what those had:
  // all that one gives together is at most three times its length. What it began with, its prompt
  // or its prefix, is no growth. When the caller leaves: of each that has turns that it did not
  // give yet.
  std::vector<Trajectory> take_turns(bool leaving = false);

  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }

 private:
  using CallKind = sandbox::EnvironmentCall::Kind;
  struct Running {
    Episode episode;
    EnvironmentCalls::Source source;
    CallKind last_call = CallKind::kReset;
    Time submitted{};           // the request to the generator
    Time asked{};               // the environment, first in this turn
    Time pending_since{};       // 0: the environment has not answered `pending` in this turn
    int64_t stored_tokens = 0;  // that take_turns() gave last, or of the prefix
  };
  using Id = SessionId;  // of an episode, its session and its calls
  using RunningMap = std::unordered_map<Id, Running>;

  void hear_environments(std::chrono::microseconds max_wait);
  void take(std::vector<EnvironmentCalls::Answer>& answers);
  void ask_pending_again();
  void answered(Generation generation) override;
  void call_environment(Id id, Running& running, CallKind kind);
  void follow(RunningMap::iterator at, Episode::Next next);
  void finish(RunningMap::iterator at);
  void hand_over();

  GeneratorDriver& generator_;
  const chat::PromptFormat& format_;
  const Clock& clock_;
  RunningMap running_;
  std::map<std::pair<Lane, LeaseId>, Id> by_lease_;
  std::vector<EnvironmentCalls::Call> calls_;  // for the next hand-over
  std::vector<Id> pending_;                    // environments that want to be asked again
  Time ask_again_{};                           // when
  std::vector<FinishedEpisode> finished_;
  double usual_call_seconds_ = 0;  // moving average
  int64_t num_handed_over_ = 0;    // calls of the last hand-over
  RunnerSettings settings_;
  EnvironmentCalls environments_;  // last: its threads end first
};

}  // namespace tailrace
