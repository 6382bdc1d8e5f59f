// Answers in the forms of OpenAI's Chat Completions, Completions and Models APIs: whole ones as
// JSON, chunks of streams as server-sent events ("data: {...}\n\n").
//
// Text that is not UTF-8 comes out with U+FFFD in its place; the bytes of a token are in its
// log-probabilities.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/chat/tool_calls.h"
#include "core/generate.h"
#include "rollout/gateway/token_scores.h"

namespace tailrace::gateway {

// The fields that all chunks of an answer have in common.
struct AnswerHead {
  std::string id = {};  // "chatcmpl-..." or "cmpl-..."
  std::string model = {};
  int64_t created = 0;  // seconds since 1970
};

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0;
  int64_t cached_tokens = 0;  // of prompt_tokens: KV that was there already
};

// Characters (code points) of a text; where it is no UTF-8, as if it were.
int64_t num_characters(std::string_view text);

// Bytes of a token; they need not be whole characters.
using TokenBytes = std::function<std::string(TokenId)>;

// The names of tokens in the log-probabilities of a completion.
struct TokenNames {
  TokenBytes bytes = nullptr;  // none: no log-probabilities are wanted
  bool as_ids = false;         // "token_id:123" in place of the text
};

// The prompt that a completion begins with. Scores and offsets are there where log-probabilities
// are wanted.
struct Echo {
  std::string text = {};
  std::vector<TokenId> ids = {};
  TokenScores scores = {};            // from the second token on
  std::vector<int64_t> offsets = {};  // of each token: characters of the text before it
};

// One of the n answers.
struct Choice {
  chat::ParsedAnswer answer = {};           // of a chat
  std::string text = {};                    // of a completion
  std::vector<GeneratedToken> tokens = {};  // of the log-probabilities
  FinishReason reason = FinishReason::kStopToken;
  std::optional<Echo> echo = {};                   // of a completion
  std::vector<std::vector<LikelyToken>> top = {};  // of each token; empty: none were wanted
};

// A piece of one of the n answers. Empty members add nothing.
struct Delta {
  int64_t index = 0;      // of the choice
  bool is_first = false;  // says the role
  std::string content = {}, reasoning = {};
  std::string text = {};                   // of a completion
  std::vector<chat::ToolCall> calls = {};  // whole ones
  int64_t first_call = 0;                  // number of calls of the choice before these
  std::vector<GeneratedToken> tokens = {};
  std::optional<FinishReason> reason = {};  // of the last piece
  bool has_calls = false;                   // of the last piece: the choice has calls
};

// "stop", "length", or "tool_calls" where an answer with calls ended by itself. A generation that
// was aborted is reported as "length": it was cut.
std::string finish_reason(FinishReason reason, bool has_calls);

// `bytes` is nullptr where no log-probabilities are wanted.
std::string chat_response(const AnswerHead& head, std::span<const Choice> choices,
                          const Usage& usage, const TokenBytes& bytes = nullptr);
std::string completion_response(const AnswerHead& head, std::span<const Choice> choices,
                                const Usage& usage, const TokenNames& names = {});

// `with_usage`: the stream ends with a usage_chunk().
std::string chat_chunk(const AnswerHead& head, const Delta& delta, bool with_usage,
                       const TokenBytes& bytes = nullptr);
// `text_offset`: characters of the choice's text before this piece.
std::string completion_chunk(const AnswerHead& head, const Delta& delta, bool with_usage,
                             const TokenNames& names = {}, int64_t text_offset = 0);
// Behind the last pieces of all choices, where the client asked for it.
std::string usage_chunk(const AnswerHead& head, bool is_chat, const Usage& usage);
// The chunk of a stream that fails in its middle; the official client raises APIError for it.
std::string error_chunk(const std::string& error_json);
inline constexpr std::string_view kStreamEnd = "data: [DONE]\n\n";

struct ModelEntry {
  std::string id = {};
  int64_t created = 0;
  int64_t max_context_tokens = 0;
};

// The answers to GET /v1/models, and to GET /v1/models/{id}.
std::string models_response(std::span<const ModelEntry> models);
std::string model_response(const ModelEntry& model);

}  // namespace tailrace::gateway
