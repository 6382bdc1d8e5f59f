// The prompt of a policy, as the tokens of one growing sequence: plain, or as the model's chat
// template writes it.
//
// What was sampled is never written again (design rule 2). Between two answers stands what the
// template writes there: the end of the answer's turn where the policy did not write it itself, the
// message, and the beginning of the next answer. It is taken from a rendered conversation of the
// same form, so it needs neither the answers nor the history; a template for which that is not so
// is refused for conversations of several turns.
//
// Calls of tools come as OpenAI's API has them, with arguments that are a text of JSON, or as
// Hugging Face has them, with an object. The template gets the form that it writes as it was given
// (call_arguments.h). Messages and calls that it leaves out are refused.
//
// The words of messages stay words: where they hold the text of a special token, it becomes
// ordinary tokens. Only the template writes special ones. So it is in the words of tools with the
// tokens of some tokenizers that stand around calls, their results and thoughts: <tool_call>.
//
// Thread: any (immutable).
#pragma once

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/base/result.h"
#include "core/chat/call_arguments.h"
#include "core/chat/chat_template.h"
#include "core/chat/markers.h"
#include "core/chat/options.h"
#include "core/chat/tool_calls.h"
#include "core/text/tokenizer.h"

namespace tailrace::chat {

// The words of an environment or a person.
struct Said {
  std::string text = {};      // as a message of the user's
  std::string messages = {};  // instead: JSON, a list of {"role", "content", ...}; needs a template
  // JSON, a list of the schemas of tools, for the beginning; needs a template that writes them.
  std::string tools = {};
};

// A conversation that somebody else had, as the tokens of an episode of the policy's.
struct Lesson {
  std::vector<TokenId> tokens;
  std::vector<uint8_t> counts;  // of each token: 1 where the policy would have sampled it, else 0
};

class PromptFormat {
 public:
  // Plain. The tokenizer outlives it.
  explicit PromptFormat(const text::Tokenizer& tokenizer);
  // Throws UserError for a variable that the template cannot have, and for a template that asks for
  // today's date where chat.date gives none.
  PromptFormat(const text::Tokenizer& tokenizer, ChatTemplate chat_template,
               const ChatOptions& options);

  // As `options` ask for it; `directory` is the model's. Throws UserError as ChatTemplate does, and
  // about its key for an option without effect: the model has no template.
  static PromptFormat of(const ChatOptions& options, const std::filesystem::path& directory,
                         const text::Tokenizer& tokenizer);

  // The beginning of a sequence. Failure: the tokenizer cannot read it, the template refuses it,
  // messages or tools that nothing writes.
  Result<std::vector<TokenId>> first(const Said& said) const;
  // The tokens behind an answer whose last token was `last`. Failure: as first(), and for tools.
  Result<std::vector<TokenId>> next(const Said& said, TokenId last) const;

  // first() and next() in two halves: the text that the template writes, and its tokens. A caller
  // may refuse the text for its length in between, as encoding takes the longer part. `last`: as
  // of next(), for a text that write_next() has given.
  struct Written {
    std::string text;
    std::vector<size_t> literal = {};  // EncodeOptions::literal
    bool behind_answer = false;
  };
  Result<Written> write_first(const Said& said) const;
  Result<Written> write_next(const Said& said) const;
  Result<std::vector<TokenId>> encode(const Written& written, TokenId last = -1) const;

  // A list of messages with answers of the assistant, up to the last of them. The turns stand as
  // first() and next() write them, and each answer as the template writes it, with the end of its
  // turn. Answers before the message `learn_from` do not count, nor those whose flag leaves them
  // out (loss_flag.h). The contents are texts (core/text/messages.h). Failure: as next(); there is
  // no answer; the template cannot write it behind the beginning that it gives to answers; a flag
  // that cannot be honoured.
  Result<Lesson> lesson(const nlohmann::ordered_json& messages, const std::string& tools,
                        size_t learn_from = 0) const;
  // A conversation as the template writes it, with what stands behind the last turn and without the
  // beginning of another answer: what a model that judges conversations reads. Needs a template.
  // Failure: as lesson(), but for answers.
  Result<std::vector<TokenId>> whole(const nlohmann::ordered_json& messages,
                                     const std::string& tools) const;
  // A text that is said, and the answer to it. Plain: the answer ends with the tokenizer's end of a
  // text, where it has one.
  Result<Lesson> lesson_of_texts(const std::string& said, const std::string& answer) const;

  const text::Tokenizer& tokenizer() const { return tokenizer_; }
  // The variables of the template, beside messages and tools.
  const nlohmann::ordered_json& variables() const { return variables_; }
  bool has_template() const { return template_.has_value(); }
  // The special token with which the template ends an answer; -1: it has none. Sampling stops at
  // it.
  TokenId end_of_turn() const { return end_of_turn_; }

  // How the policy calls tools and thinks, as the template writes calls and thoughts. Without a
  // template: not at all.
  const AnswerForm& answer_form() const { return answer_form_; }

  // Why it cannot write conversations of several turns; nothing: it can.
  const std::optional<std::string>& turns_fault() const { return turns_fault_; }
  // The template would write an earlier turn otherwise than it was sampled, as those do that drop
  // old thinking: the policy sees what was sampled. "it drops ..."; nothing: it only appends.
  const std::optional<std::string>& rewrites() const { return rewrites_; }

 private:
  nlohmann::ordered_json messages_of(const Said& said) const;
  nlohmann::ordered_json tools_of(const Said& said) const;
  Written write(const Said& said, bool behind_answer) const;
  std::vector<TokenId> encode_inside(const std::string& text,
                                     const text::EncodeOptions& options) const;
  std::vector<TokenId> encode_behind(const std::string& said, const std::string& answer) const;
  nlohmann::ordered_json with_system(nlohmann::ordered_json messages) const;
  ChatInput input_of(nlohmann::ordered_json messages) const;
  ChatInput asking(nlohmann::ordered_json messages) const;
  // The number of tokens behind an answer that end its turn: a special one, and blanks before it.
  // 0: none do.
  size_t size_of_end(std::span<const TokenId> behind) const;
  void refuse_without_date();
  void look_at_tools();
  void look_at_turns();
  void look_at_calls();
  void look_at_thinking();
  std::string try_to_render(const ChatInput& input) const;
  std::vector<TokenId> encode_answer(const nlohmann::ordered_json& messages,
                                     const std::string& tools) const;
  std::optional<std::vector<TokenId>> encode_answer_alone(const nlohmann::ordered_json& messages,
                                                          size_t begin, size_t answer,
                                                          const std::string& tools) const;
  std::optional<Lesson> lesson_of(const nlohmann::ordered_json& messages, const std::string& tools,
                                  size_t learn_from, bool whole) const;
  void refuse_null_as_word(const ChatInput& input, const std::string& text) const;
  std::string render_with_tools(ChatInput& input, nlohmann::ordered_json tools) const;
  void refuse_left_out(ChatInput input, size_t first, const std::string& text) const;
  void refuse_calls_left_out(const nlohmann::ordered_json& messages) const;

  const text::Tokenizer& tokenizer_;
  std::optional<ChatTemplate> template_;
  std::string system_;
  nlohmann::ordered_json variables_;
  std::optional<std::tm> now_;
  Forbidden forbidden_;
  TokenId end_of_turn_ = -1;
  AnswerForm answer_form_;
  ArgumentsForm arguments_form_ = ArgumentsForm::kAsGiven;
  bool names_tools_ = false;       // what it writes holds the names of tools
  bool leaves_calls_out_ = false;  // what it writes does not hold the calls of tools
  // Null: the template can be asked without tools.
  nlohmann::ordered_json tools_asked_with_;
  std::optional<std::string> turns_fault_, rewrites_;
};

}  // namespace tailrace::chat
