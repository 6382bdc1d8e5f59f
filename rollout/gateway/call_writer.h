// The writer to the client of a call: its answers whole, or piece by piece where it streams.
//
// Thread: any; one at a time for a call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/chat/prompt_format.h"
#include "core/chat/tool_calls.h"
#include "core/generate.h"
#include "rollout/gateway/call.h"
#include "rollout/gateway/token_scores.h"

namespace tailrace::gateway {

// Hash of the tokens in front of a draw: two conversations do not share their random numbers.
uint64_t hash_of(std::span<const TokenId> tokens);

class CallWriter {
 public:
  explicit CallWriter(const chat::PromptFormat& format) : format_(format) {}  // borrowed

  // Turns a sampled generation into an answer.
  void take(Call& call, Branch& branch, const Generation& generation) const;
  // Puts the prompt in front of the answer of a call that echoes.
  void echo(Call& call, size_t index) const;
  // Scores the tokens that a call wants to know more of: of its prompt, and of its answer.
  static void score(Call& call, size_t index, const ScoreTokens& scores);
  // In OpenAI's form, as a client says it again.
  static nlohmann::ordered_json message_of(const chat::ParsedAnswer& answer);

  // All answers of a call that does not stream.
  void respond(Call& call, const Answered& answered) const;
  // To a client that has not heard them.
  void answer_again(Call& call, const Answered& answered) const;
  // Streams what is certain of an answer that is being sampled, and the rest of one that is there.
  void stream(Call& call, size_t index, std::span<const GeneratedToken> so_far) const;
  void stream_rest(Call& call, size_t index) const;
  static void end_stream(Call& call);
  // Whether somebody was there to read it is known when it is written. On the I/O thread: before a
  // call is placed whose client has read it.
  static void note_whether_heard(const Call& call, const CapturedCall& captured);

 private:
  chat::AnswerForm form_of(const ChatRequest& request) const;
  std::string shown_text(const ChatRequest& request, std::span<const GeneratedToken> tokens,
                         FinishReason reason) const;
  TokenBytes bytes_for(const ChatRequest& request) const;
  TokenNames names_for(const ChatRequest& request) const;
  std::vector<int64_t> offsets_of(std::span<const TokenId> ids, const std::string& text) const;
  void send_delta(Call& call, size_t index, Delta delta, int64_t text_offset) const;
  AnswerStream& stream_of(const Call& call, Branch& branch) const;

  const chat::PromptFormat& format_;
};

}  // namespace tailrace::gateway
