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
// Log-probabilities of an answer where tokens are scored that were not sampled, or several a token.
inline constexpr int64_t kMaxScores = 4'000'000;

// A prompt of a completion: a text or token ids.
struct TextPrompt {
  std::string text = {};
  std::vector<TokenId> ids = {};
};

struct ChatRequest {
  // The messages of a chat: a list of {"role", "content", "reasoning_content", "tool_calls",
  // "tool_call_id", "name"}, in this order and only those sent; `content` is always a string, role
  // one of system (developer too), user, assistant and tool. Arguments of calls stay strings.
  nlohmann::ordered_json messages;
  std::string tools;  // JSON of the list as it was sent; "": none, or tool_choice is "none"

  nlohmann::ordered_json template_variables = nlohmann::ordered_json::object();

  bool is_chat = true;
  // Of a completion: one, or several, which have n answers each.
  std::vector<TextPrompt> prompts;
  bool echoes = false;       // a completion's answer begins with its prompt
  int64_t top_logprobs = 0;  // of a completion: likeliest tokens of each position
  bool names_ids = false;    // tokens in log-probabilities are "token_id:123"

  SamplingParams sampling;  // the defaults, changed by what was sent
  std::optional<uint64_t> seed;
  int64_t n = 1;
  bool stream = false;
  bool include_usage = false;  // a stream ends with a chunk of counts
  bool wants_logprobs = false;
  std::string model;  // "": none was named

  bool wants_prompt_scores() const { return echoes && wants_logprobs; }
  bool wants_answer_scores() const { return top_logprobs > 1; }
};

// Reads the body of POST /v1/chat/completions.
std::variant<ChatRequest, ApiError> read_chat_request(std::string_view body,
                                                      const SamplingParams& defaults);

// Reads the body of POST /v1/completions. `can_score`: tokens that were not sampled can be scored,
// and nothing is captured; without it echo, several log-probabilities and several prompts are
// refused.
std::variant<ChatRequest, ApiError> read_completion_request(std::string_view body,
                                                            const SamplingParams& defaults,
                                                            bool can_score = false);

}  // namespace tailrace::gateway
