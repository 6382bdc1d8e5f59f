// Agents over real sockets, a real engine behind them.
#include "rollout/gateway/gateway.h"

#include <atomic>
#include <functional>
#include <future>
#include <set>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/model/sequence_scorer.h"
#include "tests/core/http/client.h"
#include "tests/rollout/engine/engine_harness.h"
#include "tests/rollout/gateway/conversation.h"

namespace tailrace::gateway {
namespace {

using namespace std::chrono_literals;
using nlohmann::ordered_json;

struct Response {
  int status = 0;
  std::string body;
  ordered_json json() const { return ordered_json::parse(body); }
};

Response read_response(http::Client& client) {
  http::Answer answer = client.read_answer();
  return {answer.status, std::move(answer.body)};
}

SamplingParams sampling(double temperature, int64_t max_new_tokens) {
  SamplingParams params;
  params.temperature = temperature;
  params.max_new_tokens = max_new_tokens;
  return params;
}

class GatewayTest : public ::testing::Test {
 protected:
  GatewayTest() {
    options_.serves_anonymous = true;
    options_.sampling = sampling(0, 8);
    open_gateway();
  }
  void open_gateway() {
    gateway_ = std::make_unique<Gateway>(driver_, format_, options_, clock_);
    port_ = gateway_->server().port();
  }

  AttemptSpec spec(uint64_t key = 5) const {
    return {.key = {key},
            .sampling = sampling(1, 6),
            .max_context_tokens = 128,
            .max_response_tokens = 128,
            .max_calls = 100};
  }
  // The path of a base URL.
  static std::string path_of(const std::string& url) { return url.substr(url.find('/', 7)); }
  std::string path(const std::string& key) const { return path_of(gateway_->base_url(key)); }

  // What the owner's loop does, until `done`.
  void serve_until(const std::function<bool()>& done) {
    for (const Time until = clock_.now() + 20s; !done() && clock_.now() < until;) {
      gateway_->poll();
      if (engine_->idle()) {
        gateway_->wait(1ms);
      } else {
        driver_.step();
      }
    }
    EXPECT_TRUE(done());
  }
  // The whole answer to a call that comes; nobody is given it yet.
  std::vector<Generation> sample_all() {
    serve_until([&] { return !engine_->idle(); });
    std::vector<Generation> sampled;
    while (sampled.empty()) sampled = engine_->step();
    return sampled;
  }
  std::future<Response> ask_later(const std::string& target, const std::string& body,
                                  const std::string& headers = "") {
    return std::async(std::launch::async, [this, target, body, headers] {
      http::Client client(port_);
      client.send(http::post(target, body, headers));
      return read_response(client);
    });
  }
  Response get(std::future<Response> response) {
    serve_until([&] { return response.wait_for(0s) == std::future_status::ready; });
    return response.get();
  }
  Response ask(const std::string& target, const ordered_json& body,
               const std::string& headers = "") {
    return get(ask_later(target, body.dump(), headers));
  }
  static std::string content(const Response& response) {
    EXPECT_EQ(response.status, 200) << response.body;
    return response.json()["choices"][0]["message"]["content"];
  }
  Trajectory tree(const CapturedAttempt& attempt) const {
    Trajectory trajectory;
    trajectory.numerics_classes = {"cpu"};
    trajectory.sampling.temperature = 1;
    trajectory.segments = attempt.segments;
    trajectory.turns = static_cast<int32_t>(attempt.num_answers);
    trajectory.turn_anchors = attempt.anchors;
    EXPECT_EQ(find_fault(trajectory), std::nullopt);
    return trajectory;
  }

  TestModel model_{"models/stories260K"};
  std::unique_ptr<text::Tokenizer> tokenizer_ =
      text::load_tokenizer(std::string(TAILRACE_SOURCE_DIR) + "/tests/data/models/stories260K");
  chat::PromptFormat format_{*tokenizer_};
  TestEngine engine_{model_, {}, tokenizer_.get()};
  GeneratorDriver driver_{*engine_};
  SteadyClock clock_;
  GatewayOptions options_;
  std::unique_ptr<Gateway> gateway_;
  uint16_t port_ = 0;
};

TEST_F(GatewayTest, StrangersAreAnsweredAndForgotten) {
  const Response answer =
      ask("/v1/completions", {{"prompt", "Once upon a time"}, {"max_tokens", 5}});
  ASSERT_EQ(answer.status, 200) << answer.body;
  Generation direct;
  engine_->submit({.session = 1,
                   .new_tokens = tokenizer_->encode("Once upon a time", {.framed = true}),
                   .sampling = sampling(0, 5),
                   .key = {}});
  direct = engine_.finish().at(1);
  std::vector<TokenId> ids;
  for (const GeneratedToken& token : direct.tokens) ids.push_back(token.id);
  EXPECT_EQ(answer.json()["choices"][0]["text"], tokenizer_->decode(ids));
  EXPECT_EQ(answer.json()["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer.json()["usage"]["completion_tokens"], 5);
  engine_->release(1);
  EXPECT_EQ(engine_->num_free_blocks() + engine_->num_cached_blocks(), engine_->num_blocks());
  EXPECT_EQ(ask("/v1/nothing", {}).status, 404);
  EXPECT_EQ(ask("/s/unknown/v1/chat/completions", {{"messages", said({{"user", "a"}})}}).status,
            401);
}

// A text that no context could hold is refused for its bytes, before a token of it is made.
TEST_F(GatewayTest, WhatCannotFitIsRefusedUnread) {
  const int64_t longest = tokenizer_->max_token_bytes();
  ASSERT_GT(longest, 0);
  const std::string key = gateway_->begin(spec());
  const std::string long_text(static_cast<size_t>(128 * longest + 1), 'a');
  const std::string blanks(long_text.size(), ' ');
  for (const auto& [target, body] :
       {std::pair<std::string, ordered_json>{"/completions", {{"prompt", long_text}}},
        {"/chat/completions", {{"messages", said({{"user", "a"}, {"user", long_text}})}}},
        {"/completions", {{"prompt", blanks}}},
        {"/chat/completions", {{"messages", said({{"user", "a"}, {"user", blanks}})}}},
        {"/completions", {{"prompt", std::vector<int>(129, 5)}}}}) {
    const Response refused = ask(path(key) + target, body);
    EXPECT_EQ(refused.status, 400);
    EXPECT_EQ(refused.json()["error"]["code"], "context_length_exceeded") << refused.body;
    const std::string message = refused.json()["error"]["message"];
    EXPECT_NE(message.find("129 tokens"), std::string::npos) << message;
    EXPECT_NE(message.find("the context holds 128"), std::string::npos) << message;
  }
  // What may fit is encoded, and told with its tokens.
  const std::string text(static_cast<size_t>(128 * longest - 5), 'a');
  const Response told = ask(path(key) + "/completions", {{"prompt", text}});
  EXPECT_NE(told.body.find("the conversation has "), std::string::npos) << told.body;
  EXPECT_EQ(told.body.find(" bytes of text"), std::string::npos) << told.body;
  EXPECT_TRUE(gateway_->end(key).over_limit);
}

TEST_F(GatewayTest, ABodyThatIsTooLongIsRefusedWithTheKey) {
  AttemptSpec small = spec();
  small.max_request_bytes = 1000;
  const std::string key = gateway_->begin(small);
  const Response refused =
      ask(path(key) + "/completions", {{"prompt", "a"}, {"user", std::string(1000, 'u')}});
  EXPECT_EQ(refused.status, 413);
  EXPECT_NE(refused.body.find("at most 1000 are taken (env.agent.max_request_mb)"),
            std::string::npos)
      << refused.body;
  EXPECT_EQ(ask(path(key) + "/completions", {{"prompt", "a"}}).status, 200);
}

// In a run with one agent the server has that agent's limit, so it is the one that refuses.
TEST_F(GatewayTest, RefusalsOfTheServerItselfAreToldAndCounted) {
  options_.http.max_body_bytes = 1000;
  options_.http.body_limit = "env.agent.max_request_mb";
  options_.http.max_header_bytes = 2000;
  open_gateway();
  AttemptSpec small = spec();
  small.max_request_bytes = options_.http.max_body_bytes;
  const std::string key = gateway_->begin(small);
  const std::string long_body(1001, 'x');
  EXPECT_EQ(get(ask_later(path(key) + "/completions", long_body)).status, 413);
  EXPECT_EQ(get(ask_later("http://policy" + path(key) + "/completions", long_body)).status, 413);
  const std::string bearer = "authorization: Bearer " + key + "\r\n";
  EXPECT_EQ(get(ask_later("/v1/completions", long_body, bearer)).status, 413);
  EXPECT_EQ(get(ask_later("/v1/completions", long_body)).status, 413) << "nobody's";
  EXPECT_EQ(get(ask_later("/", "", "x: " + std::string(3000, 'x') + "\r\n")).status, 431);
  EXPECT_EQ(get(ask_later("a b", "")).status, 505);

  const std::vector<std::string> lines = gateway_->take_refusals();
  ASSERT_EQ(lines.size(), 3);
  EXPECT_EQ(lines[0],
            "the gateway refused a call: 413 the body of the request has more than 1000 bytes "
            "(env.agent.max_request_mb)");
  EXPECT_NE(lines[1].find("431 the header of the request"), lines[1].npos) << lines[1];
  EXPECT_NE(lines[2].find("505 the request is not of HTTP"), lines[2].npos) << lines[2];
  const std::vector<std::string> totals = gateway_->take_refusals(/*is_end=*/true);
  ASSERT_EQ(totals.size(), 1);
  EXPECT_TRUE(totals[0].ends_with("(the like 4 times in all)")) << totals[0];
  const CapturedAttempt attempt = gateway_->end(key);
  EXPECT_EQ(attempt.num_refused, 3);
  EXPECT_NE(attempt.last_refusal.find("413 the body"), attempt.last_refusal.npos);
}

// Nobody samples here, and one client has sent far more than is read in a moment: whoever needs
// neither is answered.
TEST_F(GatewayTest, OtherCallsAreAnsweredWhileLongOnesAreRead) {
  std::string objects = "{}";
  for (int i = 0; i < 400'000; ++i) objects += ",{}";
  const std::string body = R"({"prompt": "a", "max_tokens": 1, "x": [)" + objects + "]}";
  std::vector<std::future<Response>> longs;
  for (int i = 0; i < 4; ++i) longs.push_back(ask_later("/v1/completions", body));
  http::Client other(port_);
  for (int i = 0; i < 5; ++i) {
    other.send("GET /health HTTP/1.1\r\n\r\n");
    EXPECT_EQ(read_response(other).status, 200);
  }
  EXPECT_EQ(ask("/v1/completions", {{"prompt", "Once"}, {"max_tokens", 1}}).status, 200);
  for (auto& response : longs) EXPECT_EQ(get(std::move(response)).status, 200);
}

TEST_F(GatewayTest, AConversationIsCapturedAsItWasSampled) {
  const std::string key = gateway_->begin(spec());
  const std::string url = path(key) + "/chat/completions";
  ordered_json messages = said({{"user", "Once upon a time"}});
  for (const char* next : {" Then", " and", ""}) {
    const std::string text = content(ask(url, {{"messages", messages}, {"temperature", 0.1}}));
    messages.push_back({{"role", "assistant"}, {"content", text}});
    messages.push_back({{"role", "user"}, {"content", next}});
  }
  const CapturedAttempt attempt = gateway_->end(key);
  const Trajectory trajectory = tree(attempt);
  ASSERT_EQ(trajectory.segments.size(), 1);
  EXPECT_EQ(attempt.num_answers, 3);
  const Segment& segment = trajectory.segments[0];
  EXPECT_EQ(segment.turn_begins.size(), 3);
  // Under the run's temperature, whatever the client asked for: as training will compute them.
  const std::vector<float> logprobs = teacher_forced(model_, segment.tokens, 1.0f);
  for (size_t i = 1; i < segment.tokens.size(); ++i) {
    if (segment.roles[i] != TokenRole::kSampled) continue;
    EXPECT_EQ(segment.logprobs[i], logprobs[i - 1]) << i;
  }
  EXPECT_EQ(ask(url, {{"messages", messages}}).status, 401) << "the episode is over";
  EXPECT_EQ(engine_->num_free_blocks() + engine_->num_cached_blocks(), engine_->num_blocks());
}

TEST_F(GatewayTest, TheSameAttemptDrawsTheSameTokens) {
  std::set<std::string> texts;
  for (const uint64_t key : {5, 5, 6}) {
    const std::string name = gateway_->begin(spec(key));
    texts.insert(content(ask(path(name) + "/chat/completions",
                             {{"messages", said({{"user", "Once upon a time"}})}})));
    (void)gateway_->end(name);
  }
  EXPECT_EQ(texts.size(), 2);
}

TEST_F(GatewayTest, ParallelCallsAndChoicesAreBranches) {
  const std::string key = gateway_->begin(spec());
  const std::string url = path(key) + "/chat/completions";
  const ordered_json first = said({{"user", "Once upon a time"}});
  const std::string text = content(ask(url, {{"messages", first}}));
  std::vector<std::future<Response>> open;
  for (int i = 0; i < 8; ++i) {
    ordered_json more = first;
    more.push_back({{"role", "assistant"}, {"content", text}});
    more.push_back({{"role", "user"}, {"content", " Part " + std::to_string(i)}});
    open.push_back(ask_later(url, ordered_json{{"messages", more}}.dump()));
  }
  for (auto& response : open) EXPECT_EQ(get(std::move(response)).status, 200);
  const Response many = ask(url, {{"messages", said({{"user", "There was"}})}, {"n", 3}});
  EXPECT_EQ(many.json()["choices"].size(), 3);
  const Trajectory trajectory = tree(gateway_->end(key));
  EXPECT_EQ(trajectory.segments.size(), 8 + 3) << "one goes on, seven branch; three answers";
  EXPECT_EQ(trajectory.num_sampled(), (1 + 8 + 3) * 6);
}

TEST_F(GatewayTest, AStreamShowsWhatIsCaptured) {
  const std::string key = gateway_->begin(spec());
  const Response stream =
      ask(path(key) + "/chat/completions", {{"messages", said({{"user", "Once upon a time"}})},
                                            {"stream", true},
                                            {"stream_options", {{"include_usage", true}}}});
  ASSERT_EQ(stream.status, 200) << stream.body;
  std::string text, finish;
  int chunks = 0;
  for (size_t at = 0; (at = stream.body.find("data: ", at)) != std::string::npos;) {
    at += 6;
    const std::string line = stream.body.substr(at, stream.body.find('\n', at) - at);
    if (line == "[DONE]") break;
    const ordered_json chunk = ordered_json::parse(line);
    if (chunk["choices"].empty()) {
      EXPECT_EQ(chunk["usage"]["completion_tokens"], 6);
      continue;
    }
    ++chunks;
    const ordered_json& choice = chunk["choices"][0];
    text += choice["delta"].value("content", "");
    if (!choice["finish_reason"].is_null()) finish = choice["finish_reason"];
  }
  EXPECT_TRUE(stream.body.ends_with("data: [DONE]\n\n"));
  EXPECT_EQ(finish, "length");
  EXPECT_GT(chunks, 3);
  const Trajectory trajectory = tree(gateway_->end(key));
  ASSERT_EQ(trajectory.segments.size(), 1);
  std::vector<TokenId> ids;
  for (size_t i = 0; i < trajectory.segments[0].tokens.size(); ++i)
    if (trajectory.segments[0].roles[i] == TokenRole::kSampled)
      ids.push_back(trajectory.segments[0].tokens[i]);
  EXPECT_EQ(text, tokenizer_->decode(ids));
}

TEST_F(GatewayTest, ACallWhoseClientHangsUpLeavesNothing) {
  AttemptSpec long_answers = spec();
  long_answers.sampling.max_new_tokens = 100;
  const std::string key = gateway_->begin(long_answers);
  const ordered_json body = {{"messages", said({{"user", "Once upon a time"}})}, {"stream", true}};
  {
    http::Client client(port_);
    client.send(http::post(path(key) + "/chat/completions", body.dump()));
    int steps = 0;
    serve_until([&] { return !engine_->idle() && ++steps > 10; });
    gateway_->poll();
    EXPECT_TRUE(client.read_until("data: "));
    EXPECT_FALSE(gateway_->idle());
  }
  gateway_->wait(20s);  // until the gateway knows that it has gone
  int steps = 0;
  serve_until([&] {
    ++steps;
    return engine_->idle() && gateway_->idle();
  });
  EXPECT_LT(steps, 20) << "it was not sampled to its end";
  const CapturedAttempt attempt = gateway_->end(key);
  EXPECT_TRUE(attempt.segments.empty());
  EXPECT_EQ(attempt.num_answers, 0);
  EXPECT_EQ(engine_->num_free_blocks() + engine_->num_cached_blocks(), engine_->num_blocks());
}

TEST_F(GatewayTest, AClientThatAsksAgainHearsTheSameAnswer) {
  const std::string key = gateway_->begin(spec());
  const std::string url = path(key) + "/chat/completions";
  const ordered_json body = {{"messages", said({{"user", "Once upon a time"}})}};
  const Response first = ask(url, body, "x-stainless-retry-count: 0\r\n");
  const Response again = ask(url, body, "x-stainless-retry-count: 1\r\n");
  EXPECT_EQ(again.body, first.body);
  const Response other = ask(url, body);
  EXPECT_NE(content(other), content(first)) << "who asks anew is given another answer";
  EXPECT_EQ(gateway_->end(key).num_answers, 2);
}

TEST_F(GatewayTest, ACallWithAnIdIsAnsweredOnce) {
  const std::string key = gateway_->begin(spec());
  const std::string url = path(key) + "/chat/completions";
  const ordered_json body = {{"messages", said({{"user", "Once upon a time"}})}};
  const Response first = ask(url, body, "idempotency-key: a\r\n");
  EXPECT_EQ(ask(url, body, "idempotency-key: a\r\n").body, first.body);
  EXPECT_NE(content(ask(url, body, "idempotency-key: b\r\n")), content(first));
  EXPECT_EQ(gateway_->end(key).num_answers, 2);
}

// Who asks the same once more without a word may want another sample: it is one, and is counted.
TEST_F(GatewayTest, WhoAsksTheSameAgainIsCounted) {
  const std::string key = gateway_->begin(spec());
  const std::string url = path(key) + "/chat/completions";
  ordered_json messages = said({{"user", "Once upon a time"}});
  const std::string first = content(ask(url, {{"messages", messages}}));
  EXPECT_NE(content(ask(url, {{"messages", messages}})), first);
  (void)ask(url, {{"messages", messages}, {"max_tokens", 3}});  // is another call
  messages.push_back({{"role", "assistant"}, {"content", first}});
  messages.push_back({{"role", "user"}, {"content", " and"}});
  (void)ask(url, {{"messages", messages}});
  const CapturedAttempt attempt = gateway_->end(key);
  EXPECT_EQ(attempt.num_answers, 4);
  EXPECT_EQ(attempt.num_asked_again, 1);
  EXPECT_EQ(attempt.num_unheard, 0);
}

// An attempt may end before the I/O thread has told what became of its last answer.
TEST_F(GatewayTest, TheLastAnswerCountsWhereItWasReadHoweverSoonTheEndComes) {
  const ordered_json body = {{"messages", said({{"user", "Once upon a time"}})}};
  for (int i = 0; i < 100; ++i) {
    const bool is_read = i % 2 == 0;
    const std::string key = gateway_->begin(spec());
    auto client = std::make_unique<http::Client>(port_);
    client->send(http::post(path(key) + "/chat/completions", body.dump()));
    const std::vector<Generation> last = sample_all();
    if (!is_read) {
      client.reset();
      gateway_->wait(20s);  // until the gateway knows that it has gone
    }
    driver_.hear(last);
    if (is_read) {
      EXPECT_EQ(client->read_answer().status, 200);
    }
    const CapturedAttempt attempt = gateway_->end(key);
    ASSERT_EQ(attempt.num_answers, is_read ? 1 : 0) << i;
    ASSERT_EQ(attempt.num_unheard, is_read ? 0 : 1) << i;
    ASSERT_EQ(attempt.segments.size(), attempt.num_answers) << i;
    gateway_->poll();
  }
}

// The client has gone while the last token was sampled: its answer is whole, and nobody reads it.
TEST_F(GatewayTest, AWholeAnswerThatNobodyReadsLeavesNothing) {
  const std::string key = gateway_->begin(spec());
  const ordered_json body = {{"messages", said({{"user", "Once upon a time"}})}};
  std::vector<Generation> last;
  {
    http::Client client(port_);
    client.send(http::post(path(key) + "/chat/completions", body.dump()));
    last = sample_all();
  }
  gateway_->wait(20s);  // until the gateway knows that it has gone
  driver_.hear(last);
  gateway_->server().catch_up();
  // It asks again, from another connection and without saying so.
  const std::string text = content(ask(path(key) + "/chat/completions", body));
  const CapturedAttempt attempt = gateway_->end(key);
  EXPECT_EQ(attempt.num_answers, 1);
  EXPECT_EQ(attempt.num_unheard, 1);
  EXPECT_EQ(attempt.num_asked_again, 0);
  const Trajectory trajectory = tree(attempt);
  ASSERT_EQ(trajectory.segments.size(), 1);
  EXPECT_EQ(trajectory.num_sampled(), 6);
  EXPECT_FALSE(text.empty());
  EXPECT_EQ(engine_->num_free_blocks() + engine_->num_cached_blocks(), engine_->num_blocks());
}

TEST_F(GatewayTest, WhatIsRefusedIsToldOnceAKindAndWithItsNumber) {
  const std::string key = gateway_->begin(spec());
  const std::string url = path(key) + "/chat/completions";
  const ordered_json messages = said({{"user", "Once upon a time"}});
  for (int i = 0; i < 12; ++i)
    EXPECT_EQ(
        ask(url, {{"messages", messages}, {"response_format", {{"type", "json_object"}}}}).status,
        400);
  EXPECT_EQ(ask("/s/tr-old/v1/chat/completions", {{"messages", messages}}).status, 401);
  const std::vector<std::string> lines = gateway_->take_refusals();
  ASSERT_EQ(lines.size(), 3);
  EXPECT_NE(lines[0].find("the gateway refused a call: 400 response_format"), lines[0].npos)
      << lines[0];
  EXPECT_TRUE(lines[1].ends_with("(the like 10 times so far)")) << lines[1];
  EXPECT_NE(lines[2].find("401 no episode has this key"), lines[2].npos) << lines[2];
  EXPECT_TRUE(gateway_->take_refusals().empty());
  const std::vector<std::string> totals = gateway_->take_refusals(/*is_end=*/true);
  ASSERT_EQ(totals.size(), 1);
  EXPECT_TRUE(totals[0].ends_with("(the like 12 times in all)")) << totals[0];
  const CapturedAttempt attempt = gateway_->end(key);
  EXPECT_EQ(attempt.num_refused, 12);
  EXPECT_NE(attempt.last_refusal.find("response_format"), attempt.last_refusal.npos);
}

TEST_F(GatewayTest, LimitsAreSaidAndNoted) {
  AttemptSpec few = spec();
  few.max_calls = 1;
  std::string key = gateway_->begin(few);
  const ordered_json body = {{"messages", said({{"user", "Once upon a time"}})}};
  EXPECT_EQ(ask(path(key) + "/chat/completions", body).status, 200);
  const Response refused = ask(path(key) + "/chat/completions", body);
  EXPECT_EQ(refused.status, 400);
  EXPECT_NE(refused.body.find("max_calls"), std::string::npos);
  CapturedAttempt attempt = gateway_->end(key);
  EXPECT_TRUE(attempt.over_limit);
  EXPECT_EQ(attempt.num_answers, 1);

  AttemptSpec narrow = spec();
  narrow.max_context_tokens = 10;
  key = gateway_->begin(narrow);
  const Response full = ask(path(key) + "/chat/completions", body);
  std::string longer = "Once upon a time there was a little girl who had a very big dog";
  const Response too_long =
      ask(path(key) + "/chat/completions", {{"messages", said({{"user", longer}})}});
  EXPECT_EQ(full.status, 200) << full.body;
  EXPECT_EQ(too_long.status, 400);
  EXPECT_NE(too_long.body.find("context_length_exceeded"), std::string::npos);
  EXPECT_TRUE(gateway_->end(key).over_limit);
}

TEST_F(GatewayTest, TokensThatTheModelLacksAreRefused) {
  for (const auto& ids : {"[1, 100000]", "[-1]"}) {
    const Response refused =
        get(ask_later("/v1/completions", std::string("{\"prompt\": ") + ids + "}"));
    EXPECT_EQ(refused.status, 400) << refused.body;
  }
  EXPECT_EQ(ask("/v1/completions", {{"prompt", {1, 2}}, {"max_tokens", 1}}).status, 200);
}

TEST_F(GatewayTest, AConversationThatWasShortenedHasRoomAgain) {
  AttemptSpec narrow = spec();
  narrow.max_context_tokens = 20;
  const std::string key = gateway_->begin(narrow);
  const std::string longer = "Once upon a time there was a little girl who had a very big dog";
  const std::string url = path(key) + "/chat/completions";
  EXPECT_EQ(ask(url, {{"messages", said({{"user", longer}})}}).status, 400);
  EXPECT_EQ(ask(url, {{"messages", said({{"user", "Once"}})}}).status, 200);
  EXPECT_FALSE(gateway_->end(key).over_limit);
}

TEST_F(GatewayTest, ACallThatIsTakenAwayBeforeItBeganLeavesNoSession) {
  const std::string key = gateway_->begin(spec());
  const std::string url = path(key) + "/chat/completions";
  ordered_json messages = said({{"user", "Once upon a time"}});
  messages.push_back(
      {{"role", "assistant"}, {"content", content(ask(url, {{"messages", messages}}))}});
  messages.push_back({{"role", "user"}, {"content", " Then"}});
  auto late = ask_later(url, ordered_json{{"messages", messages}}.dump());
  for (const Time until = clock_.now() + 20s; gateway_->idle() && clock_.now() < until;)
    std::this_thread::sleep_for(1ms);
  EXPECT_FALSE(gateway_->idle()) << "it waits to be taken";
  (void)gateway_->end(key);
  EXPECT_GE(get(std::move(late)).status, 400);
  EXPECT_EQ(engine_->num_free_blocks() + engine_->num_cached_blocks(), engine_->num_blocks());
}

TEST_F(GatewayTest, AFullContextSaysWhichLimitIsMet) {
  std::string longer = "Once upon a time there was a little girl who had a very big dog";
  const auto refusal = [&](const AttemptSpec& narrow) {
    const std::string key = gateway_->begin(narrow);
    ordered_json messages = said({{"user", "Once"}});
    const Response first = ask(path(key) + "/chat/completions", {{"messages", messages}});
    messages.push_back({{"role", "assistant"}, {"content", content(first)}});
    messages.push_back({{"role", "user"}, {"content", longer}});
    const Response full = ask(path(key) + "/chat/completions", {{"messages", messages}});
    EXPECT_EQ(full.status, 400);
    (void)gateway_->end(key);
    return full.json()["error"]["message"].get<std::string>();
  };
  AttemptSpec narrow = spec();
  narrow.max_context_tokens = narrow.max_response_tokens = 20;
  EXPECT_NE(refusal(narrow).find(" tokens; the context holds 20"), std::string::npos);
  narrow.max_context_tokens = 128;
  EXPECT_NE(refusal(narrow).find("20 are the most (rollout.max_response_tokens)"),
            std::string::npos);
}

TEST_F(GatewayTest, VariablesOfTheTemplateCanBeRepeatedOnly) {
  const chat::PromptFormat format(*tokenizer_,
                                  chat::ChatTemplate::parse("{{ messages[0].content }}", "here"),
                                  {.variables = {{"enable_thinking", "false"}}});
  gateway_ = std::make_unique<Gateway>(driver_, format, options_, clock_);
  const std::string url = gateway_->base_url();
  port_ = static_cast<uint16_t>(std::stoi(url.substr(url.rfind(':') + 1)));
  const auto answer = [&](const ordered_json& variables) {
    return ask("/v1/chat/completions", {{"messages", said({{"user", "Once upon a time"}})},
                                        {"chat_template_kwargs", variables}});
  };
  EXPECT_EQ(answer({{"enable_thinking", false}}).status, 200);
  EXPECT_EQ(answer(ordered_json::object()).status, 200);
  for (const ordered_json& other :
       {ordered_json{{"enable_thinking", true}}, ordered_json{{"thinking", false}}}) {
    const Response refused = answer(other);
    EXPECT_EQ(refused.status, 400) << refused.body;
    EXPECT_NE(refused.body.find("chat.variables."), std::string::npos) << refused.body;
    EXPECT_NE(refused.body.find("--chat-variable"), std::string::npos) << refused.body;
  }
  gateway_.reset();  // it borrows the format
}

TEST_F(GatewayTest, LogprobsOfACompletionAreOfTheSampledTokens) {
  const Response answer =
      ask("/v1/completions", {{"prompt", "Once upon a time"}, {"max_tokens", 5}, {"logprobs", 1}});
  ASSERT_EQ(answer.status, 200) << answer.body;
  const ordered_json choice = answer.json()["choices"][0], logprobs = choice["logprobs"];
  std::string text;
  for (size_t i = 0; i < 5; ++i) {
    const std::string token = logprobs["tokens"][i];
    text += token;
    ASSERT_EQ(logprobs["top_logprobs"][i].size(), 1);
    EXPECT_EQ(logprobs["top_logprobs"][i][token], logprobs["token_logprobs"][i]);
  }
  // A tokenizer drops the first blank of a text.
  const auto whole = choice["text"].get<std::string>();
  EXPECT_TRUE(text == whole || text == " " + whole) << text;
}

// A gateway that can score given tokens, as that of `serve`.
class ScoringGatewayTest : public GatewayTest {
 protected:
  ScoringGatewayTest() {
    options_.scores = [this](const TokensToScore& tokens) {
      SequenceScores found =
          scorer_.score(*weights_, {.ids = tokens.ids,
                                    .first = tokens.first,
                                    .top_k = tokens.top,
                                    .inverse_temperature = tokens.inverse_temperature});
      TokenScores scores{.logprobs = found.logprobs, .top = {}};
      for (const auto& top : found.top) {
        auto& likely = scores.top.emplace_back();
        for (const TopToken& token : top) likely.push_back({token.id, token.logprob});
      }
      ++num_scored_;
      return scores;
    };
    open_gateway();
  }
  ordered_json choices(const ordered_json& body) {
    const Response answer = ask("/v1/completions", body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json()["choices"];
  }
  std::string refusal(const ordered_json& body) {
    const Response answer = ask("/v1/completions", body);
    EXPECT_EQ(answer.status, 400) << answer.body;
    return answer.json()["error"]["message"];
  }

  std::shared_ptr<const PackedWeights> weights_ = model_.pack();
  SequenceScorer scorer_{model_.model, {}, 128};
  int num_scored_ = 0;
};

TEST_F(ScoringGatewayTest, AnEchoHasTheScoresOfItsPrompt) {
  const std::string prompt = "Once upon a time there was";
  const std::vector<TokenId> ids = tokenizer_->encode(prompt, {.framed = true});
  const SequenceScores want = scorer_.score(*weights_, {.ids = ids, .top_k = 3});
  for (const ordered_json& asked : {ordered_json(prompt), ordered_json(ids)}) {
    const ordered_json choice = choices({{"prompt", asked},
                                         {"echo", true},
                                         {"max_tokens", 0},
                                         {"logprobs", 3},
                                         {"temperature", 0.5},
                                         {"return_tokens_as_token_ids", true}})[0];
    EXPECT_EQ(choice["text"], prompt);
    EXPECT_EQ(choice["finish_reason"], "length");
    const ordered_json& logprobs = choice["logprobs"];
    ASSERT_EQ(logprobs["tokens"].size(), ids.size());
    EXPECT_TRUE(logprobs["token_logprobs"][0].is_null() && logprobs["top_logprobs"][0].is_null());
    for (size_t i = 1; i < ids.size(); ++i) {
      EXPECT_EQ(logprobs["tokens"][i], "token_id:" + std::to_string(ids[i]));
      EXPECT_EQ(logprobs["token_logprobs"][i], want.logprobs[i - 1]);
      for (const TopToken& token : want.top[i - 1])
        EXPECT_EQ(logprobs["top_logprobs"][i]["token_id:" + std::to_string(token.id)],
                  token.logprob);
    }
  }
  // The offsets are places in the text.
  const ordered_json named =
      choices({{"prompt", prompt}, {"echo", true}, {"max_tokens", 2}, {"logprobs", 0}})[0];
  const ordered_json& logprobs = named["logprobs"];
  ASSERT_EQ(logprobs["tokens"].size(), ids.size() + 2);
  const auto text = named["text"].get<std::string>();
  for (size_t i = 2; i < ids.size(); ++i) {
    const std::string token = logprobs["tokens"][i];
    EXPECT_EQ(text.substr(logprobs["text_offset"][i].get<size_t>(), token.size()), token) << i;
    EXPECT_EQ(logprobs["top_logprobs"][i].size(), 1U);
  }
  EXPECT_EQ(logprobs["text_offset"][ids.size()], prompt.size());
  EXPECT_TRUE(text.starts_with(prompt) && text.size() > prompt.size()) << text;
  // Without log-probabilities nothing is scored.
  const int before = num_scored_;
  const ordered_json plain = choices({{"prompt", prompt}, {"echo", true}, {"max_tokens", 2}})[0];
  EXPECT_EQ(plain["text"], text);
  EXPECT_TRUE(plain["logprobs"].is_null());
  EXPECT_EQ(num_scored_, before);
}

// The scores of an answer are those of the distribution that it was drawn from.
TEST_F(ScoringGatewayTest, AnAnswerHasItsLikeliestTokens) {
  const ordered_json logprobs = choices({{"prompt", "Once upon a time"},
                                         {"max_tokens", 20},
                                         {"logprobs", 4},
                                         {"temperature", 1.5},
                                         {"seed", 3}})[0]["logprobs"];
  size_t num_unlikely = 0;
  for (size_t i = 0; i < logprobs["tokens"].size(); ++i) {
    const ordered_json& top = logprobs["top_logprobs"][i];
    const std::string token = logprobs["tokens"][i];
    EXPECT_EQ(top[token], logprobs["token_logprobs"][i]);
    EXPECT_GE(top.size(), 4U);
    num_unlikely += top.size() == 5;
  }
  EXPECT_GT(num_unlikely, 0U);
}

TEST_F(ScoringGatewayTest, SeveralPromptsAreAnsweredInTheirOrder) {
  const std::vector<std::string> prompts = {"Once upon a time", "The cat", "Tom and Lily"};
  ordered_json body = {{"prompt", prompts}, {"max_tokens", 6}, {"echo", true}, {"logprobs", 2}};
  const ordered_json together = choices(body);
  ASSERT_EQ(together.size(), 3U);
  for (size_t i = 0; i < prompts.size(); ++i) {
    body["prompt"] = prompts[i];
    ordered_json alone = choices(body)[0];
    alone["index"] = i;
    EXPECT_EQ(together[i], alone);
  }
  const Response twice = ask("/v1/completions", {{"prompt", prompts}, {"max_tokens", 2}, {"n", 2}});
  ASSERT_EQ(twice.json()["choices"].size(), 6U) << twice.body;
  EXPECT_EQ(twice.json()["usage"]["completion_tokens"], 12);
  int64_t num_prompt = 0;
  for (const std::string& prompt : prompts)
    num_prompt += std::ssize(tokenizer_->encode(prompt, {.framed = true}));
  EXPECT_EQ(twice.json()["usage"]["prompt_tokens"], num_prompt);
  EXPECT_EQ(twice.json()["choices"][2]["text"], twice.json()["choices"][3]["text"]) << "greedy";
}

TEST_F(ScoringGatewayTest, EachPromptHasTheContextToItself) {
  const std::vector<TokenId> full(128, 5), longer(129, 5), nearly(126, 5), one = {1};
  EXPECT_EQ(choices({{"prompt", full},
                     {"echo", true},
                     {"max_tokens", 0},
                     {"logprobs", 1}})[0]["logprobs"]["tokens"]
                .size(),
            128U);
  EXPECT_EQ(refusal({{"prompt", full}, {"echo", true}, {"max_tokens", 1}}),
            "the conversation has 128 tokens; the context holds 128");
  EXPECT_EQ(refusal({{"prompt", {one, longer}}, {"echo", true}, {"max_tokens", 0}}),
            "prompt[1]: the conversation has 129 tokens; the context holds 128");
  const ordered_json answers =
      choices({{"prompt", {nearly, one}}, {"max_tokens", 9}, {"logprobs", 0}});
  EXPECT_EQ(answers[0]["logprobs"]["tokens"].size(), 2U);
  EXPECT_EQ(answers[1]["logprobs"]["tokens"].size(), 9U);
  EXPECT_EQ(refusal({{"prompt", std::vector<int>{1, 99999}}, {"echo", true}, {"max_tokens", 0}}),
            "the prompt has the token 99999; the model has ids below 512");
}

// Nothing of it would be captured.
TEST_F(ScoringGatewayTest, AnEpisodeHasNoneOfThis) {
  const std::string key = gateway_->begin(spec());
  for (const ordered_json& more : {ordered_json{{"echo", true}},
                                   {{"logprobs", 2}},
                                   {{"prompt", {"a", "b"}}},
                                   {{"echo", true}, {"max_tokens", 0}}}) {
    ordered_json body = {{"prompt", "Once"}, {"max_tokens", 2}};
    body.update(more);
    const Response answer = ask(path(key) + "/completions", body);
    EXPECT_EQ(answer.status, 400) << answer.body;
  }
  EXPECT_TRUE(gateway_->end(key).segments.empty());
}

// A client that hangs up while its prompts are scored.
TEST_F(ScoringGatewayTest, ACallThatIsDroppedIsNotScoredOn) {
  std::vector<std::vector<TokenId>> prompts(100, std::vector<TokenId>(100, 7));
  {
    http::Client client(port_);
    client.send(http::post(
        "/v1/completions",
        ordered_json{{"prompt", prompts}, {"echo", true}, {"max_tokens", 0}, {"logprobs", 1}}
            .dump()));
    serve_until([&] { return num_scored_ > 0; });
  }
  serve_until([&] { return gateway_->idle(); });
  EXPECT_LT(num_scored_, 100);
  EXPECT_EQ(choices({{"prompt", "Once"}, {"max_tokens", 2}}).size(), 1U);
}

TEST_F(GatewayTest, TheEndOfAnAttemptEndsItsCalls) {
  AttemptSpec long_answers = spec();
  long_answers.sampling.max_new_tokens = 100;
  const std::string key = gateway_->begin(long_answers);
  http::Client client(port_);
  client.send(http::post(path(key) + "/chat/completions",
                         ordered_json{{"messages", said({{"user", "Once upon a time"}})}}.dump()));
  serve_until([&] { return !gateway_->idle(); });
  gateway_->poll();
  (void)engine_->step();
  EXPECT_TRUE(gateway_->end(key).segments.empty());
  EXPECT_TRUE(gateway_->idle());
  EXPECT_GE(read_response(client).status, 400);
}

}  // namespace
}  // namespace tailrace::gateway
