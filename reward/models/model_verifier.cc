#include "reward/models/model_verifier.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json_text.h"
#include "core/chat/options.h"
#include "core/chat/prompt_format.h"
#include "core/model/parameter_files.h"
#include "core/model/reward_head.h"
#include "core/text/messages.h"
#include "core/text/tokenizer.h"
#include "kernels/base/mutex.h"
#include "reward/command/retold.h"
#include "reward/models/reward_model.h"

namespace tailrace {
namespace {

using nlohmann::ordered_json;

int64_t checked_tokens(const std::filesystem::path& folder, const ModelConfig& config,
                       int64_t max_tokens) {
  check_headers(folder, config);
  if (max_tokens > config.max_positions)
    throw UserError("{}: a text may have {} tokens, and the model has {} positions",
                    folder.string(), max_tokens, config.max_positions);
  return max_tokens > 0 ? max_tokens : config.max_positions;
}

// The messages up to the last answer.
Result<ordered_json> judged_messages(const std::string& evidence) {
  const auto retold = RetoldEpisode::read(evidence);
  if (!retold) return retold.failure();
  ordered_json messages = parse_ordered_json(retold.value().episode)["messages"];
  if (!text::are_messages(messages))
    return Failure{"the episode has no list of messages", /*is_final=*/true};
  while (!messages.empty() && messages.back().value("role", "") != "assistant")
    messages.erase(messages.size() - 1);
  if (messages.empty())
    return Failure{"the episode has no answer that could be scored", /*is_final=*/true};
  if (const auto texts = text::make_texts(messages); !texts) return texts.failure();
  return messages;
}

// What makes a conversation the ids of a folder's model.
class EpisodeReader {
 public:
  EpisodeReader(const std::filesystem::path& folder, int64_t max_tokens,
                const chat::ChatOptions& chat = {})
      : config_(read_reward_config(folder)),
        max_tokens_(checked_tokens(folder, config_, max_tokens)),
        tokenizer_(text::load_tokenizer(folder)),
        format_(chat::PromptFormat::of(chat, folder, *tokenizer_)) {
    text::check_vocabulary(*tokenizer_, config_.vocab_size, folder.string());
    // A template that asks for what no episode has would fail at each of them. Without one there is
    // nothing to ask for, and a vocabulary of words need not have these.
    if (format_.has_template())
      (void)encode(
          {{{"role", "user"}, {"content", "a"}}, {{"role", "assistant"}, {"content", "b"}}});
  }

  int64_t max_tokens() const { return max_tokens_; }
  // Throws UserError.
  std::vector<TokenId> encode(const ordered_json& messages) const {
    if (format_.has_template()) return checked(format_.whole(messages, /*tools=*/""));
    if (messages.size() != 2 || messages[0].value("role", "") != "user")
      throw UserError(
          "its folder has no chat template, and only a question with its answer is written "
          "without one");
    return checked(format_.lesson_of_texts(messages[0].value("content", ""),
                                           messages[1].value("content", "")))
        .tokens;
  }

 private:
  const ModelConfig config_;
  const int64_t max_tokens_;
  const std::unique_ptr<text::Tokenizer> tokenizer_;
  const chat::PromptFormat format_;

  template <class T>
  static T checked(Result<T> written) {
    if (!written) throw UserError("{}", written.failure().message);
    return std::move(written).value();
  }
};

class ModelVerifier final : public Verifier {
 public:
  ModelVerifier(std::filesystem::path folder, const ModelVerifierOptions& options)
      : folder_(std::move(folder)), options_(options) {}

  Result<Score> score(const std::string& evidence, Time budget) const override {
    const auto begin = std::chrono::steady_clock::now();
    auto messages = judged_messages(evidence);
    if (!messages) return messages.failure();
    try {
      const EpisodeReader& reader = loaded();
      const std::vector<TokenId> ids = reader.encode(messages.value());
      const bool is_cut = std::ssize(ids) > reader.max_tokens();
      std::span<const TokenId> kept(ids);
      // The answer stands at the end.
      if (is_cut) kept = kept.last(static_cast<size_t>(reader.max_tokens()));
      const auto score = score_of(kept, begin, budget);
      if (!score) return score.failure();
      return Score{.reward = score.value(), .metrics = {{"reward_model_cut", is_cut ? 1.0 : 0.0}}};
    } catch (const UserError& error) {
      return Failure{fmt::format("the reward model cannot score the episode: {}", error.what())};
    }
  }

 private:
  const EpisodeReader& loaded() const {
    MutexLock lock(mutex_);
    if (reader_ == nullptr)
      reader_ = std::make_unique<EpisodeReader>(folder_, options_.max_tokens, options_.chat);
    return *reader_;
  }

  Result<double> score_of(std::span<const TokenId> ids, std::chrono::steady_clock::time_point begin,
                          Time budget) const {
    MutexLock lock(mutex_);
    if (std::chrono::steady_clock::now() - begin > budget)
      return Failure{
          "the reward model was busy with other episodes for longer than a score may "
          "take (scheduler.verify_seconds)"};
    if (model_ == nullptr)
      model_ = std::make_unique<RewardModel>(folder_, options_.threads, options_.max_tokens);
    return model_->score(ids);
  }

  const std::filesystem::path folder_;
  const ModelVerifierOptions options_;
  mutable Mutex mutex_;
  // Many hold a verifier and score nothing. Once it is there it does not change.
  mutable std::unique_ptr<const EpisodeReader> reader_ TR_GUARDED_BY(mutex_);
  mutable std::unique_ptr<RewardModel> model_ TR_GUARDED_BY(mutex_);
};

}  // namespace

void check_reward_folder(const std::filesystem::path& folder, int64_t max_tokens) {
  EpisodeReader(folder, max_tokens);
}

std::unique_ptr<Verifier> make_model_verifier(const std::filesystem::path& folder,
                                              const ModelVerifierOptions& options) {
  return std::make_unique<ModelVerifier>(folder, options);
}

}  // namespace tailrace
