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
  const TokenBytes bytes = bytes_for(call.request);
  call.reply.send(
      200, call.request.is_chat
               ? chat_response(answered.head, answered.choices, answered.usage, bytes)
               : completion_response(answered.head, answered.choices, answered.usage, bytes));
}

TokenBytes CallWriter::bytes_for(const ChatRequest& request) const {
  if (!request.wants_logprobs) return nullptr;
  return [this](TokenId id) { return format_.tokenizer().bytes_of(id); };
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
  const TokenBytes bytes = bytes_for(call.request);
  const bool with_usage = call.request.include_usage;
  call.reply.stream(call.request.is_chat
                        ? chat_chunk(call.head, delta, with_usage, bytes)
                        : completion_chunk(call.head, delta, with_usage, bytes, text_offset));
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
