#include "rollout/gateway/attempt.h"

#include <algorithm>
#include <iterator>
#include <ranges>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/json_text.h"
#include "kernels/base/check.h"

namespace tailrace::gateway {
namespace {

// Answers that are kept for clients that have not heard them.
constexpr size_t kMostRemembered = 16;

ApiError bad(std::string message, const char* code) {
  return {400, std::move(message), "invalid_request_error", code, ""};
}

// The least that the context holds of a conversation whatever the template leaves out. Many leave
// out old thinking, so nothing that the assistant has said counts; and many trim blanks.
// Capture::write() looks again, at the text that the template has written.
struct Heard {
  int64_t num_bytes = 0, least_tokens = 0;
};
Heard heard_in(const text::Tokenizer& tokenizer, const nlohmann::ordered_json& messages) {
  Heard heard;
  int64_t num_non_blank = 0;
  for (const auto& message : messages) {
    if (message.value("role", "") == "assistant") continue;
    const auto content = message.find("content");
    if (content == message.end() || !content->is_string()) continue;
    const auto& text = content->get_ref<const std::string&>();
    heard.num_bytes += std::ssize(text);
    num_non_blank += text::num_non_blank(text);
  }
  heard.least_tokens = text::least_num_tokens(tokenizer, num_non_blank);
  return heard;
}

}  // namespace

bool Attempt::has_ended() {
  MutexLock lock(mutex_);
  return has_ended_;
}

std::optional<ApiError> Attempt::fault_of(const ChatRequest& request) const {
  // Template variables are the same for all: a client can only repeat them.
  for (const auto& [name, value] : request.template_variables.items())
    if (!format_.variables().contains(name) || format_.variables()[name] != value)
      return bad(fmt::format("chat_template_kwargs sets {} otherwise than it is set for all: by "
                             "chat.variables.{} of a run, --chat-variable {}=... of serve",
                             name, name, name),
                 "unsupported_parameter");
  const int64_t num_ids = format_.tokenizer().vocab_size();
  for (const TextPrompt& prompt : request.prompts)
    for (const TokenId id : prompt.ids)
      if (id < 0 || id >= num_ids)
        return bad(
            fmt::format("the prompt has the token {}; the model has ids below {}", id, num_ids),
            "invalid_prompt");
  return std::nullopt;
}

// A trajectory has one.
void Attempt::keep_distribution(SamplingParams& sampling) const {
  const SamplingParams& own = spec_.sampling;
  sampling.temperature = own.temperature;
  sampling.top_k = own.top_k;
  sampling.top_p = own.top_p;
  sampling.min_p = own.min_p;
  // Lengths are no part of the distribution: a client may ask for less.
  sampling.max_new_tokens = std::min(sampling.max_new_tokens, own.max_new_tokens);
  for (const TokenId stop : own.stop_tokens)
    if (std::ranges::find(sampling.stop_tokens, stop) == sampling.stop_tokens.end())
      sampling.stop_tokens.push_back(stop);
}

// Why no call of so many answers is taken now.
std::optional<ApiError> Attempt::refusal(int64_t num_answers) {
  if (has_ended_)
    return ApiError{401, "the episode is over", "invalid_request_error", "invalid_api_key", ""};
  if (num_calls_ + num_answers <= spec_.max_calls) return std::nullopt;
  over_limit_ = true;
  return bad(
      fmt::format("the episode has had its {} answers (env.agent.max_calls)", spec_.max_calls),
      "max_calls");
}

// The error for a conversation that was not encoded, as it could not fit.
ApiError Attempt::too_long(int64_t num_bytes, int64_t least_tokens) {
  over_limit_ = true;
  if (num_bytes == 0)
    return bad(fmt::format("the conversation has {} tokens; the context holds {}", least_tokens,
                           spec_.max_context_tokens),
               "context_length_exceeded");
  return bad(fmt::format("the conversation has {} bytes of text, which are at least {} tokens (the "
                         "longest of the vocabulary has {} bytes); the context holds {}",
                         num_bytes, least_tokens, format_.tokenizer().max_token_bytes(),
                         spec_.max_context_tokens),
             "context_length_exceeded");
}

std::variant<std::vector<Capture::Place>, ApiError> Attempt::place(ChatRequest& request,
                                                                   const Digest& call,
                                                                   SessionId& unused) {
  unused = 0;
  if (auto fault = fault_of(request)) return *fault;
  // Before anything is done with them.
  const Heard heard = heard_in(format_.tokenizer(), request.messages);
  if (heard.least_tokens > spec_.max_context_tokens) {
    MutexLock lock(mutex_);
    return too_long(heard.num_bytes, heard.least_tokens);
  }
  if (request.is_chat)
    return place(Capture::begin(std::move(request.messages), request.tools), request, call, unused);
  TR_CHECK(request.prompts.size() == 1 || is_anonymous_, "{} prompts of an episode",
           request.prompts.size());
  std::vector<Capture::Place> places;
  for (const TextPrompt& prompt : request.prompts) {
    auto placed = place(
        prompt.ids.empty() ? Capture::begin_text(prompt.text) : Capture::begin_tokens(prompt.ids),
        request, call, unused);
    auto* error = std::get_if<ApiError>(&placed);
    if (error == nullptr) {
      std::ranges::move(std::get<std::vector<Capture::Place>>(placed), std::back_inserter(places));
      continue;
    }
    // The places of the prompts before it need no discard(): they end with the attempt, which is
    // this call's alone.
    if (request.prompts.size() > 1)
      error->message =
          fmt::format("prompt[{}]: {}", &prompt - request.prompts.data(), error->message);
    return *error;
  }
  return places;
}

std::variant<std::vector<Capture::Place>, ApiError> Attempt::place(Result<Capture::Opening> begun,
                                                                   ChatRequest& request,
                                                                   const Digest& call,
                                                                   SessionId& unused) {
  if (!begun) return bad(begun.failure().message, "invalid_prompt");
  Capture::Opening opening = std::move(begun).value();
  {
    MutexLock lock(mutex_);
    if (auto refused = refusal(request.n)) return *refused;
    capture_.find(opening);
  }
  // The long part, without the lock: it looks at nothing that was captured.
  if (auto written = Capture::write(opening, format_, spec_.max_context_tokens); !written)
    return bad(written.failure().message, "invalid_prompt");

  MutexLock lock(mutex_);
  // Once more: the attempt may have ended while the messages were written without the lock.
  if (auto refused = refusal(request.n)) return *refused;
  if (opening.least_tokens > 0) return too_long(opening.text_bytes, opening.least_tokens);
  const Capture::Place first = capture_.settle(std::move(opening));
  const auto length = static_cast<int64_t>(first.context.size());
  const int64_t response = length - static_cast<int64_t>(first.num_prompt);
  const int64_t room =
      std::min(spec_.max_context_tokens - length, spec_.max_response_tokens - response);
  if (room < std::min<int64_t>(request.sampling.max_new_tokens, 1)) {
    over_limit_ = true;
    capture_.discard(first);
    // settle() took the session of the answer that this call goes on behind; with the call refused
    // it would never be released.
    unused = first.session;
    return bad(length >= spec_.max_context_tokens
                   ? fmt::format("the conversation has {} tokens; the context holds {}", length,
                                 spec_.max_context_tokens)
                   : fmt::format("the conversation has {} tokens behind its first prompt; {} are "
                                 "the most (rollout.max_response_tokens)",
                                 response, spec_.max_response_tokens),
               "context_length_exceeded");
  }
  // The answers to several prompts have different room: each ends where its context is full.
  if (request.prompts.size() <= 1)
    request.sampling.max_new_tokens = std::min(request.sampling.max_new_tokens, room);
  if (!is_anonymous_) keep_distribution(request.sampling);
  num_calls_ += request.n;
  // The same body again, although nobody went on behind the answer to the first: a client that
  // wants another sample, or one that retries without saying so. The number is reported.
  if (const auto asked = answers_of_.find(call);
      asked != answers_of_.end() && std::ranges::any_of(asked->second, [&](int32_t answer) {
        return capture_.is_unused(answer);
      }))
    ++num_asked_again_;
  std::vector<Capture::Place> places = {first};
  while (std::ssize(places) < request.n) places.push_back(capture_.again(first));
  return places;
}

void Attempt::commit(const Capture::Place& place, const Choice& choice,
                     const nlohmann::ordered_json& message, SessionId session, const Digest& call,
                     CapturedCall& captured) {
  MutexLock lock(mutex_);
  over_limit_ = false;  // a conversation that was shortened has room again
  num_malformed_ += choice.answer.num_malformed;
  const int32_t answer = capture_.commit(place, choice.tokens, message, session);
  captured.answers.push_back(answer);
  captured.places.push_back(place);
  // A call without a key has nobody who asks again.
  if (!is_anonymous_) answers_of_[call].push_back(answer);
}

void Attempt::set_heard(const CapturedCall& captured, bool is_heard) {
  MutexLock lock(mutex_);
  if (has_ended_) return;
  // The last first, so that the draws are given back in their order.
  for (size_t i = captured.answers.size(); i-- > 0;)
    if (capture_.set_heard(captured.answers[i], captured.places[i], is_heard))
      num_calls_ += is_heard ? 1 : -1;
}

bool Attempt::has_unknown() {
  MutexLock lock(mutex_);
  return capture_.has_unknown();
}

void Attempt::note_refusal(const std::string& why) {
  MutexLock lock(mutex_);
  ++num_refused_;
  last_refusal_ = why;
}

void Attempt::discard(const Capture::Place& place, bool is_full) {
  MutexLock lock(mutex_);
  over_limit_ = over_limit_ || is_full;
  capture_.discard(place);
  --num_calls_;
}

void Attempt::remember(const Digest& call, Answered answered) {
  if (is_anonymous_) return;
  MutexLock lock(mutex_);
  if (answered_.size() >= kMostRemembered) answered_.erase(answered_.begin());
  answered_.emplace_back(call, std::move(answered));
}

std::optional<Answered> Attempt::remembered(const Digest& call) {
  MutexLock lock(mutex_);
  if (has_ended_) return std::nullopt;
  for (const auto& [digest, answered] : answered_ | std::views::reverse)
    if (digest == call) return answered;
  return std::nullopt;
}

void Attempt::call_began(Time now) {
  // Between its first open call and the end of the last one the engine works for this attempt. The
  // rest of the episode is the agent's own time.
  if (num_open_++ == 0) open_since_ = now;
}

void Attempt::call_ended(Time now) {
  if (--num_open_ == 0) generate_seconds_ += seconds_of(now - open_since_);
}

std::vector<SessionId> Attempt::sessions() {
  MutexLock lock(mutex_);
  return capture_.sessions();
}

CapturedAttempt Attempt::end() {
  MutexLock lock(mutex_);
  has_ended_ = true;
  capture_.end_unknown();
  // Counted before take(), which drops what nobody has read.
  const int64_t num_given = capture_.num_answers();
  return {.segments = capture_.take(),
          .num_answers = capture_.num_answers(),
          .over_limit = over_limit_,
          .generate_seconds = generate_seconds_,
          .conversation = json_text(capture_.last_conversation()),
          .first_messages = json_text(capture_.first_said()),
          .num_begun_anew = capture_.num_begun_anew(),
          .num_malformed_calls = num_malformed_,
          .num_unheard = num_given - capture_.num_answers(),
          .num_asked_again = num_asked_again_,
          .num_refused = num_refused_,
          .last_refusal = last_refusal_,
          .anchors = capture_.anchors()};
}

}  // namespace tailrace::gateway
