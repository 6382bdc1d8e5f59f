// The processes of agents: each episode of a program is a setup, a run and a score (those that it
// has), one process after the other, each under a deadline of its own.
//
// A process finds in its environment
//   OPENAI_BASE_URL, OPENAI_API_KEY   where the policy is, and the key of this episode
//   TAILRACE_TASK                     a file with the task, {"episode": N, "seed": N,
//                                     "row": {...} or null, "evaluates": bool}; the same comes on
//                                     its stdin
//   TAILRACE_REWARD_FILE              where it may write what the episode was worth
// and works in a folder of its own, which is removed behind it; its name is never used again. One
// in a sandbox finds the policy at kSandboxPort of its own 127.0.0.1, and has no file to write a
// reward to. The reward is in that file, or in the last line of the run's stdout (of the score's,
// where there is one): a number, or {"reward": R, "metrics": {"name": number}}.
//
// A program may play several episodes in a process (AgentProgram::episodes): the process waits for
// the next task in a line of its stdin, and the first line of its stdout that is such an object is
// what the episode was worth. It keeps its key, for which the owner begins the next attempt.
//
// Whatever a process has started ends with it, also what has left its process group and hides
// (sandbox/process/offspring.h). All of them carry a mark in their environment, by which those that
// keep it are found after a kill -9 of this process too. One that leaves a process behind has
// failed.
//
// Thread: any; one of its own starts, reads and ends the processes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/http/server.h"
#include "rollout/agent/agent_reward.h"
#include "sandbox/agent_program.h"
#include "sandbox/process/program_loop.h"

namespace tailrace {

// Where an agent in a sandbox finds the policy. It is alone there, so that the port is free.
constexpr uint16_t kSandboxPort = 8080;

struct AgentStart {
  int64_t seat = 0;     // the process: one that waits for a task, or a new one
  int64_t episode = 0;  // for the end
  std::shared_ptr<const sandbox::AgentProgram> program;
  std::string base_url, api_key;
  std::string task;  // JSON
  uint64_t seed = 0;
};

struct AgentEnd {
  int64_t seat = 0, episode = 0;
  bool waits = false;        // its process does, for another task
  std::string failure = {};  // why it is no sample; empty: it ran to its end
  std::optional<AgentReward> reward = {};
  double seconds = 0;  // that it took
};

class AgentProcesses {
 public:
  // `folder`: of this worker alone. What an earlier one has left there is removed, and its
  // processes are ended. `server` answers those in a sandbox, and is borrowed; null: they have no
  // network. `logs`: what programs write to stderr goes to ours, some lines a second.
  explicit AgentProcesses(const std::filesystem::path& folder, http::Server* server = nullptr,
                          bool logs = true);
  ~AgentProcesses();  // ends all
  AgentProcesses(const AgentProcesses&) = delete;

  void start(AgentStart start);
  // Ends the process, soon; nothing more is heard of it.
  void stop(int64_t seat);
  std::vector<AgentEnd> collect();
  // For the log of the owner, since they were last taken: folders that could not be removed, and
  // the like. `is_end`: also how many there were in all.
  std::vector<std::string> take_notes(bool is_end = false);

 private:
  struct State;
  const std::shared_ptr<State> state_;  // the thread's too
  const sandbox::ProgramThread thread_;
};

}  // namespace tailrace
