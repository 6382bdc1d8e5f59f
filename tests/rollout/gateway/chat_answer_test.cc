#include "rollout/gateway/chat_answer.h"

#include <limits>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace tailrace::gateway {
namespace {

using Json = nlohmann::ordered_json;

const AnswerHead kHead = {.id = "chatcmpl-1", .model = "m", .created = 5};
const Usage kUsage = {.prompt_tokens = 7, .completion_tokens = 3, .cached_tokens = 4};

std::string bytes_of(TokenId id) { return id == 1 ? "a" : id == 2 ? "\xc3\xa4" : "\xc3"; }

// The JSON of an event.
Json data_of(const std::string& event) {
  EXPECT_TRUE(event.starts_with("data: ") && event.ends_with("\n\n")) << event;
  return Json::parse(event.substr(6));
}

TEST(ChatAnswer, AWholeAnswerHasChoicesAndUsage) {
  const Choice choices[] = {
      {.answer = {.content = "hi", .reasoning = "because"}, .reason = FinishReason::kStopToken},
      {.answer = {.calls = {{.id = "c1", .name = "f", .arguments = "{}"}}},
       .reason = FinishReason::kStopString}};
  EXPECT_EQ(
      chat_response(kHead, choices, kUsage),
      R"({"id":"chatcmpl-1","object":"chat.completion","created":5,"model":"m","choices":[)"
      R"({"index":0,"message":{"role":"assistant","content":"hi","refusal":null,)"
      R"("reasoning_content":"because"},"logprobs":null,"finish_reason":"stop"},)"
      R"({"index":1,"message":{"role":"assistant","content":null,"refusal":null,"tool_calls":[)"
      R"({"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]},)"
      R"("logprobs":null,"finish_reason":"tool_calls"}],)"
      R"("usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10,)"
      R"("prompt_tokens_details":{"cached_tokens":4}}})");
}

TEST(ChatAnswer, LogprobsHaveTheBytesOfEachToken) {
  const Choice choices[] = {
      {.answer = {.content = "a"},
       .tokens = {{.id = 1, .logprob = -0.5f},
                  {.id = 3, .logprob = -std::numeric_limits<float>::infinity()}},
       .reason = FinishReason::kLength}};
  const Json choice = Json::parse(chat_response(kHead, choices, kUsage, bytes_of))["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(
      choice["logprobs"]["content"].dump(),
      "[{\"token\":\"a\",\"logprob\":-0.5,\"bytes\":[97],\"top_logprobs\":[]},"
      "{\"token\":\"\xef\xbf\xbd\",\"logprob\":-9999.0,\"bytes\":[195],\"top_logprobs\":[]}]");
}

TEST(ChatAnswer, ACompletionCountsTheOffsetsOfItsTokens) {
  const Choice choices[] = {{.text = "a\xc3\xa4"
                                     "a",
                             .tokens = {{.id = 1}, {.id = 2}, {.id = 1}},
                             .reason = FinishReason::kContextFull}};
  const Json answer = Json::parse(completion_response(kHead, choices, kUsage, {bytes_of}));
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["choices"][0]["text"],
            "a\xc3\xa4"
            "a");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer["choices"][0]["logprobs"]["text_offset"].dump(), "[0,1,2]");
  EXPECT_EQ(answer["choices"][0]["logprobs"]["token_logprobs"].dump(), "[0.0,0.0,0.0]");
  EXPECT_EQ(answer["usage"]["total_tokens"], 10);
}

TEST(ChatAnswer, AnEchoStandsBeforeTheAnswer) {
  const Choice choices[] = {
      {.text = "a",
       .tokens = {{.id = 1, .logprob = -2}},
       .reason = FinishReason::kLength,
       .echo = Echo{.text = "\xc3\xa4"
                            "a",
                    .ids = {2, 1},
                    .scores = {.logprobs = {-1}, .top = {{{.id = 2, .logprob = -0.5}}}},
                    .offsets = {0, 1}},
       .top = {{{.id = 1, .logprob = -2}, {.id = 2, .logprob = -3}}}}};
  const auto logprobs = [&](const TokenNames& names) {
    return Json::parse(completion_response(kHead, choices, kUsage, names))["choices"][0];
  };
  EXPECT_EQ(logprobs({})["text"],
            "\xc3\xa4"
            "aa");
  EXPECT_TRUE(logprobs({})["logprobs"].is_null());
  // The likeliest tokens, and the one that stands there.
  EXPECT_EQ(logprobs({bytes_of})["logprobs"].dump(),
            "{\"tokens\":[\"\xc3\xa4\",\"a\",\"a\"],\"token_logprobs\":[null,-1.0,-2.0],"
            "\"top_logprobs\":[null,{\"\xc3\xa4\":-0.5,\"a\":-1.0},{\"a\":-2.0,\"\xc3\xa4\":-3.0}],"
            "\"text_offset\":[0,1,2]}");
  EXPECT_EQ(logprobs({bytes_of, /*as_ids=*/true})["logprobs"].dump(),
            R"({"tokens":["token_id:2","token_id:1","token_id:1"],)"
            R"("token_logprobs":[null,-1.0,-2.0],)"
            R"("top_logprobs":[null,{"token_id:2":-0.5,"token_id:1":-1.0},)"
            R"({"token_id:1":-2.0,"token_id:2":-3.0}],"text_offset":[0,1,2]})");
}

TEST(ChatAnswer, ChunksOfAChatAddUp) {
  EXPECT_EQ(chat_chunk(kHead, {.index = 1, .is_first = true}, false),
            R"(data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":5,"model":"m",)"
            R"("choices":[{"index":1,"delta":{"role":"assistant","content":""},"logprobs":null,)"
            R"("finish_reason":null}]})"
            "\n\n");
  const Json text = data_of(
      chat_chunk(kHead, {.content = "hi", .reasoning = "r", .tokens = {{.id = 1, .logprob = -1}}},
                 true, bytes_of));
  EXPECT_EQ(text["choices"][0]["delta"].dump(), R"({"content":"hi","reasoning_content":"r"})");
  EXPECT_EQ(text["choices"][0]["logprobs"]["content"][0]["token"], "a");
  EXPECT_TRUE(text["usage"].is_null());
  EXPECT_TRUE(text.contains("usage"));
  const Json call = data_of(chat_chunk(
      kHead, {.calls = {{.id = "c", .name = "f", .arguments = "{}"}}, .first_call = 2}, false));
  EXPECT_EQ(call["choices"][0]["delta"].dump(),
            R"({"tool_calls":[{"index":2,"id":"c","type":"function",)"
            R"("function":{"name":"f","arguments":"{}"}}]})");
  EXPECT_FALSE(call.contains("usage"));
  const auto last = [](FinishReason reason, bool has_calls) {
    return data_of(
        chat_chunk(kHead, {.reason = reason, .has_calls = has_calls}, false))["choices"][0];
  };
  EXPECT_EQ(last(FinishReason::kStopToken, false)["finish_reason"], "stop");
  EXPECT_EQ(last(FinishReason::kStopToken, true)["finish_reason"], "tool_calls");
  EXPECT_EQ(last(FinishReason::kLength, true)["finish_reason"], "length");
  EXPECT_EQ(last(FinishReason::kAborted, false)["finish_reason"], "length");
  EXPECT_EQ(last(FinishReason::kStopToken, false)["delta"].dump(), "{}");
}

TEST(ChatAnswer, ChunksOfACompletionGoOnWithTheOffset) {
  const Json chunk = data_of(completion_chunk(
      kHead, {.text = "a", .tokens = {{.id = 1}}, .reason = FinishReason::kStopString}, false,
      {bytes_of}, 9));
  EXPECT_EQ(chunk["choices"][0].dump(),
            R"({"index":0,"text":"a","logprobs":{"tokens":["a"],"token_logprobs":[0.0],)"
            R"("top_logprobs":[{"a":0.0}],"text_offset":[9]},"finish_reason":"stop"})");
  const Json usage = data_of(usage_chunk(kHead, /*is_chat=*/false, kUsage));
  EXPECT_EQ(usage["choices"].dump(), "[]");
  EXPECT_EQ(usage["usage"]["completion_tokens"], 3);
}

TEST(ChatAnswer, ModelsAreListed) {
  const ModelEntry models[] = {{.id = "m", .created = 5, .max_context_tokens = 99}, {.id = "k"}};
  EXPECT_EQ(models_response(models),
            R"({"object":"list","data":[{"id":"m","object":"model","created":5,)"
            R"("owned_by":"tailrace","max_model_len":99},)"
            R"({"id":"k","object":"model","created":0,"owned_by":"tailrace"}]})");
  EXPECT_EQ(Json::parse(model_response(models[1]))["id"], "k");
}

}  // namespace
}  // namespace tailrace::gateway
