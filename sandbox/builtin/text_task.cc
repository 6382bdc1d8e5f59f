#include "sandbox/builtin/text_task.h"

#include <nlohmann/json.hpp>

#include "core/base/json_row.h"
#include "core/base/json_text.h"
#include "sandbox/builtin/settings_reader.h"

namespace tailrace::sandbox {

const SettingsSchema& text_settings() {
  static const SettingsSchema schema = {
      text_setting("verifier", "who scores the answers; it must be given", ""),
      text_setting("stop", "a string that ends the response; none: the end of the turn", ""),
      integer_setting("max_tokens", "of a response, the most that is suggested", 64, 1, 1 << 20),
  };
  return schema;
}

namespace {

using json = nlohmann::ordered_json;

class TextTask final : public Environment {
 public:
  explicit TextTask(const EnvironmentSettings& settings) {
    const SettingsReader reader("text", text_settings(), settings);
    verifier_ = reader.text("verifier");
    std::string stop = reader.text("stop");
    info_.max_action_tokens = reader.integer("max_tokens");
    if (verifier_.empty())
      // No default: rules that nobody asked for would be rewarded without a word.
      throw reader.mistake("verifier",
                           "verifier is missing; name the one that scores the answers, for example "
                           "verifier: number");
    info_.verifier = verifier_;
    info_.name = "text";
    // Without it an answer ends by the model's end token or by its length.
    if (!stop.empty()) info_.stop_strings = {stop};
    info_.needs_dataset = true;
  }

  const EnvironmentInfo& info() const override { return info_; }

  Result<Observation> reset(const Task& task) override {
    // Of an episode before: a task that cannot be read leaves none running.
    running_ = false;
    Result<json> row = parse_json_row(task.data);
    if (!row) return Failure{"text: the task is " + row.failure().message};
    row_ = std::move(row).value();
    const auto prompt = row_.find("prompt");
    if (prompt == row_.end() || !(prompt->is_string() || prompt->is_array()))
      return Failure{"text: the task has no \"prompt\", a string or a list of messages"};
    running_ = true;
    Observation first;
    (prompt->is_array() ? first.messages : first.text) = json_of_field(row_, "prompt");
    first.tools = json_of_field(row_, "tools");
    return first;
  }

  Result<StepResult> step(const std::string& action) override {
    if (!running_) return Failure{"text: step() without a running episode"};
    StepResult result = scored(action);
    result.terminated = true;
    return result;
  }

  Result<StepResult> cut() override {
    if (!running_) return Failure{"text: cut() without a running episode"};
    // Nothing was answered; the verifier scores that as it scores any other answer.
    StepResult result = scored("");
    result.truncated = true;
    return result;
  }

  void close() override { running_ = false; }

  std::string sample_action(Rng& rng) override {
    static constexpr const char* kSamples[] = {"The",  "dog", "ran", "to",   "the",
                                               "park", "and", "was", "happy"};
    std::string text;
    for (int64_t n = 1 + rng.below(12); n > 0; --n)
      text += std::string(" ") + kSamples[rng.below(9)];
    return text + ".";
  }

 private:
  StepResult scored(const std::string& response) {
    running_ = false;
    // The whole row goes along: which of its columns a verifier wants only the verifier knows.
    row_["response"] = response;
    StepResult result;
    result.verifier = verifier_;
    // `replace`: what a policy writes need not be UTF-8, and dump() would throw.
    result.evidence = json_text(row_);
    return result;
  }

  EnvironmentInfo info_;
  std::string verifier_;
  json row_;
  bool running_ = false;
};

}  // namespace

std::unique_ptr<Environment> make_text_task(const EnvironmentSettings& settings) {
  return std::make_unique<TextTask>(settings);
}

}  // namespace tailrace::sandbox
