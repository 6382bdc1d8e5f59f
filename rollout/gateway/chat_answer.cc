#include "rollout/gateway/chat_answer.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/json_text.h"

namespace tailrace::gateway {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no infinity; the API writes this for a probability that rounds to nothing.
double finite(float logprob) { return std::isfinite(logprob) ? logprob : -9999.0; }

Json chat_logprobs(std::span<const GeneratedToken> tokens, const TokenBytes& bytes_of) {
  if (!bytes_of) return nullptr;
  Json content = Json::array();
  for (const GeneratedToken& token : tokens) {
    const std::string text = bytes_of(token.id);
    Json bytes = Json::array();
    for (const char byte : text) bytes.push_back(static_cast<unsigned char>(byte));
    content.push_back({{"token", text},
                       {"logprob", finite(token.logprob)},
                       {"bytes", std::move(bytes)},
                       {"top_logprobs", Json::array()}});
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

// The four lists of a completion's log-probabilities.
class CompletionLogprobs {
 public:
  explicit CompletionLogprobs(const TokenNames& names) : names_(names) {}

  // `likely`: of its position. The token itself is named too, wherever it stands among them.
  void add(TokenId id, float logprob, int64_t offset, std::span<const LikelyToken> likely) {
    Json top = Json::object();
    // Two tokens may have one text: the likelier one keeps it.
    for (const LikelyToken& token : likely) {
      std::string name = name_of(token.id);
      if (!top.contains(name)) top[std::move(name)] = finite(token.logprob);
    }
    std::string name = name_of(id);
    if (!top.contains(name)) top[name] = finite(logprob);
    tokens_.push_back(std::move(name));
    logprobs_.push_back(finite(logprob));
    tops_.push_back(std::move(top));
    offsets_.push_back(offset);
  }
  // A token that nothing stands before.
  void add_first(TokenId id) {
    tokens_.push_back(name_of(id));
    logprobs_.push_back(nullptr);
    tops_.push_back(nullptr);
    offsets_.push_back(0);
  }
  void add(const Echo& echo) {
    const TokenScores& scores = echo.scores;
    add_first(echo.ids.front());
    for (size_t i = 1; i < echo.ids.size(); ++i)
      add(echo.ids[i], scores.logprobs[i - 1], echo.offsets[i],
          scores.top.empty() ? std::span<const LikelyToken>() : scores.top[i - 1]);
  }
  void add(std::span<const GeneratedToken> tokens, int64_t offset,
           std::span<const std::vector<LikelyToken>> top) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      add(tokens[i].id, tokens[i].logprob, offset,
          top.empty() ? std::span<const LikelyToken>() : top[i]);
      offset += num_characters(names_.bytes(tokens[i].id));
    }
  }
  Json take() {
    return {{"tokens", std::move(tokens_)},
            {"token_logprobs", std::move(logprobs_)},
            {"top_logprobs", std::move(tops_)},
            {"text_offset", std::move(offsets_)}};
  }

 private:
  std::string name_of(TokenId id) const {
    return names_.as_ids ? fmt::format("token_id:{}", id) : names_.bytes(id);
  }

  const TokenNames& names_;
  Json tokens_ = Json::array(), logprobs_ = Json::array(), tops_ = Json::array(),
       offsets_ = Json::array();
};

Json completion_logprobs(const Choice& choice, const TokenNames& names) {
  if (!names.bytes) return nullptr;
  CompletionLogprobs logprobs(names);
  if (choice.echo) logprobs.add(*choice.echo);
  logprobs.add(choice.tokens, choice.echo ? num_characters(choice.echo->text) : 0, choice.top);
  return logprobs.take();
}

Json completion_logprobs(const Delta& delta, const TokenNames& names, int64_t offset) {
  if (!names.bytes || delta.tokens.empty()) return nullptr;
  CompletionLogprobs logprobs(names);
  logprobs.add(delta.tokens, offset, {});
  return logprobs.take();
}

Json json_of(const chat::ToolCall& call) {
  return {{"id", call.id},
          {"type", "function"},
          {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
}

Json json_of(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

Json message_of(const chat::ParsedAnswer& answer) {
  Json message = {{"role", "assistant"}};
  // Calls alone come with a content of null.
  message["content"] =
      answer.content.empty() && !answer.calls.empty() ? Json() : Json(answer.content);
  message["refusal"] = nullptr;
  if (!answer.reasoning.empty()) message["reasoning_content"] = answer.reasoning;
  for (const chat::ToolCall& call : answer.calls) message["tool_calls"].push_back(json_of(call));
  return message;
}

Json whole(const AnswerHead& head, const char* object, Json choices) {
  return {{"id", head.id},
          {"object", object},
          {"created", head.created},
          {"model", head.model},
          {"choices", std::move(choices)}};
}

std::string event(const Json& data) { return fmt::format("data: {}\n\n", json_text(data)); }

constexpr const char* kChat = "chat.completion";
constexpr const char* kChatChunk = "chat.completion.chunk";
constexpr const char* kCompletion = "text_completion";  // of chunks too

std::string chunk(const AnswerHead& head, const char* object, Json choice, bool with_usage) {
  Json chunk = whole(head, object, Json::array({std::move(choice)}));
  if (with_usage) chunk["usage"] = nullptr;  // it comes in the last one
  return event(chunk);
}

Json json_of(const ModelEntry& model) {
  Json json = {
      {"id", model.id}, {"object", "model"}, {"created", model.created}, {"owned_by", "tailrace"}};
  // By the name that vLLM gives it, where clients look for how long a conversation may be.
  if (model.max_context_tokens > 0) json["max_model_len"] = model.max_context_tokens;
  return json;
}

}  // namespace

int64_t num_characters(std::string_view text) {
  int64_t count = 0;
  for (const char byte : text) count += (static_cast<unsigned char>(byte) & 0xc0) != 0x80;
  return count;
}

std::string finish_reason(FinishReason reason, bool has_calls) {
  switch (reason) {
    case FinishReason::kStopToken:
    case FinishReason::kStopString:
      return has_calls ? "tool_calls" : "stop";
    case FinishReason::kLength:
    case FinishReason::kContextFull:
    case FinishReason::kAborted:
      break;
  }
  return "length";
}

std::string chat_response(const AnswerHead& head, std::span<const Choice> choices,
                          const Usage& usage, const TokenBytes& bytes) {
  Json list = Json::array();
  for (const Choice& choice : choices) {
    list.push_back({{"index", list.size()},
                    {"message", message_of(choice.answer)},
                    {"logprobs", chat_logprobs(choice.tokens, bytes)},
                    {"finish_reason", finish_reason(choice.reason, !choice.answer.calls.empty())}});
  }
  Json response = whole(head, kChat, std::move(list));
  response["usage"] = json_of(usage);
  return json_text(response);
}

std::string completion_response(const AnswerHead& head, std::span<const Choice> choices,
                                const Usage& usage, const TokenNames& names) {
  Json list = Json::array();
  for (const Choice& choice : choices) {
    list.push_back({{"index", list.size()},
                    {"text", choice.echo ? choice.echo->text + choice.text : choice.text},
                    {"logprobs", completion_logprobs(choice, names)},
                    {"finish_reason", finish_reason(choice.reason, false)}});
  }
  Json response = whole(head, kCompletion, std::move(list));
  response["usage"] = json_of(usage);
  return json_text(response);
}

std::string chat_chunk(const AnswerHead& head, const Delta& delta, bool with_usage,
                       const TokenBytes& bytes) {
  Json said = Json::object();
  if (delta.is_first) said["role"] = "assistant";
  // The first piece has a content always: clients add the others to it.
  if (delta.is_first || !delta.content.empty()) said["content"] = delta.content;
  if (!delta.reasoning.empty()) said["reasoning_content"] = delta.reasoning;
  for (size_t i = 0; i < delta.calls.size(); ++i) {
    Json call = {{"index", delta.first_call + static_cast<int64_t>(i)}};
    call.update(json_of(delta.calls[i]));
    said["tool_calls"].push_back(std::move(call));
  }
  const bool has_calls = delta.has_calls || !delta.calls.empty();
  Json choice = {{"index", delta.index},
                 {"delta", std::move(said)},
                 {"logprobs", delta.tokens.empty() ? Json() : chat_logprobs(delta.tokens, bytes)}};
  choice["finish_reason"] = delta.reason ? Json(finish_reason(*delta.reason, has_calls)) : Json();
  return chunk(head, kChatChunk, std::move(choice), with_usage);
}

std::string completion_chunk(const AnswerHead& head, const Delta& delta, bool with_usage,
                             const TokenNames& names, int64_t text_offset) {
  Json choice = {{"index", delta.index},
                 {"text", delta.text},
                 {"logprobs", completion_logprobs(delta, names, text_offset)}};
  choice["finish_reason"] = delta.reason ? Json(finish_reason(*delta.reason, false)) : Json();
  return chunk(head, kCompletion, std::move(choice), with_usage);
}

std::string usage_chunk(const AnswerHead& head, bool is_chat, const Usage& usage) {
  Json chunk = whole(head, is_chat ? kChatChunk : kCompletion, Json::array());
  chunk["usage"] = json_of(usage);
  return event(chunk);
}

std::string error_chunk(const std::string& error_json) {
  return fmt::format("data: {}\n\n", error_json);
}

std::string models_response(std::span<const ModelEntry> models) {
  Json list = Json::array();
  for (const ModelEntry& model : models) list.push_back(json_of(model));
  return json_text(Json{{"object", "list"}, {"data", std::move(list)}});
}

std::string model_response(const ModelEntry& model) { return json_text(json_of(model)); }

}  // namespace tailrace::gateway
