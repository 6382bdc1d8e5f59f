// An environment as those have it who play one. Authors write tailrace::Env (tailrace/env.h), and
// this is what becomes of it (plugin/plugin_environment.h): value types only, GEM-like reset / step
// / close.
//
// An environment is one episode at a time: reset() begins one, step() takes an action, close() ends
// it. It must be deterministic: the same Task gives the same episode for the same actions (members
// of a group share the Task). It returns observations and evidence; it may give rule rewards
// itself, or name a verifier (reward/) for what needs one. A failure of the environment is a
// Failure, never a zero reward; so is a step() before reset(), after the end of an episode, and
// after close(). Whoever plays the episode may end it before the environment does, at a limit of
// turns or tokens; it then calls cut().
//
// Thread: one at a time for each instance; instances are independent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/metric_list.h"
#include "core/base/random.h"
#include "core/base/result.h"

namespace tailrace::sandbox {

// Which episode to begin.
struct Task {
  uint64_t seed = 0;
  std::string data = {};  // a dataset row (JSON), empty for environments that draw their own tasks
};

// The input of the policy: a text, or messages. With the model's chat template a text is a message
// of the user's; without one it is appended to the context as it is, and messages are refused.
struct Observation {
  std::string text;
  std::string messages = {};  // JSON, a list of {"role", "content", ...}; empty: `text`
  // JSON, a list of the schemas of the tools that the policy may call, as transformers has them
  // ({"type": "function", "function": {...}}). Only reset() gives them, and only a chat template
  // that knows tools can write them.
  std::string tools = {};
  // The name of the state for credit across the members of a group, which compares what they did in
  // the same state; never shown to the policy. Empty: the text or the messages. Counters of steps
  // do not belong into it: no two turns would be in one state.
  std::string state = {};
};

// The limit on all texts of an observation together: far beyond the context of any model.
inline constexpr int64_t kMostObservationBytes = int64_t{1} << 20;
// The limit on an episode's evidence: it may hold a row and an answer, each as long as that.
inline constexpr int64_t kMostEvidenceBytes = 4 * kMostObservationBytes;

struct StepResult {
  Observation observation;  // not shown to the policy when the episode ended
  double reward = 0;        // of this step; the episode's reward is the sum
  bool terminated = false;  // a natural end
  bool truncated = false;   // a limit ended it
  bool pending = false;     // not ready yet: call step() again with the same action
  std::string verifier;     // at the end: who scores the episode; empty: `reward` counts
  std::string evidence;     // JSON for the verifier
  std::string reason;       // why it was truncated, for people
  MetricList metrics;       // of the episode so far, for example {"success", 1}
};

struct EnvironmentInfo {
  std::string name;                            // "frozen_grid"
  std::vector<std::string> vocabulary = {};    // of a word-level tokenizer; empty: any will do
  std::vector<std::string> stop_strings = {};  // what ends an action, for example "\n"
  int64_t max_turns = 1;
  int64_t max_action_tokens = 16;  // suggestion; the config may override
  bool needs_dataset = false;
  std::string verifier = {};  // who scores its episodes (reward/); empty: the environment itself
};

class Environment {
 public:
  virtual ~Environment() = default;
  virtual const EnvironmentInfo& info() const = 0;
  virtual Result<Observation> reset(const Task& task) = 0;
  virtual Result<StepResult> step(const std::string& action) = 0;
  // The player ends the running episode at a limit of its own: the last answer, with `truncated`
  // set. `reward` comes on top of what the steps gave. An environment that names a verifier names
  // it here too, with the evidence that there is; otherwise the cut episode would count as one of
  // reward 0. Only reset() and close() follow.
  virtual Result<StepResult> cut() {
    StepResult result;
    result.truncated = true;
    return result;
  }
  virtual void close() {}

  // The answer of an imperfect demonstrator (for supervised warm-up); none: there is no
  // demonstrator.
  virtual std::optional<std::string> demonstrate(Rng&) { return std::nullopt; }
  // Some legal action, for contract tests and smoke runs.
  virtual std::string sample_action(Rng& rng) = 0;
};

using EnvironmentSettings = std::vector<std::pair<std::string, std::string>>;

// Seeds of held-out and training episodes are disjoint by construction: the top bit tells them
// apart. Each dataset has its own, also where two play the same environment.
uint64_t task_seed(uint64_t run_seed, bool held_out, int64_t prompt, int32_t dataset = 0);

}  // namespace tailrace::sandbox
