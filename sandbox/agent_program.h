// A program of somebody's own that plays episodes by itself: it is given a task and the URL of the
// policy, asks the policy whatever it likes (rollout/gateway), and says what that was worth.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/base/digest.h"
#include "core/base/time.h"

namespace tailrace::sandbox {

struct AgentProgram {
  // One process for each episode, one after the other; the first word of each is a program. Only
  // `run` must be there.
  std::vector<std::string> setup = {}, run, score = {};
  Time setup_deadline = std::chrono::seconds(60), run_deadline = std::chrono::seconds(600),
       score_deadline = std::chrono::seconds(60);
  // Episodes that a process of `run` plays one after the other: it is given a task in each line of
  // its stdin, and says what it was worth in a line of its own, {"reward": ...}.
  int64_t episodes = 1;
  int64_t at_once = 16;  // processes of a worker
  int64_t max_request_bytes = int64_t{16} << 20;  // of the body of a call
  bool is_isolated = false;                    // sees nothing of this machine (launcher)
  std::map<std::string, Digest> digests = {};  // of their files, when the run began
  // The verifier of the episode; empty: the program scores. Retold: as a conversation
  // (reward/command); else as the row of the dataset with the last answer as "response".
  std::string verifier = {};
  bool is_retold = false, keeps_evidence = false;  // the second as in reward/command/retold.h
};

}  // namespace tailrace::sandbox
