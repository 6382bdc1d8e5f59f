// One answer while it comes: of the tokens that are there so far, what is certain. That is no part
// of a character, nothing that may yet become a stop string, and no part of a call.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/chat/tool_calls.h"
#include "core/generate.h"
#include "core/text/stream_decoder.h"
#include "rollout/gateway/chat_answer.h"

namespace tailrace::gateway {

// The part of the sampled text that an answer shows: up to the stop string that ended it.
std::string up_to_stop(std::string text, const std::vector<std::string>& stops);

struct AnswerStreamOptions {
  bool is_chat = true;
  bool keeps_special = false;  // calls may be written with special tokens
  bool wants_tokens = false;   // for their log-probabilities
  std::vector<std::string> stops = {};
  chat::AnswerForm form = {};
  uint64_t salt = 0;  // of the ids of calls
};

class AnswerStream {
 public:
  // The tokenizer outlives it.
  AnswerStream(const text::Tokenizer& tokenizer, AnswerStreamOptions options);

  // Nothing: they show nothing more. The first piece comes with the first token.
  std::optional<Delta> more(std::span<const GeneratedToken> so_far);
  // The rest of the answer, and how it has ended.
  Delta rest(const Choice& whole);
  // Characters of a completion's text before the last piece.
  int64_t text_offset() const { return text_offset_; }

 private:
  Delta show(const std::string& text, std::span<const GeneratedToken> tokens, bool is_whole);

  const AnswerStreamOptions options_;
  text::StreamDecoder decoder_;
  chat::AnswerReader reader_;
  std::string shown_;  // of the text
  bool has_begun_ = false;
  size_t num_tokens_ = 0;
  int64_t num_calls_ = 0, text_offset_ = 0, num_characters_ = 0;
};

}  // namespace tailrace::gateway
