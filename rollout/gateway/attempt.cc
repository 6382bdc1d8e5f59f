#include "rollout/gateway/attempt.h"

#include <algorithm>
#include <ranges>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/json_text.h"

namespace tailrace::gateway {
namespace {

// Answers that are kept for clients that have not heard them.
constexpr size_t kMostRemembered = 16;

ApiError bad(std::string message, const char* code) {
  return {400, std::move(message), "invalid_request_error", code, ""};
}

}  // namespace

bool Attempt::has_ended() {
  MutexLock lock(mutex_);
  return has_ended_;
}

std::optional<ApiError> Attempt::fault_of(const ChatRequest& request) const {
  // What a template is told is the same for all: a client can only repeat it.
  for (const auto& [name, value] : request.template_variables.items())
    if (!format_.variables().contains(name) || format_.variables()[name] != value)
      return bad(fmt::format("chat_template_kwargs sets {} otherwise than it is set for all: by "
                             "chat.variables.{} of a run, --chat-variable {}=... of serve",
                             name, name, name),
                 "unsupported_parameter");
  const int64_t num_ids = format_.tokenizer().vocab_size();
  for (const TokenId id : request.prompt_ids)
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
  sampling.max_new_tokens = std::min(sampling.max_new_tokens, own.max_new_tokens);
  for (const TokenId stop : own.stop_tokens)
    if (std::ranges::find(sampling.stop_tokens, stop) == sampling.stop_tokens.end())
      sampling.stop_tokens.push_back(stop);
}

std::variant<std::vector<Capture::Place>, ApiError> Attempt::place(ChatRequest& request,
                                                                   SessionId& unused) {
  unused = 0;
  if (auto fault = fault_of(request)) return *fault;
  MutexLock lock(mutex_);
  if (has_ended_)
    return ApiError{401, "the episode is over", "invalid_request_error", "invalid_api_key", ""};
  if (num_calls_ + request.n > spec_.max_calls) {
    over_limit_ = true;
    return bad(
        fmt::format("the episode has had its {} answers (env.agent.max_calls)", spec_.max_calls),
        "max_calls");
  }
  auto opened = request.is_chat              ? capture_.open(request.messages, request.tools)
                : request.prompt_ids.empty() ? capture_.open_text(request.prompt)
                                             : capture_.open_tokens(request.prompt_ids);
  if (!opened) return bad(opened.failure().message, "invalid_prompt");
  const Capture::Place& first = opened.value();
  const auto length = static_cast<int64_t>(first.context.size());
  const int64_t response = length - static_cast<int64_t>(first.num_prompt);
  const int64_t room =
      std::min(spec_.max_context_tokens - length, spec_.max_response_tokens - response);
  if (room < 1) {
    over_limit_ = true;
    capture_.discard(first);
    unused = first.session;
    return bad(length >= spec_.max_context_tokens
                   ? fmt::format("the conversation has {} tokens; the context holds {}", length,
                                 spec_.max_context_tokens)
                   : fmt::format("the conversation has {} tokens behind its first prompt; {} are "
                                 "the most (rollout.max_response_tokens)",
                                 response, spec_.max_response_tokens),
               "context_length_exceeded");
  }
  request.sampling.max_new_tokens = std::min(request.sampling.max_new_tokens, room);
  if (!is_anonymous_) keep_distribution(request.sampling);
  num_calls_ += request.n;
  std::vector<Capture::Place> places = {first};
  while (std::ssize(places) < request.n) places.push_back(capture_.again(first));
  return places;
}

void Attempt::commit(const Capture::Place& place, const Choice& choice,
                     const nlohmann::ordered_json& message, SessionId session) {
  MutexLock lock(mutex_);
  over_limit_ = false;  // a conversation that was shortened has room again
  num_malformed_ += choice.answer.num_malformed;
  capture_.commit(place, choice.tokens, message, session);
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
  return {.segments = capture_.take(),
          .num_answers = capture_.num_answers(),
          .over_limit = over_limit_,
          .generate_seconds = generate_seconds_,
          .conversation = json_text(capture_.last_conversation()),
          .first_messages = json_text(capture_.first_said()),
          .num_begun_anew = capture_.num_begun_anew(),
          .num_malformed_calls = num_malformed_,
          .anchors = capture_.anchors()};
}

}  // namespace tailrace::gateway
