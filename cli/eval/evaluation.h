// Plays episodes of an environment with a fixed policy and scores them: what `eval` measures.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cli/eval/loaded_model.h"
#include "cli/eval/statistics.h"
#include "cli/inputs/registries.h"
#include "core/chat/prompt_format.h"
#include "core/text/dataset.h"
#include "reward/verifier.h"
#include "rollout/episode/options.h"
#include "sandbox/environment.h"

namespace tailrace {

struct EvaluationPlan {
  std::string env;
  sandbox::EnvironmentSettings settings;
  std::vector<text::DatasetRow> dataset;  // of environments that need one
  int32_t dataset_index = 0;              // which of a run's datasets: random numbers are its own
  int64_t episodes = 0;                   // prompts
  int64_t samples = 1;                    // of each
  uint64_t seed = 0;
  bool held_out = true;              // tasks that training never draws
  double success_reward = 1;         // counts as success where the environment reports none
  Time score_budget = kScoreBudget;  // of a verifier
  chat::ChatOptions chat;            // how prompts are written
  RolloutOptions rollout;            // sampling, limits, engine
  bool keeps_tokens = false;         // of episodes of one turn
};

struct EvaluatedEpisode {
  int64_t prompt = 0, sample = 0;
  bool failed = false;       // of the environment or the verifier: no score
  std::string failure = {};  // and why
  double reward = 0;
  bool success = false;
  int64_t turns = 0, sampled_tokens = 0;
  bool truncated = false;
  MetricList metrics = {};
  std::vector<TokenId> prompt_ids = {}, answer_ids = {};  // of one turn; empty: not kept
};

// By prompt, then sample. The same plan gives the same episodes whatever the number of threads, and
// with a run's seed, settings and limits those of its own evaluations (member 0 is sample 0).
// `note` hears what a rollout worker of a run would write to its log: what agents were refused, and
// folders of theirs that stay. Throws UserError for an unknown environment or one that does not fit
// the model.
std::vector<EvaluatedEpisode> evaluate(const LoadedModel& loaded, const chat::PromptFormat& format,
                                       const EvaluationPlan& plan, const Registries& registries,
                                       const std::function<void(const std::string&)>& note);

struct EvaluationSummary {
  int64_t prompts = 0, episodes = 0, failed = 0;
  std::string failure = {};  // of the first that failed
  Estimate reward, success;
  std::vector<std::pair<int64_t, Estimate>> pass_at_k;
  double mean_turns = 0, mean_sampled_tokens = 0, truncated_share = 0;
  MetricList metrics;  // means
};

// Prompts whose samples all failed are left out; pass@k uses the prompts that have at least k
// scored samples.
EvaluationSummary summarise(const std::vector<EvaluatedEpisode>& episodes,
                            const std::vector<int64_t>& ks, uint64_t seed);

}  // namespace tailrace
