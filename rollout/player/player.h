// Plays environments and agents over one Generator, and is the one who steps it. An agent's calls
// come through a gateway, which is there where a player serves agents.
//
// Thread: the owner's thread only (the generator's). Environments and programs run elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/chat/prompt_format.h"
#include "core/generator_driver.h"
#include "core/trajectory/trajectory.h"
#include "rollout/agent/agent_runner.h"
#include "rollout/episode/episode_runner.h"
#include "rollout/gateway/gateway.h"
#include "sandbox/environment_source.h"

namespace tailrace {

struct PlayerOptions {
  RunnerSettings runner = {};
  int64_t max_request_bytes = 0;             // of an agent; 0: there are none
  std::filesystem::path agents_folder = {};  // as of AgentProcesses
};

class Player {
 public:
  // Borrows all but the options. Throws UserError where the gateway gets no port.
  Player(Generator& generator, const chat::PromptFormat& format, const PlayerOptions& options,
         const Clock& clock);
  Player(const Player&) = delete;

  // In a fresh environment of the source, or by its program. At most one episode runs for a lease
  // and lane. A program begins at its beginning, whatever the prefix of the spec.
  void start(EpisodeSpec spec, std::shared_ptr<const sandbox::EnvironmentSource> source);
  // Ends an episode: of an environment the next poll() returns it as kAborted with its tokens, of
  // an agent nothing more is heard. False: none runs.
  bool abort(const BodyId& id);
  bool is_running(const BodyId& id) const;
  std::vector<BodyId> running() const;
  int64_t num_running() const;

  // Makes progress, a step of the generator at most; returns what ended. When there is nothing to
  // generate, waits up to `max_wait` for an environment, and no longer than a moment where agents
  // play.
  std::vector<FinishedEpisode> poll(std::chrono::microseconds max_wait);

  // With environments: EpisodeRunner::take_turns().
  std::vector<Trajectory> take_turns(bool leaving = false) { return runner_.take_turns(leaving); }
  // With agents: AgentRunner::take_notes(), and the call that is being read for long.
  std::vector<std::string> take_notes(bool is_end);
  std::optional<gateway::HeldCall> held() const;

 private:
  // Where there are agents.
  struct Agents {
    Agents(GeneratorDriver& driver, const chat::PromptFormat& format, const PlayerOptions& options,
           const Clock& clock);

    gateway::Gateway gateway;
    AgentRunner runner;
  };

  GeneratorDriver driver_;
  EpisodeRunner runner_;
  std::unique_ptr<Agents> agents_;  // null: environments alone
};

}  // namespace tailrace
