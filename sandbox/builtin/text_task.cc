#include "sandbox/builtin/text_task.h"

#include <stdexcept>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "core/base/json_row.h"
#include "core/base/json_text.h"
#include "core/base/result.h"
#include "tailrace/env.h"

namespace tailrace::sandbox {

namespace {

using json = nlohmann::ordered_json;

class TextTask final : public Env {
 public:
  explicit TextTask(const Settings& settings) {
    const std::string_view stop = settings.text("stop");
    info_.reward = settings.text("verifier");
    if (info_.reward.empty())
      // No default: rules that nobody asked for would be rewarded without a word.
      throw std::invalid_argument("verifier has no name; name one, for example math");
    info_.max_action_tokens = settings.integer("max_tokens");
    // Without it an answer ends by the model's end token or by its length.
    if (!stop.empty()) info_.stop_strings = {std::string(stop)};
    info_.needs_dataset = true;
  }

  Info info() const override { return info_; }

  tailrace::Observation reset(const tailrace::Task& task) override {
    Result<json> row = parse_json_row(std::string(task.row));
    if (!row) throw Failed("text: the task is " + row.failure().message);
    row_ = std::move(row).value();
    const auto prompt = row_.find("prompt");
    if (prompt == row_.end() || !(prompt->is_string() || prompt->is_array()))
      throw Failed("text: the task has no \"prompt\", a string or a list of messages");
    tailrace::Observation first;
    (prompt->is_array() ? first.messages : first.text) = json_of_field(row_, "prompt");
    first.tools = json_of_field(row_, "tools");
    return first;
  }

  Step step(std::string_view action) override {
    Step end = Step::terminated();
    end.evidence = evidence(action);
    return end;
  }

  Step cut() override {
    // Nothing was answered; the verifier scores that as it scores any other answer.
    Step end = Env::cut();
    end.evidence = evidence("");
    return end;
  }

  std::string sample_action(Random& random) override {
    static constexpr const char* kSamples[] = {"The",  "dog", "ran", "to",   "the",
                                               "park", "and", "was", "happy"};
    std::string text;
    for (int64_t n = 1 + random.below(12); n > 0; --n)
      text += std::string(" ") + kSamples[random.below(9)];
    return text + ".";
  }

 private:
  // The whole row goes along: which of its columns a verifier wants only the verifier knows.
  std::string evidence(std::string_view response) {
    row_["response"] = response;
    // Not dump(): the answer of a policy need not be UTF-8, and dump() would throw.
    return json_text(row_);
  }

  Info info_;
  json row_;
};

}  // namespace

void declare_text_task(Library& library) {
  library.environment<TextTask>("text", "a dataset prompt, one turn, scored by a verifier")
      .text("verifier", "who scores the answers, for example math")
      .text("stop", "a string that ends the response; none: the end of the turn", "")
      .integer("max_tokens", "of a response, the most that is suggested", 64, 1, 1 << 20);
}

}  // namespace tailrace::sandbox
