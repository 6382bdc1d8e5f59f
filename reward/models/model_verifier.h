// A reward model as a Verifier. Its evidence is an episode retold (reward/command/retold.h): the
// messages up to the end of the last answer, as rows of preferences are written, by the chat
// template of the model's folder; without one, a question with its answer as plain text. The words
// of messages become no special tokens. A conversation of more tokens than the model takes loses
// its beginning, and the metric `reward_model_cut` is 1.
//
// A conversation that cannot be written, and a score that is not finite, are Failures.
//
// Thread: any. The model is loaded at the first score, and one at a time is made; a score that has
// waited for its budget is a Failure. A pass that has begun is not stopped.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "core/chat/options.h"
#include "reward/verifier.h"

namespace tailrace {

struct ModelVerifierOptions {
  int threads = 1;
  int64_t max_tokens = 0;  // of a conversation; 0: the model's positions
  // How conversations are written; of a model of somebody else by the folder alone.
  chat::ChatOptions chat = {};
};

// Reads nothing yet: many hold a verifier and score nothing.
std::unique_ptr<Verifier> make_model_verifier(const std::filesystem::path& folder,
                                              const ModelVerifierOptions& options);

// All that a verifier needs but the values of the weights. Throws UserError: as RewardModel, and as
// the tokenizer and the chat template of the folder do; a folder without a template; a template
// that cannot write a question and its answer; a tokenizer with more ids than the model.
void check_reward_folder(const std::filesystem::path& folder, int64_t max_tokens);

}  // namespace tailrace
