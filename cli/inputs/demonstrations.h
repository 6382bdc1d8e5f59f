// Demonstrations for the supervised warm-up: episodes that an environment's own demonstrator plays,
// as pre-tokenised rows.
//
//   {"input_ids":[1,13,4,4,5,4,8,11,3,...],"loss_mask":[0,0,0,0,0,0,0,1,1,...]}
//
// Tokens are laid out as in a rollout: the first observation with the tokenizer's special tokens,
// then actions and observations in turn; action tokens count, the newline that ends an action
// included.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "core/base/time.h"
#include "core/chat/prompt_format.h"
#include "core/text/dataset.h"
#include "reward/registry.h"
#include "reward/verifier.h"
#include "sandbox/environment.h"

namespace tailrace {

// The dataset that is played, and how often. Environment and rows are borrowed.
struct DemonstratedDataset {
  sandbox::Environment& environment;
  std::span<const text::DatasetRow> rows = {};  // for environments that need them
  int64_t episodes = 0;
};

struct DemonstrationPlan {
  uint64_t run_seed = 0;
  int64_t max_tokens = 0;  // of a row: an episode is cut before the turn that would exceed it
  Time step_timeout = std::chrono::seconds(30);  // of an environment that answers `pending`
  Time score_budget = kScoreBudget;              // of a verifier
};

struct DemonstrationCounts {
  int64_t tokens = 0;
  int64_t successes = 0;  // as the environment says, or the verifier that it names
};

// Writes the file atomically, one dataset after the other, in the order of the config; the same
// plan gives the same bytes. Throws UserError: an environment has no demonstrator, or fails; the
// file cannot be written.
DemonstrationCounts write_demonstrations(const std::filesystem::path& file,
                                         std::span<const DemonstratedDataset> datasets,
                                         const chat::PromptFormat& format,
                                         const VerifierRegistry& verifiers,
                                         const DemonstrationPlan& plan);

}  // namespace tailrace
