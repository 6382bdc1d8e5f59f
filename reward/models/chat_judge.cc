#include "reward/models/chat_judge.h"

#include <charconv>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json_row.h"
#include "core/base/json_text.h"
#include "core/base/printable.h"
#include "core/http/post.h"
#include "reward/command/retold.h"

namespace tailrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShown = 200;           // bytes of what a judge says, in a message
constexpr int64_t kMostValues = 10'000;  // JSON values of an answer

std::string shown(std::string_view said) {
  const bool is_cut = said.size() > kShown;
  return printable(std::string(said.substr(0, kShown))) + (is_cut ? " ..." : "");
}

std::string text_of(const Json& object, const char* name) {
  const auto at = object.find(name);
  return at != object.end() && at->is_string() ? at->get<std::string>() : std::string();
}

std::string conversation_of(const Json& episode) {
  std::string text;
  const auto messages = episode.find("messages");
  if (messages == episode.end() || !messages->is_array()) return text;
  for (const Json& message : *messages)
    if (message.is_object())
      text += fmt::format("{}: {}\n", text_of(message, "role"), text_of(message, "content"));
  return text;
}

// The text of the only answer.
Result<std::string> said_in(const std::string& body) {
  const auto answer = parse_json_row(body, kMostValues);
  if (!answer) return Failure{"an answer that is " + answer.failure().message};
  const auto choices = answer.value().find("choices");
  if (choices != answer.value().end() && choices->is_array() && !choices->empty()) {
    const auto message = choices->front().find("message");
    if (message != choices->front().end() && message->is_object())
      return text_of(*message, "content");
  }
  return Failure{fmt::format("an answer without choices: {}", shown(body))};
}

class ChatJudge final : public Verifier {
 public:
  ChatJudge(http::Url url, ChatJudgeOptions options)
      : url_(std::move(url)), options_(std::move(options)) {}

  Result<Score> score(const std::string& evidence, Time budget) const override {
    const auto question = judge_question(options_.prompt, evidence);
    if (!question) return question.failure();
    Json body = {{"messages", Json::array({{{"role", "user"}, {"content", question.value()}}})},
                 {"temperature", 0},
                 {"max_tokens", options_.max_tokens}};
    if (!options_.model.empty()) body["model"] = options_.model;
    const auto posted = http::post_json(url_, "/chat/completions", json_text(body),
                                        {.wait = budget, .bearer = options_.key});
    const auto failed = [&](const std::string& why) {
      return Failure{fmt::format("the judge {}: {}", url_.text(), why)};
    };
    if (!posted) return Failure{"the judge " + posted.failure().message};
    if (posted.value().status != 200)
      return failed(
          fmt::format("status {}: {}", posted.value().status, shown(posted.value().body)));
    const auto said = said_in(posted.value().body);
    if (!said) return failed(said.failure().message);
    const auto number = judge_number(options_, said.value());
    if (!number) return failed(number.failure().message);
    return Score{.reward = number.value() / options_.best, .metrics = {}};
  }

 private:
  const http::Url url_;
  const ChatJudgeOptions options_;
};

}  // namespace

Result<std::string> judge_question(const std::string& prompt, const std::string& evidence) {
  const auto retold = RetoldEpisode::read(evidence);
  if (!retold) return retold.failure();
  const Json episode = parse_ordered_json(retold.value().episode);
  std::string question;
  // One pass, so that what an episode says is no place for something else.
  for (size_t at = 0; at < prompt.size();) {
    const std::string_view rest = std::string_view(prompt).substr(at);
    const auto put = [&](std::string_view name, const std::string& text) {
      if (!rest.starts_with(name)) return false;
      question += text;
      at += name.size();
      return true;
    };
    if (rest.front() == '{' &&
        (put("{prompt}", text_of(episode, "prompt")) ||
         put("{response}", text_of(episode, "response")) ||
         put("{conversation}", conversation_of(episode)) ||
         put("{row}", episode.contains("row") ? json_text(episode["row"]) : std::string("null"))))
      continue;
    question += prompt[at++];
  }
  return question;
}

Result<double> judge_number(const ChatJudgeOptions& options, const std::string& said) {
  const size_t mark = options.answer.empty() ? 0 : said.rfind(options.answer);
  if (mark == std::string::npos)
    return Failure{fmt::format("no '{}' in what it says: {}", options.answer, shown(said))};
  size_t at = mark + options.answer.size();
  // "**7**/10" and "= 7" are meant as 7.
  while (at < said.size() &&
         (std::string_view(" \t\r\n*_`=:([").find(said[at]) != std::string_view::npos))
    ++at;
  double number = 0;
  const auto [end, error] = std::from_chars(said.data() + at, said.data() + said.size(), number);
  if (error != std::errc{})
    return Failure{
        fmt::format("no number behind '{}' in what it says: {}", options.answer, shown(said))};
  // Also of one that is not a number.
  if (!(number >= 0 && number <= options.best))
    return Failure{fmt::format("{} where 0 to {} is asked for", number, options.best)};
  return number;
}

std::unique_ptr<Verifier> make_chat_judge(const ChatJudgeOptions& options) {
  const auto url = http::parse_url(options.url);
  if (!url) throw UserError("{}", url.failure().message);
  return std::make_unique<ChatJudge>(url.value(), options);
}

}  // namespace tailrace
