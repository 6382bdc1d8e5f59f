// One episode as a state machine: observations and answers go in, requests and actions come out. It
// calls nobody, so it is tested without an engine or an environment.
//
//   reset -> prompt -> [ generate -> action -> step -> observation ]* -> trajectory
//
// Tokens are written once: what was sampled is kept as ids, and the text that the environment reads
// is decoded from them. Only text that comes from the environment is encoded (design rule 2), in
// the form that the policy knows (core/chat/prompt_format.h).
//
// How it ends:
//   - the environment ends it: finished (terminated) or truncated;
//   - max_turns were played, or the next observation and one more token do not fit the response or
//     the context: the environment is told that the episode is cut, and names the verifier if there
//     is one: truncated, with the rewards so far or the verifier's;
//   - an answer that is cut by the response or context limit, or that does not stop by itself in
//     the last turn, still goes to the environment (it may be what a verifier scores), but nothing
//     follows it: truncated. An answer that is cut by max_action_tokens is an action like any
//     other;
//   - the environment fails, its first observation is no prompt, or the tokenizer cannot read what
//     it says: env_failed, without a reward;
//   - the environment says that nobody can play this task: task_broken, without a reward.
//
// An episode that has a prefix, the turns of an attempt before it, goes on behind them: their
// tokens stay as they were recorded, and the environment is told the recorded answers again, which
// brings it to where it stood. It must say what it said then, token by token; else env_failed.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/expert_shape.h"
#include "core/base/result.h"
#include "core/chat/prompt_format.h"
#include "core/generate.h"
#include "core/model/model_config.h"
#include "core/trajectory/trajectory.h"
#include "rollout/episode/options.h"
#include "sandbox/environment.h"

namespace tailrace {

// All in tokens but max_turns; each at least 1.
struct EpisodeLimits {
  int64_t max_context_tokens = 0;
  int64_t max_prompt_tokens = 0;
  int64_t max_response_tokens = 0;  // all that follows the prompt
  int64_t max_action_tokens = 0;    // sampled in a turn
  int64_t max_turns = 0;
};

// Limits that the options leave open come from the environment and the context.
EpisodeLimits episode_limits(const RolloutOptions& options, const sandbox::EnvironmentInfo& info);

// How an environment's actions are drawn and what ends them: its stop strings and stop_tokens().
SamplingParams episode_sampling(const SamplingOptions& options,
                                const sandbox::EnvironmentInfo& info, const ModelConfig& model,
                                const chat::PromptFormat& format);

struct EpisodeSpec {
  LeaseId lease;
  Lane lane = Lane::kTrain;
  sandbox::Task task;
  SampleKey key;
  SamplingParams sampling;  // max_new_tokens is the episode's own
  EpisodeLimits limits;
  std::string numerics_class = {};  // of the generator; needed where the trajectory is trained on
  bool keeps_sets = false;          // record what each token was drawn from
  ExpertShape experts = {};  // of the generator, whose choices are recorded; all 0: they are not
  // Begins behind these turns; find_misfit() has nothing against them (prefix.h).
  std::optional<Trajectory> prefix = {};
};

// An environment's answer, and what the policy hears of it.
struct Heard {
  sandbox::StepResult step;  // of a reset only the observation is set
  std::vector<TokenId> tokens = {};
  std::string fault = {};  // why the observation is no text for this policy
};

class Episode {
 public:
  enum class Next : uint8_t {
    kGenerate,  // submit request()
    kStep,      // give action() to the environment; also when it answered `pending`
    kCut,       // tell the environment that the episode is cut; also when it answered `pending`
    kDone,      // take the trajectory
  };

  // The format outlives it.
  Episode(EpisodeSpec spec, std::string env_name, const chat::PromptFormat& format);

  // Writes the tokens of the next observation. It takes as long as a text is long, on any thread,
  // and borrows the format.
  std::function<void(Result<Heard>&)> encoder() const;
  // Takes the encoded answer of reset(). `seconds`: how long the environment took.
  Next observed(Result<Heard> first, double seconds);
  Next answered(const Generation& generation, double seconds);
  // Takes the encoded answer of step() or cut().
  Next stepped(Result<Heard> answer, double seconds);
  // Ends it with what it has.
  Next abort();

  const sandbox::Task& task() const { return spec_.task; }
  const std::string& action() const { return action_; }
  GenerateRequest request(SessionId session);

  // The turns that are over, as the prefix of another attempt: what has come since the last
  // kGenerate is not among them. Where num_storable() > 0.
  Trajectory stored() const;
  int64_t num_storable() const { return storable_turns_ > 0 ? storable_tokens_ : 0; }  // its tokens
  int64_t num_prompt_tokens() const { return prompt_tokens_; }

  // When done. `failure` says why it is env_failed or task_broken.
  Trajectory& trajectory() { return trajectory_; }
  const std::string& failure() const { return failure_; }

 private:
  TokenId last_of_answer() const;
  Next fail(std::string reason, bool task_broken = false);
  Next end(Outcome outcome);
  void take_over(Trajectory prefix);
  Next heard(std::vector<TokenId> tokens, TokenRole role);
  void begin_turn();
  Next did_not_repeat(const std::string& what);
  void waited(double seconds);
  bool repeats() const { return recorded_turns_ > 0 && trajectory_.turns <= recorded_turns_; }
  void append(std::vector<TokenId> tokens, TokenRole role);
  void append(const GeneratedToken& token);
  void record(std::span<const uint16_t> choices);
  int64_t room() const;  // tokens that may still follow

  EpisodeSpec spec_;
  const chat::PromptFormat& format_;
  Trajectory trajectory_;
  std::vector<TokenId> unsent_;  // tokens that the generator has not seen
  std::string action_;
  std::string failure_;
  int64_t prompt_tokens_ = 0;
  size_t num_told_choices_ = 0;  // of this session; those of a prefix are told again
  int32_t recorded_turns_ = 0;   // of the prefix; trajectory_.turns counts them again
  int32_t numerics_class_ = 0;   // of the generator, in trajectory_.numerics_classes
  // When it was last about to generate.
  int64_t storable_tokens_ = 0;
  int32_t storable_turns_ = 0;
  double reward_ = 0;
  uint64_t anchor_ = 0;        // of the state that the next answer is for
  bool cut_ = false;           // nothing can follow the last answer
  bool asked_to_cut_ = false;  // the next StepResult is cut()'s
};

}  // namespace tailrace
