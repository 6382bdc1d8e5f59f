// What an agent's calls become: a tree whose sampled tokens are those that were sampled. The
// tokenizer is MiniMind's, with its chat template; answers are made up.
#include "rollout/gateway/capture.h"

#include <algorithm>
#include <set>
#include <span>

#include <gtest/gtest.h>

#include "core/base/json_text.h"
#include "core/base/random.h"
#include "tests/rollout/gateway/conversation.h"

namespace tailrace::gateway {
namespace {

using nlohmann::ordered_json;
using Place = Capture::Place;
using Ids = std::vector<TokenId>;

const chat::PromptFormat& chat_format() {
  static const auto format = chat::PromptFormat::of({}, kModelFolder, tokenizer());
  return format;
}

ordered_json answer(const std::string& text) {
  return {{"role", "assistant"}, {"content", text}, {"refusal", nullptr}};
}

// As a policy may sample it: token by token, which is not how a tokenizer would write it.
std::vector<GeneratedToken> sampled(const std::string& text, int64_t version = 3) {
  std::vector<GeneratedToken> tokens;
  for (const char c : text)
    for (const TokenId id : tokenizer().encode(std::string(1, c)))
      tokens.push_back({.id = id, .logprob = -0.5f, .version = version});
  tokens.push_back({.id = chat_format().end_of_turn(), .logprob = -0.25f, .version = version});
  return tokens;
}

class CaptureTest : public ::testing::Test {
 protected:
  Place open(const ordered_json& messages, const std::string& tools = "") {
    auto place = capture_.open(messages, tools);
    EXPECT_TRUE(place) << place.failure().message;
    return place.value();
  }
  // A call with its answer.
  Place call(const ordered_json& messages, const std::string& text, SessionId session = 0) {
    Place place = open(messages);
    capture_.commit(place, sampled(text), answer(text), session);
    return place;
  }
  std::vector<Segment> tree() {
    Trajectory trajectory;
    trajectory.numerics_classes = {"cpu"};
    trajectory.turns = static_cast<int32_t>(capture_.num_answers());
    trajectory.segments = capture_.take();
    EXPECT_EQ(find_fault(trajectory), std::nullopt);
    return trajectory.segments;
  }
  static std::string text_of(const Segment& segment) {
    return tokenizer().decode(segment.tokens, /*keep_special=*/true);
  }
  static std::string trained(const Segment& segment) {
    Ids ids;
    for (size_t i = 0; i < segment.tokens.size(); ++i)
      if (segment.roles[i] == TokenRole::kSampled) ids.push_back(segment.tokens[i]);
    return tokenizer().decode(ids, true);
  }

  Capture capture_{chat_format()};
};

TEST_F(CaptureTest, AConversationThatGrowsIsOneSegmentWithTheTokensThatWereSampled) {
  const Place first = call(said({{"user", "ab?"}}), "hello", 7);
  EXPECT_EQ(first.behind, -1);
  EXPECT_EQ(first.session, 0);
  const Place second =
      call(said({{"user", "ab?"}, {"assistant", "hello"}, {"user", "and?"}}), "world", 7);
  EXPECT_EQ(second.behind, 0);
  EXPECT_EQ(second.session, 7) << "its KV goes on";
  // The context is what was sampled and not what a tokenizer would make of it.
  Ids context = first.context;
  for (const GeneratedToken& token : sampled("hello")) context.push_back(token.id);
  EXPECT_EQ(second.num_known, context.size());
  EXPECT_EQ(Ids(second.context.begin(), second.context.begin() + std::ssize(context)), context);
  const auto segments = tree();
  ASSERT_EQ(segments.size(), 1);
  EXPECT_EQ(segments[0].turn_begins.size(), 2);
  EXPECT_EQ(segments[0].turn_numbers, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(trained(segments[0]), "hello<|im_end|>world<|im_end|>");
  EXPECT_EQ(segments[0].roles.front(), TokenRole::kPrompt);
  EXPECT_EQ(segments[0].roles[second.num_known], TokenRole::kObservation);
}

// Where two episodes hear the same behind other answers, they stand in the same state.
TEST_F(CaptureTest, AnAnchorIsOfWhatWasSaidBehindTheLastAnswer) {
  call(said({{"user", "ab?"}}), "hello", 0);
  call(said({{"user", "ab?"}, {"assistant", "hello"}, {"user", "and?"}}), "world", 0);
  // Begun anew: its history has become shorter.
  call(said({{"assistant", "..."}, {"user", "and?"}}), "again", 0);
  call(said({{"user", "and?"}, {"user", "?"}}), "more", 0);
  const std::vector<uint64_t> anchors = capture_.anchors();
  ASSERT_EQ(anchors.size(), 4);
  EXPECT_NE(anchors[0], anchors[1]);
  EXPECT_EQ(anchors[1], anchors[2]);
  EXPECT_NE(anchors[3], anchors[2]);
}

TEST_F(CaptureTest, WhatClientsLeaveOutOfAnAnswerDoesNotMatter) {
  const ordered_json question = said({{"user", "ab?"}});
  const Place place = open(question);
  ordered_json given = answer("hello ");
  given["reasoning_content"] = "hm";
  given["tool_calls"] = {{{"id", "call_1"},
                          {"type", "function"},
                          {"function", {{"name", "f"}, {"arguments", "{\"a\": 1, \"b\": 2}"}}}}};
  capture_.commit(place, sampled("hello "), given, 0);
  ordered_json again = question;
  again.push_back(
      {{"content", "hello"},
       {"role", "assistant"},
       {"tool_calls",
        {{{"function", {{"arguments", "{\"b\":2,\"a\":1}"}, {"name", "f"}}}, {"id", "other"}}}}});
  again.push_back({{"role", "user"}, {"content", "and?"}});
  EXPECT_EQ(open(again).behind, 0);
  again[1]["tool_calls"][0]["function"]["arguments"] = "{\"a\":1,\"b\":3}";
  EXPECT_EQ(open(again).behind, -1) << "another call";
}

TEST_F(CaptureTest, AnEditedAnswerGoesOnBehindTheOneBeforeIt) {
  call(said({{"user", "ab?"}}), "one");
  call(said({{"user", "ab?"}, {"assistant", "one"}, {"user", "c?"}}), "two");
  const Place edited = call(said({{"user", "ab?"},
                                  {"assistant", "one"},
                                  {"user", "c?"},
                                  {"assistant", "EDITED"},
                                  {"user", "d?"}}),
                            "three");
  EXPECT_EQ(edited.behind, 0);
  const auto segments = tree();
  ASSERT_EQ(segments.size(), 2);
  EXPECT_EQ(segments[1].parent, 0);
  EXPECT_EQ(segments[1].parent_tokens, static_cast<int32_t>(edited.num_known));
  EXPECT_EQ(trained(segments[0]), "one<|im_end|>two<|im_end|>");
  EXPECT_EQ(trained(segments[1]), "three<|im_end|>") << "what somebody else wrote is not trained";
  EXPECT_NE(text_of(segments[1]).find("EDITED"), std::string::npos);
}

TEST_F(CaptureTest, AHistoryThatWasTruncatedBeginsAnew) {
  call(said({{"system", "s"}, {"user", "ab?"}}), "one");
  call(said({{"system", "s"}, {"user", "ab?"}, {"assistant", "one"}, {"user", "c?"}}), "two");
  const Place shorter = call(said({{"system", "s"}, {"user", "so far: one, two. d?"}}), "three");
  EXPECT_EQ(shorter.behind, -1);
  EXPECT_EQ(capture_.num_begun_anew(), 1);
  const auto segments = tree();
  ASSERT_EQ(segments.size(), 2);
  EXPECT_EQ(segments[1].parent, -1);
  EXPECT_EQ(segments[1].roles.front(), TokenRole::kPrompt);
}

TEST_F(CaptureTest, ParallelCallsBehindOneAnswerAreBranches) {
  call(said({{"user", "ab?"}}), "one", 7);
  const auto behind = [](const char* text) {
    return said({{"user", "ab?"}, {"assistant", "one"}, {"user", text}});
  };
  const Place left = open(behind("left?")), right = open(behind("right?"));
  EXPECT_EQ(left.session, 7);
  EXPECT_EQ(right.session, 0) << "one session samples one answer at a time";
  // In whichever order they are answered.
  capture_.commit(right, sampled("R"), answer("R"), 8);
  capture_.commit(left, sampled("L"), answer("L"), 7);
  const auto segments = tree();
  ASSERT_EQ(segments.size(), 2);
  EXPECT_EQ(trained(segments[0]), "one<|im_end|>R<|im_end|>");
  EXPECT_EQ(segments[1].parent_tokens, static_cast<int32_t>(left.num_known));
  EXPECT_EQ(trained(segments[1]), "L<|im_end|>");
}

TEST_F(CaptureTest, AnswersToTheSameShareWhatWasSaid) {
  const Place first = open(said({{"user", "ab?"}}));
  const Place second = capture_.again(first);
  EXPECT_EQ(first.ordinal, 0);
  EXPECT_EQ(second.ordinal, 1) << "so that it is drawn otherwise";
  capture_.commit(first, sampled("x"), answer("x"), 7);
  capture_.commit(second, sampled("y"), answer("y"), 8);
  EXPECT_EQ(open(said({{"user", "ab?"}, {"assistant", "y"}, {"user", "c?"}})).session, 8);
  const auto segments = tree();
  ASSERT_EQ(segments.size(), 2);
  EXPECT_EQ(segments[1].parent, 0);
  EXPECT_EQ(segments[1].parent_tokens, static_cast<int32_t>(first.context.size()));
  EXPECT_EQ(trained(segments[1]), text_of(segments[1])) << "the prompt is there once";
}

TEST_F(CaptureTest, TwoSubAgentsHaveRootsOfTheirOwn) {
  call(said({{"system", "You plan."}, {"user", "go"}}), "ask both");
  call(said({{"system", "You read."}, {"user", "file 1"}}), "it says a");
  call(said({{"system", "You count."}, {"user", "file 2"}}), "it has 2");
  call(said({{"system", "You plan."},
             {"user", "go"},
             {"assistant", "ask both"},
             {"user", "a and 2"}}),
       "done");
  const auto segments = tree();
  ASSERT_EQ(segments.size(), 3);
  for (const Segment& segment : segments) EXPECT_EQ(segment.parent, -1);
  EXPECT_EQ(segments[0].turn_begins.size(), 2);
}

TEST_F(CaptureTest, ACallThatWasCutLeavesNothing) {
  call(said({{"user", "ab?"}}), "one", 7);
  const ordered_json more = said({{"user", "ab?"}, {"assistant", "one"}, {"user", "c?"}});
  const Place cut = open(more);
  EXPECT_EQ(cut.session, 7);
  capture_.discard(cut);
  const Place retried = open(more);
  EXPECT_EQ(retried.session, 0) << "the session of a call that was cut is not known";
  EXPECT_EQ(retried.ordinal, 0) << "the same draws, as nobody has seen others";
  EXPECT_EQ(retried.context, cut.context);
  capture_.commit(retried, sampled("two"), answer("two"), 9);
  const auto segments = tree();
  ASSERT_EQ(segments.size(), 1);
  EXPECT_EQ(trained(segments[0]), "one<|im_end|>two<|im_end|>");
}

TEST_F(CaptureTest, AnAnswerThatNobodyHasReadLeavesNothing) {
  const ordered_json question = said({{"user", "ab?"}}),
                     more = said({{"user", "ab?"}, {"assistant", "one"}, {"user", "c?"}});
  call(question, "one");
  const Place unread = open(more);
  const int32_t number = capture_.commit(unread, sampled("lost"), answer("lost"), 0);
  EXPECT_TRUE(capture_.set_heard(number, unread, false));
  EXPECT_FALSE(capture_.is_unused(number));
  // Asked again, by a client that does not say so: as if it had been asked once.
  const Place again = open(more);
  EXPECT_EQ(again.ordinal, 0) << "the same draws, as nobody has seen others";
  capture_.commit(again, sampled("two"), answer("two"), 0);
  call(said({{"user", "ab?"},
             {"assistant", "one"},
             {"user", "c?"},
             {"assistant", "two"},
             {"user", "d?"}}),
       "three");
  const auto segments = tree();
  ASSERT_EQ(segments.size(), 1);
  EXPECT_EQ(trained(segments[0]), "one<|im_end|>two<|im_end|>three<|im_end|>");
  EXPECT_EQ(capture_.num_answers(), 3);
  EXPECT_EQ(capture_.anchors().size(), 3);
  EXPECT_EQ(segments[0].turn_numbers, (std::vector<int32_t>{0, 1, 2}));
}

TEST_F(CaptureTest, AnAnswerThatIsGoneOnFromWasRead) {
  const Place place = open(said({{"user", "ab?"}}));
  const int32_t number = capture_.commit(place, sampled("one"), answer("one"), 0);
  EXPECT_TRUE(capture_.set_heard(number, place, false));
  call(said({{"user", "ab?"}, {"assistant", "one"}, {"user", "c?"}}), "two");
  EXPECT_FALSE(capture_.set_heard(number, place, false));
  // And one that was given once more, and read.
  const Place other = open(said({{"user", "x?"}}));
  const int32_t last = capture_.commit(other, sampled("y"), answer("y"), 0);
  EXPECT_TRUE(capture_.set_heard(last, other, false));
  EXPECT_TRUE(capture_.set_heard(last, other, true));
  EXPECT_TRUE(capture_.is_unused(last));
  EXPECT_EQ(open(said({{"user", "x?"}})).ordinal, 1);
  const auto segments = tree();
  ASSERT_EQ(segments.size(), 2);
  EXPECT_EQ(trained(segments[0]), "one<|im_end|>two<|im_end|>");
  EXPECT_EQ(trained(segments[1]), "y<|im_end|>");
}

// What is kept of an episode for people is what somebody has read, whatever came behind it.
TEST_F(CaptureTest, TheLastConversationIsOneWhoseAnswerWasRead) {
  const ordered_json question = said({{"user", "ab?"}}), other = said({{"user", "c?"}});
  const auto with = [](ordered_json messages, const std::string& text) {
    messages.push_back(answer(text));
    return messages;
  };
  EXPECT_TRUE(capture_.last_conversation().is_null());
  const Place first = open(question);
  const int32_t read = capture_.commit(first, sampled("read"), answer("read"), 0);
  // Two answers to one call (n = 2), whose client has gone.
  const Place one = open(other), two = capture_.again(one);
  const int32_t lost = capture_.commit(one, sampled("x"), answer("x"), 0),
                lost_too = capture_.commit(two, sampled("y"), answer("y"), 0);
  EXPECT_EQ(capture_.last_conversation(), with(other, "y")) << "nobody has said otherwise yet";
  EXPECT_TRUE(capture_.set_heard(lost_too, two, false));
  EXPECT_EQ(capture_.last_conversation(), with(other, "x"));
  EXPECT_TRUE(capture_.set_heard(lost, one, false));
  EXPECT_EQ(capture_.last_conversation(), with(question, "read"));
  EXPECT_FALSE(capture_.set_heard(read, first, true));
  // The call is answered once more, and read; then another one is lost.
  EXPECT_TRUE(capture_.set_heard(lost, one, true));
  EXPECT_TRUE(capture_.set_heard(lost_too, two, true));
  const Place third = open(said({{"user", "d?"}}));
  const int32_t last = capture_.commit(third, sampled("z"), answer("z"), 0);
  EXPECT_TRUE(capture_.set_heard(last, third, false));
  EXPECT_EQ(capture_.last_conversation(), with(other, "y"));
  (void)tree();
  EXPECT_EQ(capture_.last_conversation(), with(other, "y"));
}

// Whichever answers nobody has read: what is left is what would have been captured without them.
TEST_F(CaptureTest, WithoutWhatNobodyHasReadTheTreeIsSoundAndWhole) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    Capture capture(chat_format());
    std::vector<ordered_json> conversations = {said({{"user", "a?"}}), said({{"user", "b?"}})};
    std::multiset<std::string> read;
    for (int i = 0; i < 12; ++i) {
      const ordered_json messages =
          conversations[static_cast<size_t>(rng.below(std::ssize(conversations)))];
      const auto place = capture.open(messages, "");
      ASSERT_TRUE(place);
      const std::string text = "w" + std::to_string(i);
      const int32_t number = capture.commit(place.value(), sampled(text), answer(text), 0);
      const std::string context = tokenizer().decode(place.value().context, true);
      if (rng.chance(0.5)) {
        (void)capture.set_heard(number, place.value(), false);
        continue;
      }
      read.insert(context + text + "<|im_end|>");
      ordered_json more = messages;
      more.push_back({{"role", "assistant"}, {"content", text}});
      more.push_back({{"role", "user"}, {"content", "q" + std::to_string(i)}});
      conversations.push_back(std::move(more));
    }
    Trajectory trajectory;
    trajectory.numerics_classes = {"cpu"};
    trajectory.segments = capture.take();
    trajectory.turns = static_cast<int32_t>(capture.num_answers());
    trajectory.turn_anchors = capture.anchors();
    ASSERT_EQ(find_fault(trajectory), std::nullopt) << "seed " << seed;
    // Each answer with all that stands in front of it.
    std::multiset<std::string> found;
    std::vector<Ids> contexts;
    for (const Segment& segment : trajectory.segments) {
      Ids context;
      if (segment.parent >= 0) {
        context = contexts[static_cast<size_t>(segment.parent)];
        context.resize(static_cast<size_t>(segment.parent_tokens));
      }
      const size_t inherited = context.size();
      context.insert(context.end(), segment.tokens.begin(), segment.tokens.end());
      EXPECT_FALSE(segment.turn_begins.empty()) << "seed " << seed;
      for (const int32_t begin : segment.turn_begins) {
        auto end = static_cast<size_t>(begin);
        while (end < segment.tokens.size() && segment.roles[end] == TokenRole::kSampled &&
               (end == static_cast<size_t>(begin) ||
                segment.tokens[end - 1] != chat_format().end_of_turn()))
          ++end;
        found.insert(tokenizer().decode(
            Ids(context.begin(), context.begin() + static_cast<std::ptrdiff_t>(inherited + end)),
            true));
      }
      contexts.push_back(std::move(context));
    }
    EXPECT_EQ(found, read) << "seed " << seed;
  }
}

// A task that is begun again gets another answer that reads the same: what is said behind each was
// sampled behind its own tokens.
TEST_F(CaptureTest, AnswersThatReadTheSameAreNotMixedUp) {
  const ordered_json question = said({{"user", "ab?"}}),
                     more = said({{"user", "ab?"}, {"assistant", "one"}, {"user", "c?"}});
  const auto answered = [&](const std::vector<GeneratedToken>& tokens) {
    const Place place = open(question);
    capture_.commit(place, tokens, answer("one"), 0);
    const Place next = open(more);
    capture_.commit(next, sampled("two"), answer("two"), 0);
    return next.context;
  };
  std::vector<GeneratedToken> whole;
  for (const TokenId id : tokenizer().encode("one"))
    whole.push_back({.id = id, .logprob = -1, .version = 3});
  const Ids first = answered(sampled("one")), second = answered(whole);
  EXPECT_NE(first, second);
  const auto segments = tree();
  ASSERT_EQ(segments.size(), 2);
  Ids context(segments[0].tokens.begin(), segments[0].tokens.begin() + segments[1].parent_tokens);
  context.insert(context.end(), segments[1].tokens.begin(), segments[1].tokens.end());
  EXPECT_TRUE(std::ranges::equal(second, std::span(context).first(second.size())));
}

TEST_F(CaptureTest, WhatAClientSendsOfAnAnswersThinkingTellsTwoApart) {
  const ordered_json question = said({{"user", "ab?"}});
  for (const char* thought : {"first", "second"}) {
    const Place place = open(question);
    ordered_json given = answer("one");
    given["reasoning_content"] = thought;
    capture_.commit(place, sampled(std::string(thought) + "one"), given, 0);
  }
  ordered_json more = said({{"user", "ab?"}, {"assistant", "one"}, {"user", "c?"}});
  EXPECT_EQ(open(more).behind, 1) << "the newest";
  more[1]["reasoning_content"] = "first";
  EXPECT_EQ(open(more).behind, 0);
}

TEST_F(CaptureTest, ACallThatIsCutMovesNoOthersDraws) {
  const ordered_json question = said({{"user", "ab?"}});
  const Place a = open(question), b = open(question);
  capture_.discard(a);
  EXPECT_EQ(open(question).ordinal, 2) << "1 is being drawn";
  EXPECT_EQ(b.ordinal, 1);
}

// Whatever is asked in whatever order: behind the tokens of a segment stands what was sampled
// behind just these.
TEST_F(CaptureTest, EveryAnswerStandsBehindWhatItWasSampledBehind) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Rng rng(seed);
    Capture capture(chat_format());
    std::vector<ordered_json> known = {ordered_json::array()};
    std::vector<Place> open_calls;
    std::vector<std::pair<Ids, Ids>> sampled_behind;  // context, answer
    const auto commit = [&](const Place& place) {
      // Few answers, as tokens of their text or of another cut of it.
      const std::string text = rng.chance(0.5) ? "one" : "two";
      std::vector<GeneratedToken> tokens;
      if (rng.chance(0.5)) {
        tokens = sampled(text);
      } else {
        for (const TokenId id : tokenizer().encode(text))
          tokens.push_back({.id = id, .logprob = -1, .version = 3});
      }
      Ids ids;
      for (const GeneratedToken& token : tokens) ids.push_back(token.id);
      sampled_behind.emplace_back(place.context, ids);
      capture.commit(place, tokens, answer(text), 0);
      known.push_back(*place.said);
      known.back().push_back(answer(text));
    };
    for (int step = 0; step < 30; ++step) {
      if (!open_calls.empty() && rng.chance(0.5)) {
        const auto at = open_calls.begin() + rng.below(std::ssize(open_calls));
        if (rng.chance(0.2)) {
          capture.discard(*at);
        } else {
          commit(*at);
        }
        open_calls.erase(at);
        continue;
      }
      ordered_json messages = known[static_cast<size_t>(rng.below(std::ssize(known)))];
      if (!messages.empty() && rng.chance(0.1)) messages.back()["content"] = "edited";
      messages.push_back({{"role", "user"}, {"content", rng.chance(0.5) ? "a?" : "b?"}});
      open_calls.push_back(capture.open(messages, "").value());
    }
    Trajectory trajectory;
    trajectory.numerics_classes = {"cpu"};
    trajectory.turns = static_cast<int32_t>(capture.num_answers());
    trajectory.turn_anchors = capture.anchors();
    trajectory.segments = capture.take();
    size_t num_numbered = 0;
    for (const Segment& segment : trajectory.segments) num_numbered += segment.turn_numbers.size();
    ASSERT_EQ(num_numbered, trajectory.turn_anchors.size()) << seed;
    ASSERT_EQ(find_fault(trajectory), std::nullopt) << seed;
    // The contexts of all answers in the tree.
    std::vector<std::pair<Ids, Ids>> in_tree;
    std::vector<Ids> contexts;
    for (const Segment& segment : trajectory.segments) {
      Ids context;
      if (segment.parent >= 0) {
        context = contexts[static_cast<size_t>(segment.parent)];
        context.resize(static_cast<size_t>(segment.parent_tokens));
      }
      for (size_t i = 0; i < segment.tokens.size(); ++i) {
        const bool begins = std::ranges::find(segment.turn_begins, static_cast<int32_t>(i)) !=
                            segment.turn_begins.end();
        if (begins) in_tree.emplace_back(context, Ids());
        context.push_back(segment.tokens[i]);
        if (segment.roles[i] == TokenRole::kSampled)
          in_tree.back().second.push_back(segment.tokens[i]);
      }
      contexts.push_back(std::move(context));
    }
    std::ranges::sort(in_tree);
    std::ranges::sort(sampled_behind);
    ASSERT_EQ(in_tree, sampled_behind) << seed;
  }
}

TEST_F(CaptureTest, OtherToolsAreAnotherConversation) {
  const std::string tools =
      R"([{"type": "function", "function": {"name": "f", "parameters": {}}}])";
  const Place place = open(said({{"user", "ab?"}}), tools);
  capture_.commit(place, sampled("one"), answer("one"), 0);
  const ordered_json more = said({{"user", "ab?"}, {"assistant", "one"}, {"user", "c?"}});
  EXPECT_EQ(open(more, tools).behind, 0);
  EXPECT_EQ(open(more).behind, -1);
}

TEST_F(CaptureTest, TextsGoOnBehindTheirAnswers) {
  auto place = capture_.open_text("solve 1 + 2 >").value();
  std::vector<GeneratedToken> tokens = sampled("calc\n");
  tokens.pop_back();
  capture_.commit(place, tokens, answer("calc"), 7);
  // As the client has it, without the newline that ended the answer, and with it.
  const Place bare = capture_.open_text("solve 1 + 2 >calc 3 >").value();
  EXPECT_EQ(bare.behind, 0);
  EXPECT_EQ(tokenizer().decode(std::span(bare.context).subspan(bare.num_known)), " 3 >");
  const Place whole = capture_.open_text("solve 1 + 2 >calc\n3 >").value();
  EXPECT_EQ(tokenizer().decode(std::span(whole.context).subspan(whole.num_known)), "3 >");
  Ids ids = bare.context;
  const Place by_ids = capture_.open_tokens(ids).value();
  EXPECT_EQ(by_ids.num_known, bare.num_known);
  EXPECT_EQ(by_ids.context, ids);
}

TEST_F(CaptureTest, ArgumentsOfAnyDepthAreTexts) {
  ordered_json messages = said({{"user", "a"}, {"assistant", ""}, {"user", "b"}});
  messages[1]["tool_calls"] = {
      {{"id", "1"},
       {"type", "function"},
       {"function",
        {{"name", "f"}, {"arguments", std::string(200'000, '[') + std::string(200'000, ']')}}}}};
  EXPECT_EQ(capture_.open(messages, "").value().behind, -1);
}

TEST_F(CaptureTest, WhatCannotBeAnsweredIsRefused) {
  EXPECT_EQ(capture_.open(ordered_json::array(), "").failure().message, "there are no messages");
  EXPECT_NE(capture_.open(said({{"user", "a"}, {"assistant", "b"}}), "")
                .failure()
                .message.find("nothing to answer"),
            std::string::npos);
  EXPECT_FALSE(capture_.open_text(""));
  EXPECT_FALSE(capture_.open(said({{"user", "a"}}), "{no json"));
}

// A model without a chat template hears texts one behind the other, as from an environment.
TEST(CapturePlain, MessagesAreTheirTexts) {
  const chat::PromptFormat plain(tokenizer());
  Capture capture(plain);
  const Place place = capture.open(said({{"user", "solve 1 + 2 >"}}), "").value();
  EXPECT_EQ(place.context, plain.first({.text = "solve 1 + 2 >"}).value());
  capture.commit(place, sampled("calc"), answer("calc"), 0);
  const Place next =
      capture.open(said({{"user", "solve 1 + 2 >"}, {"assistant", "calc"}, {"user", "3 >"}}), "")
          .value();
  EXPECT_EQ(Ids(next.context.begin() + std::ssize(place.context) + 5, next.context.end()),
            plain.next({.text = "3 >"}, -1).value());
  EXPECT_FALSE(capture.open(said({{"user", "a"}}), "[{}]")) << "nothing tells it of tools";
}

}  // namespace
}  // namespace tailrace::gateway
