// Plays episodes of programs that play by themselves (sandbox/agent_program.h): each is a process
// that asks the policy through the gateway, and an attempt of it whose calls become a trajectory.
//
// How an episode ends:
//   - the program has ended well, and says what it was worth, or a verifier will: finished;
//   - it asked for more calls, or a longer context, than there is: truncated; without a reward of
//     its own it is worth 0, for this was the policy's doing;
//   - it crashed, was late, left a process behind, gave no reward, or never asked the policy:
//     env_failed. No sample, and never a zero.
//
// Thread: the owner's thread only (the gateway's). Programs run elsewhere (agent_processes.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "rollout/agent/agent_processes.h"
#include "rollout/episode/episode.h"
#include "rollout/episode/episode_runner.h"
#include "rollout/gateway/gateway.h"

namespace tailrace {

class AgentRunner {
 public:
  // Borrows the gateway and the clock. `folder`: as of AgentProcesses.
  AgentRunner(gateway::Gateway& gateway, const std::filesystem::path& folder, const Clock& clock)
      : gateway_(gateway), clock_(clock), processes_(folder, &gateway.server()) {}
  ~AgentRunner();
  AgentRunner(const AgentRunner&) = delete;

  // At most one episode runs for a lease and lane; it waits until one of the processes that the
  // program may have at once is free. The prefix of the spec is not used: a program begins at its
  // beginning.
  void start(EpisodeSpec spec, std::string env,
             std::shared_ptr<const sandbox::AgentProgram> program);
  // Ends an episode; nothing more is heard of it. False: none runs.
  bool abort(const LeaseId& lease, Lane lane);
  bool is_running(const LeaseId& lease, Lane lane) const {
    return by_lease_.contains({lane, lease});
  }
  std::vector<BodyId> running() const;
  int64_t num_running() const { return std::ssize(running_); }

  // Episodes that have ended.
  std::vector<FinishedEpisode> poll();
  // For whoever plays: what the gateway refused, and the notes of AgentProcesses, since they were
  // last taken. `is_end`: also how many there were in all.
  std::vector<std::string> take_notes(bool is_end = false);

 private:
  // A process, with the key that it has.
  struct Seat {
    int64_t number = 0;
    std::string key = {};
  };
  struct Running {
    EpisodeSpec spec;
    std::string env;
    Seat seat = {};  // 0: it waits for one
    std::shared_ptr<const sandbox::AgentProgram> program;
  };
  using RunningMap = std::map<int64_t, Running>;

  void begin(int64_t id, Running& running);
  void begin_waiting();
  FinishedEpisode finish(const Running& running, AgentEnd end);

  gateway::Gateway& gateway_;
  const Clock& clock_;
  RunningMap running_;
  std::map<std::pair<Lane, LeaseId>, int64_t> by_lease_;
  // The seats of one program: its processes that wait for another task, and how many have one.
  struct Seats {
    std::vector<Seat> free;
    int64_t num_taken = 0;
  };
  std::map<std::shared_ptr<const sandbox::AgentProgram>, Seats> seats_;
  int64_t next_id_ = 1, next_seat_ = 1;
  AgentProcesses processes_;
};

}  // namespace tailrace
