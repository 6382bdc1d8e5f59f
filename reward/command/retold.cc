#include "reward/command/retold.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "core/base/json_text.h"

namespace tailrace {
namespace {

using nlohmann::ordered_json;
using sandbox::EnvironmentCall;
using sandbox::EnvironmentInfo;
using sandbox::Observation;
using sandbox::StepResult;
using sandbox::Task;

struct Scoring {
  std::string verifier;
  bool keeps_evidence = false;
};

// The record of what was said in one episode.
class Conversation {
 public:
  void begin(const Task& task) {
    *this = Conversation();
    ordered_json row = parse_ordered_json(task.data);
    if (row.is_object()) row_ = std::move(row);
  }

  void hear(const Observation& observation) {
    if (observation.messages.empty()) {
      if (!observation.text.empty() || messages_.empty()) add("user", observation.text);
    } else {
      // Whoever plays it refuses what is no list of messages.
      const ordered_json said = parse_ordered_json(observation.messages);
      if (said.is_array()) messages_.insert(messages_.end(), said.begin(), said.end());
    }
    if (turns_ > 0 || !prompt_.empty() || messages_.empty()) return;
    prompt_ = text_of(messages_.back());
  }

  void answer(const std::string& action) {
    ++turns_;
    response_ = action;
    add("assistant", action);
  }

  // As the end of an episode that another one scores.
  void retell(StepResult& result, const Scoring& scoring) {
    reward_ += std::exchange(result.reward, 0);
    if (!result.terminated && !result.truncated) return;
    ordered_json told = {{"prompt", prompt_},
                         {"messages", messages_},
                         {"response", response_},
                         {"row", row_},
                         {"turns", turns_}};
    RetoldEpisode retold;
    // The reward of a verifier comes on top of what the environment itself gives.
    if (result.verifier.empty() || reward_ != 0) told["environment_reward"] = reward_;
    if (!result.verifier.empty() && scoring.keeps_evidence)
      retold.evidence = std::move(result.evidence);
    retold.episode = json_text(told);
    result.verifier = scoring.verifier;
    result.evidence = retold.write();
  }

 private:
  void add(const char* role, const std::string& text) {
    messages_.push_back({{"role", role}, {"content", text}});
  }

  // The content of a message is a text, or a list of parts of which some are texts.
  static std::string text_of(const ordered_json& message) {
    const auto content = message.is_object() ? message.find("content") : message.end();
    if (!message.is_object() || content == message.end()) return "";
    if (content->is_string()) return content->get<std::string>();
    std::string text;
    if (content->is_array())
      for (const ordered_json& part : *content)
        if (part.is_object() && part.contains("text") && part["text"].is_string())
          text += part["text"].get<std::string>();
    return text;
  }

  ordered_json row_, messages_ = ordered_json::array();
  std::string prompt_, response_;
  int64_t turns_ = 0;
  double reward_ = 0;
};

class RetoldEnvironment final : public sandbox::Environment {
 public:
  RetoldEnvironment(std::unique_ptr<sandbox::Environment> inner, const EnvironmentInfo& info,
                    const Scoring& scoring)
      : inner_(std::move(inner)), info_(info), scoring_(scoring) {}

  const EnvironmentInfo& info() const override { return info_; }
  Result<Observation> reset(const Task& task) override {
    conversation_.begin(task);
    auto first = inner_->reset(task);
    if (first) conversation_.hear(first.value());
    return first;
  }
  Result<StepResult> step(const std::string& action) override {
    auto result = inner_->step(action);
    if (!result || result.value().pending) return result;
    conversation_.answer(action);
    return retell(std::move(result).value());
  }
  Result<StepResult> cut() override {
    auto result = inner_->cut();
    if (!result) return result;
    return retell(std::move(result).value());
  }
  void close() override { inner_->close(); }
  std::optional<std::string> demonstrate(Rng& rng) override { return inner_->demonstrate(rng); }
  std::string sample_action(Rng& rng) override { return inner_->sample_action(rng); }

 private:
  StepResult retell(StepResult result) {
    if (!result.terminated && !result.truncated) conversation_.hear(result.observation);
    conversation_.retell(result, scoring_);
    return result;
  }

  const std::unique_ptr<sandbox::Environment> inner_;
  const EnvironmentInfo info_;
  const Scoring scoring_;
  Conversation conversation_;
};

// One call at a time; what it keeps is a call's too, which may end after it.
class RetoldRemote final : public sandbox::RemoteEnvironment {
 public:
  RetoldRemote(std::unique_ptr<sandbox::RemoteEnvironment> inner, const Scoring& scoring)
      : inner_(std::move(inner)), scoring_(scoring) {}

  void begin(const EnvironmentCall& call, Done done) override {
    if (call.kind == EnvironmentCall::Kind::kReset) conversation_->begin(call.task);
    inner_->begin(call, [conversation = conversation_, scoring = scoring_, kind = call.kind,
                         action = call.action, done = std::move(done)](Result<StepResult> said) {
      if (!said || said.value().pending) return done(std::move(said));
      StepResult result = std::move(said).value();
      if (kind == EnvironmentCall::Kind::kStep) conversation->answer(action);
      if (!result.terminated && !result.truncated) conversation->hear(result.observation);
      if (kind != EnvironmentCall::Kind::kReset) conversation->retell(result, scoring);
      done(std::move(result));
    });
  }

 private:
  const std::unique_ptr<sandbox::RemoteEnvironment> inner_;
  const Scoring scoring_;
  const std::shared_ptr<Conversation> conversation_ = std::make_shared<Conversation>();
};

class RetoldSource final : public sandbox::EnvironmentSource {
 public:
  RetoldSource(std::shared_ptr<const sandbox::EnvironmentSource> inner, Scoring scoring)
      : inner_(std::move(inner)), scoring_(std::move(scoring)), info_(inner_->info()) {
    info_.verifier = scoring_.verifier;
    if (const auto agent = inner_->agent()) agent_ = retold(*agent);
  }

  const EnvironmentInfo& info() const override { return info_; }
  std::unique_ptr<sandbox::Environment> open() const override {
    return std::make_unique<RetoldEnvironment>(inner_->open(), info_, scoring_);
  }
  std::unique_ptr<sandbox::RemoteEnvironment> open_remote() const override {
    auto remote = inner_->open_remote();
    if (remote == nullptr) return nullptr;
    return std::make_unique<RetoldRemote>(std::move(remote), scoring_);
  }
  std::shared_ptr<const sandbox::AgentProgram> agent() const override { return agent_; }

 private:
  std::shared_ptr<const sandbox::AgentProgram> retold(sandbox::AgentProgram program) const {
    program.verifier = scoring_.verifier;
    program.is_retold = true;
    program.keeps_evidence = scoring_.keeps_evidence;
    return std::make_shared<const sandbox::AgentProgram>(std::move(program));
  }

  const std::shared_ptr<const sandbox::EnvironmentSource> inner_;
  const Scoring scoring_;
  EnvironmentInfo info_;
  std::shared_ptr<const sandbox::AgentProgram> agent_;
};

// Beside the members of the episode. Runs that go on have episodes that were written so.
constexpr const char* kEvidenceKey = "evidence";

}  // namespace

std::string RetoldEpisode::write() const {
  if (!evidence) return episode;
  ordered_json members = parse_ordered_json(episode);
  members[kEvidenceKey] = *evidence;
  return json_text(members);
}

Result<RetoldEpisode> RetoldEpisode::read(const std::string& written) {
  ordered_json members = parse_ordered_json(written);
  if (!members.is_object() || !members.contains("response"))
    return Failure{"the evidence is no episode that was retold for a program"};
  RetoldEpisode retold;
  if (const auto evidence = members.find(kEvidenceKey);
      evidence != members.end() && evidence->is_string())
    retold.evidence = evidence->get<std::string>();
  members.erase(kEvidenceKey);
  retold.episode = json_text(members);
  return retold;
}

std::shared_ptr<const sandbox::EnvironmentSource> retold(
    std::shared_ptr<const sandbox::EnvironmentSource> source, std::string verifier,
    bool keeps_evidence) {
  return std::make_shared<RetoldSource>(std::move(source),
                                        Scoring{std::move(verifier), keeps_evidence});
}

}  // namespace tailrace
