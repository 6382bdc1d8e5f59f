// The state of an attempt at its end.
#include "rollout/gateway/attempt.h"

#include <gtest/gtest.h>

#include "tests/rollout/gateway/conversation.h"

namespace tailrace::gateway {
namespace {

class AttemptTest : public ::testing::Test {
 protected:
  // An answer of one token to a call of its own.
  CapturedCall answer(const std::string& prompt) {
    ChatRequest request;
    request.messages = said({{"user", prompt}});
    request.is_chat = true;
    SessionId unused = 0;
    const auto placed = attempt_.place(request, prompt, unused);
    CapturedCall captured;
    const auto* places = std::get_if<std::vector<Capture::Place>>(&placed);
    EXPECT_NE(places, nullptr);
    if (places == nullptr) return captured;
    Choice choice;
    choice.tokens = {{.id = 5}};
    attempt_.commit(places->front(), choice, {{"role", "assistant"}, {"content", "a"}},
                    /*session=*/0, prompt, captured);
    return captured;
  }

  std::unique_ptr<text::Tokenizer> tokenizer_ =
      text::load_tokenizer(std::string(TAILRACE_SOURCE_DIR) + "/tests/data/models/stories260K");
  chat::PromptFormat format_{*tokenizer_};
  Attempt attempt_{{.max_context_tokens = 128, .max_response_tokens = 128, .max_calls = 9},
                   format_,
                   /*is_anonymous=*/false};
};

TEST_F(AttemptTest, AnAnswerOfWhichNothingIsKnownAtTheEndWasNotRead) {
  attempt_.set_heard(answer("Once"), true);
  EXPECT_FALSE(attempt_.has_unknown());
  attempt_.set_heard(answer("Then"), false);
  EXPECT_FALSE(attempt_.has_unknown());
  const CapturedCall unknown = answer("One day");
  EXPECT_TRUE(attempt_.has_unknown());
  const CapturedAttempt captured = attempt_.end();
  attempt_.set_heard(unknown, true);  // too late, and of no consequence
  EXPECT_EQ(captured.num_answers, 1);
  EXPECT_EQ(captured.num_unheard, 2);
  EXPECT_EQ(captured.segments.size(), 1);
  EXPECT_NE(captured.conversation.find("Once"), captured.conversation.npos);
}

TEST_F(AttemptTest, ACallThatGoesOnBehindAnAnswerHasReadIt) {
  (void)answer("Once");
  ChatRequest request;
  request.messages = said({{"user", "Once"}, {"assistant", "a"}, {"user", " and"}});
  request.is_chat = true;
  SessionId unused = 0;
  (void)attempt_.place(request, "next", unused);
  EXPECT_FALSE(attempt_.has_unknown());
  EXPECT_EQ(attempt_.end().num_answers, 1);
}

}  // namespace
}  // namespace tailrace::gateway
