#include "rollout/gateway/chat_api.h"

#include <random>

#include <gtest/gtest.h>

namespace tailrace::gateway {
namespace {

using Json = nlohmann::ordered_json;

SamplingParams defaults() {
  SamplingParams sampling;
  sampling.temperature = 0.7;
  sampling.top_k = 20;
  sampling.max_new_tokens = 64;
  return sampling;
}

ChatRequest read(std::string_view body) {
  auto result = read_chat_request(body, defaults());
  if (const ApiError* error = std::get_if<ApiError>(&result)) {
    ADD_FAILURE() << error->message;
    return {};
  }
  return std::get<ChatRequest>(result);
}

ChatRequest read_completion(std::string_view body) {
  auto result = read_completion_request(body, defaults());
  if (const ApiError* error = std::get_if<ApiError>(&result)) {
    ADD_FAILURE() << error->message;
    return {};
  }
  return std::get<ChatRequest>(result);
}

ApiError error_of(std::string_view body) {
  auto result = read_chat_request(body, defaults());
  if (const ApiError* error = std::get_if<ApiError>(&result)) return *error;
  ADD_FAILURE() << "accepted: " << body;
  return {};
}

ApiError completion_error(std::string_view body) {
  auto result = read_completion_request(body, defaults());
  if (const ApiError* error = std::get_if<ApiError>(&result)) return *error;
  ADD_FAILURE() << "accepted: " << body;
  return {};
}

// A request with one message and these fields.
std::string with(const std::string& fields) {
  return R"({"messages": [{"role": "user", "content": "hi"}], )" + fields + "}";
}

std::string with_message(const std::string& message) {
  return R"({"messages": [)" + message + "]}";
}

TEST(ChatApi, AMessageAloneTakesTheDefaults) {
  const ChatRequest request = read(R"({"messages": [{"content": "hi", "role": "user"}]})");
  EXPECT_EQ(request.messages.dump(), R"([{"role":"user","content":"hi"}])");
  EXPECT_EQ(request.sampling.temperature, 0.7);
  EXPECT_EQ(request.sampling.top_k, 20);
  EXPECT_EQ(request.sampling.max_new_tokens, 64);
  EXPECT_EQ(request.n, 1);
  EXPECT_FALSE(request.seed);
  EXPECT_FALSE(request.stream);
  EXPECT_FALSE(request.wants_logprobs);
  EXPECT_EQ(request.tools, "");
  EXPECT_EQ(request.model, "");
  EXPECT_TRUE(request.is_chat);
}

TEST(ChatApi, FieldsChangeTheDefaults) {
  const ChatRequest request = read(with(
      R"("model": "m", "temperature": 0, "top_p": 0.5, "top_k": -1, "min_p": 0.1, "max_tokens": 7,
         "stop": ["a", "b"], "seed": -1, "n": 4, "stream": true, "logprobs": true,
         "stream_options": {"include_usage": true}, "top_logprobs": 0)"));
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.sampling.temperature, 0);
  EXPECT_EQ(request.sampling.top_p, 0.5);
  EXPECT_EQ(request.sampling.top_k, -1);
  EXPECT_EQ(request.sampling.min_p, 0.1);
  EXPECT_EQ(request.sampling.max_new_tokens, 7);
  EXPECT_EQ(request.sampling.stop_strings, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(request.seed, ~uint64_t{0});
  EXPECT_EQ(request.n, 4);
  EXPECT_TRUE(request.stream);
  EXPECT_TRUE(request.include_usage);
  EXPECT_TRUE(request.wants_logprobs);
  EXPECT_EQ(read(with(R"("max_tokens": 7, "max_completion_tokens": 9)")).sampling.max_new_tokens,
            9);
  EXPECT_EQ(read(with(R"("stop": "x")")).sampling.stop_strings, std::vector<std::string>{"x"});
  EXPECT_EQ(read(with(R"("seed": 18446744073709551615)")).seed, ~uint64_t{0});
}

TEST(ChatApi, VariablesOfTheTemplateAreRead) {
  EXPECT_EQ(read(with(R"("chat_template_kwargs": {"a": false})")).template_variables.dump(),
            R"({"a":false})");
  EXPECT_TRUE(read(with(R"("n": 1)")).template_variables.empty());
  EXPECT_EQ(error_of(with(R"("chat_template_kwargs": 5)")).param, "chat_template_kwargs");
}

TEST(ChatApi, NullIsAsGoodAsNotSent) {
  const ChatRequest request = read(with(
      R"("temperature": null, "stop": null, "n": null, "tools": null, "tool_choice": null,
         "logit_bias": null, "seed": null, "stream": null, "stream_options": null,
         "functions": null, "response_format": null)"));
  EXPECT_EQ(request.sampling.temperature, 0.7);
  EXPECT_EQ(request.n, 1);
}

TEST(ChatApi, FieldsThatChangeNothingAndUnknownOnesAreAccepted) {
  read(with(R"("user": "u", "store": true, "metadata": {"a": "b"}, "service_tier": "auto",
               "parallel_tool_calls": false, "presence_penalty": 0.0, "frequency_penalty": 0,
               "logit_bias": {}, "response_format": {"type": "text"}, "modalities": ["text"],
               "safety_identifier": "x", "prompt_cache_key": "k", "brand_new": [1, 2],
               "reasoning_effort": "low", "min_tokens": 0, "repetition_penalty": 1.0,
               "ignore_eos": false)"));
}

TEST(ChatApi, FieldsThatWouldChangeTheTextAreRefusedByName) {
  for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{
           {"presence_penalty", "0.5"},
           {"frequency_penalty", "-1"},
           {"repetition_penalty", "1.1"},
           {"logit_bias", R"({"5": 1})"},
           {"response_format", R"({"type": "json_object"})"},
           {"audio", "{}"},
           {"modalities", R"(["text", "audio"])"},
           {"prediction", "{}"},
           {"web_search_options", "{}"},
           {"functions", "[{}]"},
           {"function_call", R"("auto")"},
           {"top_logprobs", "5"},
           {"min_tokens", "3"},
           {"ignore_eos", "true"},
           {"bad_words", R"(["a"])"},
           {"allowed_token_ids", "[1]"},
           {"logits_processors", R"(["a"])"},
           {"prompt_logprobs", "0"},
           {"structured_outputs", "{}"},
           {"guided_json", "{}"},
           {"guided_regex", R"("a")"},
           {"guided_choice", R"(["a"])"},
           {"guided_grammar", R"("a")"},
           {"regex", R"("a")"},
           {"ebnf", R"("a")"}}) {
    const ApiError error = error_of(with("\"" + name + "\": " + value));
    EXPECT_EQ(error.status, 400);
    EXPECT_EQ(error.param, name);
    EXPECT_EQ(error.code, "unsupported_parameter");
    EXPECT_TRUE(error.message.starts_with(name + " is not supported")) << error.message;
  }
  EXPECT_EQ(error_of(with(R"("top_logprobs": 2)")).message,
            "top_logprobs is not supported; the log-probability of the sampled token is all that "
            "there is (leave it out or send 0)");
}

TEST(ChatApi, ValuesOutOfBoundsAreRefusedWithWhatIsAccepted) {
  for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{
           {"temperature", "-0.1"},
           {"temperature", "101"},
           {"temperature", R"("hot")"},
           {"top_p", "0"},
           {"top_p", "1.5"},
           {"min_p", "2"},
           {"top_k", "-2"},
           {"top_k", "1.5"},
           {"max_tokens", "0"},
           {"max_tokens", "18446744073709551615"},
           {"max_completion_tokens", "true"},
           {"n", "0"},
           {"n", "129"},
           {"stop", "[\"\"]"},
           {"stop", "5"},
           {"stop",
            R"(["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"])"},
           {"seed", "1.5"},
           {"stream", "1"},
           {"logprobs", "1"},
           {"model", "7"}}) {
    const ApiError error = error_of(with("\"" + name + "\": " + value));
    EXPECT_EQ(error.status, 400);
    EXPECT_EQ(error.param, name) << value;
    EXPECT_EQ(error.code, "invalid_value");
  }
  EXPECT_EQ(error_of(with(R"("n": 129)")).message, "n is 129; it must be an integer from 1 to 128");
  EXPECT_EQ(error_of(with(R"("stream_options": {})")).message,
            "stream_options is for streams: send it with \"stream\": true");
  EXPECT_EQ(error_of(with(R"("stream": true, "stream_options": 3)")).param, "stream_options");
  EXPECT_EQ(error_of(with("\"stop\": \"\"")).param, "stop");
}

TEST(ChatApi, WhatWouldTakeForEverOrDivideByNothingIsBounded) {
  EXPECT_EQ(read(with("\"temperature\": 1e-300")).sampling.temperature, 0) << "greedy";
  EXPECT_EQ(read(with("\"temperature\": 0.001")).sampling.temperature, 0.001);
  std::string many;
  for (int i = 0; i < 10'001; ++i)
    many += std::string(i > 0 ? "," : "") + R"({"role": "user", "content": "a"})";
  EXPECT_NE(error_of(R"({"messages": [)" + many + "]}").message.find("at most 10000"),
            std::string::npos);
}

TEST(ChatApi, ABodyThatIsNoObjectIsRefused) {
  EXPECT_EQ(error_of("{").message, "the body of the request is not valid JSON");
  EXPECT_EQ(error_of("[]").message, "the body of the request is not a JSON object");
  EXPECT_EQ(error_of("").status, 400);
  EXPECT_EQ(error_of("{\"messages\": \"\xff\"}").status, 400);
  EXPECT_NE(error_of(std::string(5000, '[')).message.find("nested"), std::string::npos);
  EXPECT_NE(error_of(R"({"n": 1, "n": 2})").message.find("twice"), std::string::npos);
}

TEST(ChatApi, MessagesComeOutInOneForm) {
  const ChatRequest request = read(R"({"messages": [
    {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    {"role": "user", "name": "u", "content": ""},
    {"role": "assistant", "content": null, "refusal": null, "annotations": [], "audio": null,
     "reasoning": "r",
     "tool_calls": [{"type": "function", "id": "c1", "index": 0,
                     "function": {"arguments": "{\"x\": 1}", "name": "f"}}]},
    {"tool_call_id": "c1", "role": "tool", "content": [{"type": "text", "text": "7"}]},
    {"role": "assistant"}
  ]})");
  EXPECT_EQ(
      request.messages.dump(),
      R"([{"role":"system","content":"a\nb"},{"role":"user","content":"","name":"u"},)"
      R"({"role":"assistant","content":"","reasoning_content":"r","tool_calls":[{"id":"c1",)"
      R"("type":"function","function":{"name":"f","arguments":"{\"x\": 1}"}}]},)"
      R"({"role":"tool","content":"7","tool_call_id":"c1"},{"role":"assistant","content":""}])");
}

TEST(ChatApi, WrongMessagesAreRefusedWithTheirPath) {
  const auto expect = [](const std::string& message, const std::string& param) {
    const ApiError error = error_of(with_message(message));
    EXPECT_EQ(error.param, param) << error.message;
    EXPECT_NE(error.message.find(param), std::string::npos) << error.message;
  };
  EXPECT_EQ(error_of("{}").param, "messages");
  EXPECT_EQ(error_of(R"({"messages": []})").param, "messages");
  EXPECT_EQ(error_of(R"({"messages": {}})").param, "messages");
  expect("5", "messages[0]");
  expect(R"({"content": "x"})", "messages[0].role");
  expect(R"({"role": 1, "content": "x"})", "messages[0].role");
  expect(R"({"role": "function", "content": "x"})", "messages[0].role");
  expect(R"({"role": "user"})", "messages[0].content");
  expect(R"({"role": "user", "content": 5})", "messages[0].content");
  expect(R"({"role": "user", "content": [5]})", "messages[0].content[0]");
  expect(R"({"role": "user", "content": [{"text": "x"}]})", "messages[0].content[0].type");
  expect(R"({"role": "user", "content": [{"type": "text"}]})", "messages[0].content[0].text");
  expect(R"({"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url"}]})",
         "messages[0].content[1].type");
  expect(R"({"role": "user", "content": "x", "name": 5})", "messages[0].name");
  expect(R"({"role": "tool", "content": "x"})", "messages[0].tool_call_id");
  expect(R"({"role": "assistant", "audio": {}})", "messages[0].audio");
  expect(R"({"role": "assistant", "function_call": {}})", "messages[0].function_call");
  expect(R"({"role": "assistant", "reasoning_content": 5})", "messages[0].reasoning_content");
  expect(R"({"role": "assistant", "tool_calls": {"a": 1}})", "messages[0].tool_calls");
  expect(R"({"role": "assistant", "tool_calls": [5]})", "messages[0].tool_calls[0]");
  expect(R"({"role": "assistant", "tool_calls": [{"id": "a", "type": "custom", "function": {}}]})",
         "messages[0].tool_calls[0].type");
  expect(R"({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": ""}}]})",
         "messages[0].tool_calls[0].id");
  expect(R"({"role": "assistant", "tool_calls": [{"id": "a", "function": {"arguments": ""}}]})",
         "messages[0].tool_calls[0].function.name");
  expect(R"({"role": "assistant", "tool_calls": [{"id": "a",
             "function": {"name": "f", "arguments": {}}}]})",
         "messages[0].tool_calls[0].function.arguments");
  EXPECT_EQ(
      error_of(with_message(R"({"role": "user", "content": [{"type": "image_url"}]})")).message,
      "messages[0].content[0].type is \"image_url\"; the model reads text only: send parts "
      "of type \"text\"");
}

TEST(ChatApi, ToolsComeAsTheyWereSent) {
  const std::string tools =
      R"([{"type":"function","function":{"name":"f","parameters":{"z":1,"a":2}}}])";
  EXPECT_EQ(read(with("\"tools\": " + tools)).tools, tools);
  EXPECT_EQ(read(with(R"("tool_choice": "auto", "tools": )" + tools)).tools, tools);
  EXPECT_EQ(read(with(R"("tool_choice": "none", "tools": )" + tools)).tools, "");
  EXPECT_EQ(read(with(R"("tools": [])")).tools, "");
  EXPECT_EQ(error_of(with(R"("tool_choice": "required", "tools": )" + tools)).param, "tool_choice");
  EXPECT_EQ(error_of(with(R"("tool_choice": {"type": "function"}, "tools": )" + tools)).param,
            "tool_choice");
  EXPECT_EQ(error_of(with(R"("tools": {})")).param, "tools");
  EXPECT_EQ(error_of(with(R"("tools": [5])")).param, "tools[0]");
  EXPECT_EQ(error_of(with(R"("tools": [{"type": "custom"}])")).param, "tools[0]");
  EXPECT_EQ(error_of(with(R"("tools": [{"type": "function"}])")).param, "tools[0].function");
  EXPECT_EQ(error_of(with(R"("tools": [{"type": "function", "function": {}}])")).param,
            "tools[0].function.name");
}

TEST(ChatApi, ACompletionHasATextOrTokenIds) {
  const ChatRequest text = read_completion(R"({"prompt": "once", "max_tokens": 3, "logprobs": 0})");
  EXPECT_FALSE(text.is_chat);
  EXPECT_EQ(text.prompts.at(0).text, "once");
  EXPECT_EQ(text.sampling.max_new_tokens, 3);
  EXPECT_TRUE(text.wants_logprobs);
  EXPECT_EQ(read_completion(R"({"prompt": [1, 2]})").prompts.at(0).ids,
            (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(read_completion(R"({"prompt": [[1, 2]]})").prompts.at(0).ids,
            (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(read_completion(R"({"prompt": ["a"]})").prompts.at(0).text, "a");
  for (const char* body :
       {R"({})", R"({"prompt": ""})", R"({"prompt": []})", R"({"prompt": [[]]})",
        R"({"prompt": ["a", "b"]})", R"({"prompt": [1, "a"]})", R"({"prompt": [-1]})",
        R"({"prompt": [4294967296]})", R"({"prompt": [1.5]})", R"({"prompt": {}})"})
    EXPECT_EQ(completion_error(body).param, "prompt") << body;
  EXPECT_EQ(completion_error(R"({"prompt": "a", "echo": true})").param, "echo");
  EXPECT_EQ(completion_error(R"({"prompt": "a", "suffix": "b"})").param, "suffix");
  EXPECT_TRUE(read_completion(R"({"prompt": "a", "logprobs": 1})").wants_logprobs);
  EXPECT_EQ(completion_error(R"({"prompt": "a", "logprobs": 5})").param, "logprobs");
  EXPECT_EQ(completion_error(R"({"prompt": "a", "logprobs": true})").param, "logprobs");
  EXPECT_EQ(completion_error(R"({"prompt": "a", "best_of": 2})").param, "best_of");
}

// Where given tokens can be scored.
TEST(ChatApi, ACompletionMayRepeatAndScoreItsPrompts) {
  const auto read_scored = [](const std::string& body) {
    return read_completion_request(body, defaults(), /*can_score=*/true);
  };
  const auto good = [&](const std::string& body) {
    const auto result = read_scored(body);
    if (const ApiError* error = std::get_if<ApiError>(&result)) {
      ADD_FAILURE() << error->message;
      return ChatRequest{};
    }
    return std::get<ChatRequest>(result);
  };
  const auto fault = [&](const std::string& body) {
    const auto result = read_scored(body);
    const ApiError* error = std::get_if<ApiError>(&result);
    return error == nullptr ? ApiError{} : *error;
  };
  const ChatRequest echo = good(R"({"prompt": "a", "echo": true, "max_tokens": 0, "logprobs": 0})");
  EXPECT_TRUE(echo.echoes && echo.wants_prompt_scores() && !echo.wants_answer_scores());
  EXPECT_EQ(echo.sampling.max_new_tokens, 0);
  EXPECT_FALSE(good(R"({"prompt": "a", "echo": true})").wants_prompt_scores());
  EXPECT_TRUE(good(R"({"prompt": "a", "logprobs": 100})").wants_answer_scores());
  EXPECT_TRUE(good(R"({"prompt": "a", "return_tokens_as_token_ids": true})").names_ids);
  EXPECT_EQ(fault(R"({"prompt": "a", "logprobs": 101})").message,
            "logprobs is 101; it must be an integer from 0 to 100");
  // Each of them becomes bytes of one answer.
  const std::string long_one = R"({"n": 128, "echo": true, "max_tokens": 0, "prompt": ")" +
                               std::string(2000, 'a') + R"(", "logprobs": )";
  EXPECT_TRUE(good(long_one + "10}").wants_prompt_scores());
  EXPECT_EQ(fault(long_one + "100}").param, "logprobs");
  EXPECT_EQ(fault(R"({"prompt": "a", "max_tokens": 0})").param, "max_tokens");
  EXPECT_EQ(fault(R"({"prompt": "a", "echo": 1})").param, "echo");
  EXPECT_EQ(fault(R"({"prompt": "a", "echo": true, "stream": true})").message,
            "echo is not supported in a stream; leave out echo or stream");
  EXPECT_EQ(fault(R"({"prompt": "a", "logprobs": 2, "stream": true})").param, "logprobs");

  const ChatRequest several = good(R"({"prompt": ["a", [1, 2], "b"], "n": 2})");
  ASSERT_EQ(several.prompts.size(), 3U);
  EXPECT_EQ(several.prompts[1].ids, (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(several.prompts[2].text, "b");
  for (const char* body : {R"({"prompt": ["a", ""]})", R"({"prompt": [[1], []]})",
                           R"({"prompt": ["a", 1]})", R"({"prompt": [["a"]]})"})
    EXPECT_EQ(fault(body).param, "prompt") << body;
  EXPECT_EQ(fault(R"({"prompt": ["a", "b"], "n": 65})").message,
            "prompt has 2 prompts, with n = 65 for 130 answers; 128 are the most");
}

// Each value of a whole request gives way to each kind of JSON, and bytes to others: whatever comes
// is read or refused with the name of a field.
TEST(ChatApi, BrokenRequestsAreReadOrRefusedWithAReason) {
  const std::string good = R"({"model": "m", "messages": [
    {"role": "user", "content": [{"type": "text", "text": "a"}], "name": "u"},
    {"role": "assistant", "content": null, "reasoning_content": "r", "tool_calls": [
      {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c", "content": "7"}],
    "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "auto",
    "temperature": 1, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "max_tokens": 5, "stop": ["x"],
    "seed": 7, "n": 2, "stream": true, "stream_options": {"include_usage": true},
    "logprobs": true, "top_logprobs": 0, "prompt": [1, 2], "response_format": {"type": "text"}})";
  int read = 0, refused = 0;
  const auto try_both = [&](const std::string& body) {
    for (const auto& result :
         {read_chat_request(body, defaults()), read_completion_request(body, defaults()),
          read_completion_request(body, defaults(), /*can_score=*/true)}) {
      const ApiError* error = std::get_if<ApiError>(&result);
      error == nullptr ? ++read : ++refused;
      if (error == nullptr) continue;
      EXPECT_EQ(error->status, 400);
      EXPECT_FALSE(error->message.empty());
      EXPECT_FALSE(Json::parse(error->json(), nullptr, false).is_discarded());
    }
  };
  const Json whole = Json::parse(good);
  const char* const kinds[] = {
      "null", "true", "-1",     "1e300", "18446744073709551615", "\"\"", "\"auto\"",
      "[]",   "[[]]", "[null]", "{}",    "{\"type\": \"x\"}"};
  const Json flat = whole.flatten();
  for (const auto& [path, value] : flat.items()) {
    // The value and all that holds it.
    for (Json::json_pointer at(path); !at.empty(); at = at.parent_pointer()) {
      for (const char* kind : kinds) {
        Json body = whole;
        body[at] = Json::parse(kind);
        try_both(body.dump());
      }
    }
  }
  std::mt19937 random(36);
  for (int i = 0; i < 3000; ++i) {
    std::string body = good;
    for (int k = static_cast<int>(random() % 3); k >= 0; --k)
      body[random() % body.size()] = static_cast<char>(random());
    try_both(body);
  }
  EXPECT_GT(read, 100);
  EXPECT_GT(refused, 1000);
}

TEST(ChatApi, AnErrorHasTheFormOfTheApi) {
  EXPECT_EQ((ApiError{.message = "m", .code = "c", .param = "p"}).json(),
            R"({"error":{"message":"m","type":"invalid_request_error","param":"p","code":"c"}})");
  EXPECT_EQ((ApiError{.status = 500, .message = "m", .type = "server_error"}).json(),
            R"({"error":{"message":"m","type":"server_error","param":null,"code":null}})");
}

}  // namespace
}  // namespace tailrace::gateway
