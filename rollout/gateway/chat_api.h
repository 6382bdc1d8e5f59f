// Requests in the forms of OpenAI's Chat Completions and Completions APIs, as values.
//
// A field that would change the text, and that the engine does not have, is refused by name; one
// that changes nothing here (user, store, metadata, ...) and one that nobody knows are accepted.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/generate.h"
#include "rollout/gateway/api_error.h"

namespace tailrace::gateway {

inline constexpr int64_t kMaxChoices = 128, kMaxStops = 16;

struct ChatRequest {
  // The messages of a chat: a list of {"role", "content", "reasoning_content", "tool_calls",
  // "tool_call_id", "name"}, in this order and only those sent; `content` is always a string, role
  // one of system (developer too), user, assistant and tool. Arguments of calls stay strings.
  nlohmann::ordered_json messages;
  std::string tools;  // JSON of the list as it was sent; "": none, or tool_choice is "none"

  nlohmann::ordered_json template_variables = nlohmann::ordered_json::object();

  // The prompt of a completion: a text or token ids.
  bool is_chat = true;
  std::string prompt;
  std::vector<TokenId> prompt_ids;

  SamplingParams sampling;  // the defaults, changed by what was sent
  std::optional<uint64_t> seed;
  int64_t n = 1;
  bool stream = false;
  bool include_usage = false;  // a stream ends with a chunk of counts
  bool wants_logprobs = false;
  std::string model;  // "": none was named
};

// Reads the body of POST /v1/chat/completions.
std::variant<ChatRequest, ApiError> read_chat_request(std::string_view body,
                                                      const SamplingParams& defaults);

// Reads the body of POST /v1/completions.
std::variant<ChatRequest, ApiError> read_completion_request(std::string_view body,
                                                            const SamplingParams& defaults);

}  // namespace tailrace::gateway
