#include "rollout/gateway/call_writer.h"

#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/base/random.h"
#include "core/chat/tool_calls.h"

namespace tailrace::gateway {

uint64_t hash_of(std::span<const TokenId> tokens) {
  uint64_t value = 0;
  for (const TokenId token : tokens) value = mix({value, static_cast<uint64_t>(token)});
  return value;
}

namespace {

uint64_t salt_of(const Branch& branch) {
  // The ids of tool calls are made with it. A stream and the whole answer that is captured need the
  // same ids, so both have it from here.
  return mix({hash_of(branch.place.context), static_cast<uint64_t>(branch.place.ordinal)});
}

// Calls of tools may be written with special tokens.
bool keeps_special(const ChatRequest& request) { return request.is_chat && !request.tools.empty(); }

}  // namespace

void CallWriter::take(Call& call, Branch& branch, const Generation& generation) const {
  Choice& choice = branch.choice;
  choice.reason = generation.reason;
  choice.tokens = generation.tokens;
  choice.text = shown_text(call.request, generation.tokens, generation.reason);
  if (call.request.is_chat) {
    choice.answer = chat::parse_answer(choice.text, form_of(call.request), salt_of(branch));
  } else {
    choice.answer.content = choice.text;
  }
  call.usage.completion_tokens += std::ssize(generation.tokens);
}

void CallWriter::echo(Call& call, size_t index) const {
  const ChatRequest& request = call.request;
  if (!request.echoes) return;
  Branch& branch = call.branches[index];
  const TextPrompt& prompt = request.prompts[index / static_cast<size_t>(request.n)];
  Echo echo{.text = prompt.ids.empty() ? prompt.text : format_.tokenizer().decode(prompt.ids),
            .ids = branch.place.context};
  if (request.wants_logprobs) echo.offsets = offsets_of(echo.ids, echo.text);
  branch.choice.echo = std::move(echo);
}

// Characters of the text before each token. A special token has none; and some tokenizers begin a
// text with a blank that is not in it.
std::vector<int64_t> CallWriter::offsets_of(std::span<const TokenId> ids,
                                            const std::string& text) const {
  std::vector<int64_t> offsets;
  int64_t count = 0;
  for (const TokenId id : ids) {
    offsets.push_back(count);
    if (format_.tokenizer().is_special(id)) continue;
    std::string bytes = format_.tokenizer().bytes_of(id);
    if (count == 0 && bytes.starts_with(' ') && !text.starts_with(' ')) bytes.erase(0, 1);
    count += num_characters(bytes);
  }
  return offsets;
}

void CallWriter::score(Call& call, size_t index, const ScoreTokens& scores) {
  const ChatRequest& request = call.request;
  Branch& branch = call.branches[index];
  Choice& choice = branch.choice;
  const std::vector<TokenId>& context = branch.place.context;
  // As the model has them, whatever the sampled tokens were drawn with.
  if (request.wants_prompt_scores())
    choice.echo->scores = scores({.ids = context, .top = request.top_logprobs});
  if (!request.wants_answer_scores() || choice.tokens.empty()) return;
  std::vector<TokenId> whole = context;
  for (const GeneratedToken& token : choice.tokens) whole.push_back(token.id);
  choice.top = scores({.ids = whole,
                       .first = std::ssize(context),
                       .top = request.top_logprobs,
                       .inverse_temperature = inverse_temperature(request.sampling)})
                   .top;
}

void CallWriter::note_whether_heard(const Call& call, const CapturedCall& captured) {
  if (call.attempt->is_anonymous()) return;
  http::Reply(call.reply).when_written([attempt = call.attempt, captured](bool is_written) {
    attempt->set_heard(captured, is_written);
  });
}

chat::AnswerForm CallWriter::form_of(const ChatRequest& request) const {
  chat::AnswerForm form = format_.answer_form();
  if (request.tools.empty()) form.tools = chat::ToolForm::kNone;
  return form;
}

// Without the token that ended it, and special tokens.
std::string CallWriter::shown_text(const ChatRequest& request,
                                   std::span<const GeneratedToken> tokens,
                                   FinishReason reason) const {
  std::vector<TokenId> ids;
  for (const GeneratedToken& token : tokens) ids.push_back(token.id);
  if (reason == FinishReason::kStopToken && !ids.empty()) ids.pop_back();
  return up_to_stop(format_.tokenizer().decode(ids, keeps_special(request)),
                    request.sampling.stop_strings);
}

nlohmann::ordered_json CallWriter::message_of(const chat::ParsedAnswer& answer) {
  nlohmann::ordered_json message = {{"role", "assistant"}, {"content", answer.content}};
  if (!answer.reasoning.empty()) message["reasoning_content"] = answer.reasoning;
  if (answer.calls.empty()) return message;
  nlohmann::ordered_json& list = message["tool_calls"] = nlohmann::ordered_json::array();
  for (const chat::ToolCall& call : answer.calls)
    list.push_back({{"id", call.id},
                    {"type", "function"},
                    {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  return message;
}

void CallWriter::respond(Call& call, const Answered& answered) const {
  call.reply.send(200, call.request.is_chat
                           ? chat_response(answered.head, answered.choices, answered.usage,
                                           bytes_for(call.request))
                           : completion_response(answered.head, answered.choices, answered.usage,
                                                 names_for(call.request)));
}

TokenBytes CallWriter::bytes_for(const ChatRequest& request) const {
  if (!request.wants_logprobs) return nullptr;
  return [this](TokenId id) { return format_.tokenizer().bytes_of(id); };
}

TokenNames CallWriter::names_for(const ChatRequest& request) const {
  return {.bytes = bytes_for(request), .as_ids = request.names_ids};
}

void CallWriter::answer_again(Call& call, const Answered& answered) const {
  note_whether_heard(call, answered.captured);
  if (!call.request.stream) return respond(call, answered);
  call.head = answered.head;
  call.usage = answered.usage;
  for (size_t i = 0; i < answered.choices.size(); ++i) {
    const Choice& choice = answered.choices[i];
    Delta delta{
        .is_first = true, .reason = choice.reason, .has_calls = !choice.answer.calls.empty()};
    delta.content = choice.answer.content;
    delta.reasoning = choice.answer.reasoning;
    delta.calls = choice.answer.calls;
    delta.text = choice.text;
    delta.tokens = choice.tokens;
    send_delta(call, i, std::move(delta), /*text_offset=*/0);
  }
  end_stream(call);
}

void CallWriter::send_delta(Call& call, size_t index, Delta delta, int64_t text_offset) const {
  delta.index = static_cast<int64_t>(index);
  const bool with_usage = call.request.include_usage;
  call.reply.stream(
      call.request.is_chat
          ? chat_chunk(call.head, delta, with_usage, bytes_for(call.request))
          : completion_chunk(call.head, delta, with_usage, names_for(call.request), text_offset));
}

void CallWriter::end_stream(Call& call) {
  if (call.request.include_usage)
    call.reply.stream(usage_chunk(call.head, call.request.is_chat, call.usage));
  call.reply.stream(std::string(kStreamEnd));
  call.reply.end();
}

AnswerStream& CallWriter::stream_of(const Call& call, Branch& branch) const {
  if (branch.stream == nullptr)
    branch.stream = std::make_unique<AnswerStream>(
        format_.tokenizer(), AnswerStreamOptions{.is_chat = call.request.is_chat,
                                                 .keeps_special = keeps_special(call.request),
                                                 .wants_tokens = call.request.wants_logprobs,
                                                 .stops = call.request.sampling.stop_strings,
                                                 .form = form_of(call.request),
                                                 .salt = salt_of(branch)});
  return *branch.stream;
}

void CallWriter::stream(Call& call, size_t index, std::span<const GeneratedToken> so_far) const {
  Branch& branch = call.branches[index];
  if (auto delta = stream_of(call, branch).more(so_far))
    send_delta(call, index, std::move(*delta), branch.stream->text_offset());
}

void CallWriter::stream_rest(Call& call, size_t index) const {
  Branch& branch = call.branches[index];
  send_delta(call, index, stream_of(call, branch).rest(branch.choice),
             branch.stream->text_offset());
}

}  // namespace tailrace::gateway
