#include "reward/models/chat_judge.h"

#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/base/json_text.h"
#include "core/http/server.h"
#include "reward/command/retold.h"

namespace tailrace {
namespace {

using ::testing::HasSubstr;

std::string evidence() {
  return RetoldEpisode{
      .episode = R"({"prompt": "What is {response}?", "messages": [{"role": "user", "content": )"
                 R"("What is {response}?"}, {"role": "assistant", "content": "Four."}], )"
                 R"("response": "Four.", "row": {"answer": "4"}, "turns": 1})"}
      .write();
}

std::string answer_of(const std::string& said) {
  return json_text(nlohmann::json{
      {"choices", {{{"index", 0}, {"message", {{"role", "assistant"}, {"content", said}}}}}}});
}

// A judge that says always the same.
class Judge {
 public:
  Judge(int status, std::string body)
      : server_({}, [this, status, body](http::Request request, http::Reply reply) {
          heard = std::move(request);
          reply.send(status, body);
        }) {}
  ChatJudgeOptions options() const {
    return {.url = fmt::format("http://127.0.0.1:{}/v1", server_.port()),
            .model = "judge",
            .prompt = "Grade {response} to {prompt} by {row}. {other}",
            .best = 10,
            .key = "secret"};
  }
  http::Request heard;

 private:
  http::Server server_;
};

TEST(ChatJudge, AsksAboutTheEpisodeAndReadsTheNumber) {
  Judge judge(200, answer_of("It is short.\nScore: 2 no, Score: **7.5**/10"));
  const auto score = make_chat_judge(judge.options())->score(evidence(), std::chrono::seconds(20));
  ASSERT_TRUE(score) << score.failure().message;
  EXPECT_DOUBLE_EQ(score.value().reward, 0.75);
  EXPECT_EQ(judge.heard.target, "/v1/chat/completions");
  EXPECT_EQ(judge.heard.header("authorization"), "Bearer secret");
  const auto body = parse_ordered_json(judge.heard.body);
  EXPECT_EQ(body["model"], "judge");
  EXPECT_EQ(body["temperature"], 0);
  // What the episode says is written as it is.
  EXPECT_EQ(body["messages"][0]["content"],
            R"(Grade Four. to What is {response}? by {"answer":"4"}. {other})");
  EXPECT_EQ(judge_question("{conversation}", evidence()).value(),
            "user: What is {response}?\nassistant: Four.\n");
}

TEST(ChatJudge, NoNumberIsNoScore) {
  const auto failure = [](int status, const std::string& body) {
    Judge judge(status, body);
    const auto score =
        make_chat_judge(judge.options())->score(evidence(), std::chrono::seconds(20));
    return score ? "a score" : score.failure().message;
  };
  EXPECT_THAT(failure(200, answer_of("Seven.")), HasSubstr("no 'Score:' in what it says: Seven."));
  EXPECT_THAT(failure(200, answer_of("Score: seven")), HasSubstr("no number behind 'Score:'"));
  EXPECT_THAT(failure(200, answer_of("Score: 11")), HasSubstr("11 where 0 to 10 is asked for"));
  EXPECT_THAT(failure(200, answer_of("Score: -1")), HasSubstr("-1 where 0 to 10"));
  EXPECT_THAT(failure(200, answer_of("Score: nan")), HasSubstr("nan where 0 to 10"));
  EXPECT_THAT(failure(200, "{}"), HasSubstr("an answer without choices"));
  EXPECT_THAT(failure(200, "oops"), HasSubstr("an answer that is"));
  EXPECT_THAT(failure(503, "busy"), HasSubstr("status 503: busy"));
  const auto nobody =
      make_chat_judge({.url = "http://127.0.0.1:1/v1"})->score(evidence(), std::chrono::seconds(5));
  ASSERT_FALSE(nobody);
  EXPECT_THAT(nobody.failure().message, HasSubstr("the judge http://127.0.0.1:1/v1"));
  EXPECT_THROW((void)make_chat_judge({.url = "https://x"}), UserError);
}

}  // namespace
}  // namespace tailrace
