#include "rollout/gateway/gateway.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>

#include <fmt/format.h>
#include <sys/random.h>

#include "core/base/digest_of.h"
#include "core/base/error.h"
#include "core/base/random_key.h"
#include "core/http/exchange.h"
#include "kernels/base/check.h"
#include "kernels/base/mutex.h"
#include "rollout/gateway/call.h"
#include "rollout/gateway/call_writer.h"
#include "rollout/gateway/chat_api.h"
#include "rollout/gateway/open_calls.h"
#include "rollout/gateway/refusals.h"

namespace tailrace::gateway {
namespace {

// Reading takes milliseconds: what takes longer than this holds others up.
constexpr std::chrono::seconds kWorthNaming{2};

// Whoever knows the key of an episode writes into its trajectory.
std::string new_key() { return "tr-" + random_key(); }

struct Route {
  std::string key, path;  // "/v1/..."
};
Route route_of(std::string_view target) {
  target = target.substr(0, target.find('?'));
  Route route;
  // The key of an episode stands in the URL that its agent was given (base_url()). It counts before
  // the header, where a client may send an API key of its own.
  if (target.starts_with("/s/")) {
    target.remove_prefix(3);
    const size_t end = target.find('/');
    route.key = target.substr(0, end);
    target = end == target.npos ? std::string_view() : target.substr(end);
  }
  route.path = target;
  return route;
}

std::string_view bearer_of(const http::Request& request) {
  std::string_view value = request.header("authorization");
  constexpr std::string_view kScheme = "Bearer ";
  if (value.starts_with(kScheme)) return value.substr(kScheme.size());
  return request.header("x-api-key");
}

std::string key_of(const Route& route, const http::Request& request) {
  return route.key.empty() ? std::string(bearer_of(request)) : route.key;
}

}  // namespace

struct Gateway::State {
  State(GeneratorDriver& its_generator, const chat::PromptFormat& its_format,
        GatewayOptions its_options, const Clock& its_clock)
      : generator(its_generator),
        format(its_format),
        options(std::move(its_options)),
        clock(its_clock),
        writer(format),
        calls(
            generator, writer, options.model, options.scores,
            [this](const ApiError& error, Attempt& attempt) { note_refusal(error, &attempt); },
            clock),
        pool(options.reading, its_clock),
        server(with_refusals(options.http), [this](http::Request request, http::Reply reply) {
          handle(std::move(request), std::move(reply));
        }) {}

  // --- The I/O thread.

  // The server refuses some requests by itself: a body beyond its limit, a header that never ends.
  http::ServerOptions with_refusals(http::ServerOptions how) {
    how.on_refusal = [this](const http::Request& head, int status, const std::string& message) {
      const char* const type = status >= 500 ? "server_error" : "invalid_request_error";
      const char* const code = status == 413 ? "request_too_large" : "http";
      const auto attempt = attempt_with(key_of(route_of(head.target), head));
      note_refusal({status, message, type, code, ""}, attempt.get());
    };
    return how;
  }

  // Also what the server makes a 500 of is in the log.
  void handle(http::Request request, const http::Reply& reply) {
    try {
      answer_or_refuse(std::move(request), reply);
    } catch (const std::exception& error) {
      gateway::note_refusal(refusals, {500, error.what(), "server_error", "exception", ""});
      throw;
    }
  }

  void answer_or_refuse(http::Request request, http::Reply reply) {
    const Route route = route_of(request.target);
    Attempt* asked = nullptr;
    const auto refuse = [&](const ApiError& error) {
      note_refusal(error, asked);
      reply.send(error.status, error.json());
    };
    if (route.path == "/health") return reply.send(200, "{\"status\":\"ok\"}");
    const bool is_chat = route.path == "/v1/chat/completions",
               is_text = route.path == "/v1/completions";
    auto attempt = attempt_of(route, request);
    if (const auto* error = std::get_if<ApiError>(&attempt)) return refuse(*error);
    asked = std::get<std::shared_ptr<Attempt>>(attempt).get();
    if (route.path == "/v1/models" && request.method == "GET")
      return reply.send(200, models_response(std::array{model_entry()}));
    if (route.path.starts_with("/v1/models/") && request.method == "GET")
      return reply.send(200, model_response(model_entry()));
    if (!is_chat && !is_text)
      return refuse({404,
                     fmt::format("there is no {} {}; there are /v1/chat/completions, "
                                 "/v1/completions and /v1/models",
                                 request.method, route.path),
                     "invalid_request_error", "not_found", ""});
    if (request.method != "POST")
      return refuse({405, fmt::format("{} is asked by POST", route.path), "invalid_request_error",
                     "method_not_allowed", ""});
    auto& known = std::get<std::shared_ptr<Attempt>>(attempt);
    const auto num_bytes = static_cast<int64_t>(request.body.size());
    if (num_bytes > known->spec().max_request_bytes)
      return refuse({413,
                     fmt::format("the body of the request has {} bytes; at most {} are taken "
                                 "(env.agent.max_request_mb)",
                                 num_bytes, known->spec().max_request_bytes),
                     "invalid_request_error", "request_too_large", ""});
    const std::string& name = known->spec().name;
    std::string what = fmt::format("{} {} of {}", request.method, route.path,
                                   name.empty() ? "a client without an episode" : name);
    // The address names the attempt among the calls that wait. It stays the attempt's as long as
    // one of them holds it.
    const void* const session = known.get();
    switch (pool.post(session, std::move(what), num_bytes,
                      [this, known, request = std::move(request), path = route.path, is_chat,
                       reply] { read(known, request, path, is_chat, reply); })) {
      case ReadingPool::Taken::kYes:
        return;
      case ReadingPool::Taken::kSessionIsFull:
        return refuse({429, "the calls before this one are not read yet; try again",
                       "rate_limit_error", "too_many_requests", ""});
      case ReadingPool::Taken::kIsFull:
        return refuse({503, "the server has more calls to read than it may hold; try again",
                       "server_error", "too_many_requests", ""});
    }
  }

  // --- A thread that reads. The calls of an attempt come one at a time.

  void read(const std::shared_ptr<Attempt>& known, const http::Request& request,
            const std::string& path, bool is_chat, http::Reply reply) {
    if (reply.is_gone()) return;  // it waited, and nobody would hear the answer
    try {
      read_call(known, request, path, is_chat, reply);
    } catch (const std::exception& error) {
      gateway::note_refusal(refusals, {500, error.what(), "server_error", "exception", ""});
      reply.send(500, http::error_body(fmt::format("the server failed: {}", error.what()),
                                       "server_error"));
    }
  }

  void read_call(const std::shared_ptr<Attempt>& known, const http::Request& request,
                 const std::string& path, bool is_chat, http::Reply& reply) {
    const auto refuse = [&](const ApiError& error) {
      note_refusal(error, known.get());
      reply.send(error.status, error.json());
    };
    if (known->has_ended())
      return refuse({401, "the episode is over", "invalid_request_error", "invalid_api_key", ""});
    auto read =
        is_chat ? read_chat_request(request.body, known->spec().sampling)
                : read_completion_request(request.body, known->spec().sampling, can_score(*known));
    if (const auto* error = std::get_if<ApiError>(&read)) return refuse(*error);
    Call call{.attempt = known, .request = std::move(std::get<ChatRequest>(read)), .reply = reply};
    call.digest = call.name = digest_of(path + " " + request.body);
    // Clients ask again when they have not heard an answer in time. One that does not say so is not
    // told from one that wants another sample: it gets that.
    const std::string_view retries = request.header("x-stainless-retry-count"),
                           id = request.header("idempotency-key");
    if (!id.empty()) call.name = digest_of(call.digest + " " + std::string(id));
    if (!id.empty() || (!retries.empty() && retries != "0"))
      if (const auto answered = known->remembered(call.name))
        return writer.answer_again(call, *answered);
    if (auto error = place(call)) return refuse(*error);
    enqueue(std::move(call));
  }

  bool can_score(const Attempt& attempt) const {
    return attempt.is_anonymous() && options.scores != nullptr;
  }

  void note_refusal(const ApiError& error, Attempt* attempt) {
    gateway::note_refusal(refusals, error);
    if (attempt != nullptr) attempt->note_refusal(told(error));
  }

  // Null: there is none.
  std::shared_ptr<Attempt> attempt_with(const std::string& key) {
    MutexLock lock(mutex);
    const auto at = attempts.find(key);
    return at == attempts.end() ? nullptr : at->second;
  }

  std::variant<std::shared_ptr<Attempt>, ApiError> attempt_of(const Route& route,
                                                              const http::Request& request) {
    const std::string key = key_of(route, request);
    if (auto known = attempt_with(key)) return known;
    if (!options.serves_anonymous || !route.key.empty())
      return ApiError{401,
                      "no episode has this key: the episode is over, or the URL is not the one "
                      "that the agent was given (OPENAI_BASE_URL)",
                      "invalid_request_error", "invalid_api_key", ""};
    if (!options.api_key.empty() && !is_key(options.api_key, key))
      return ApiError{401, "this key is not the one that the server was started with (--api-key)",
                      "invalid_request_error", "invalid_api_key", ""};
    AttemptSpec spec{.sampling = options.sampling,
                     .max_context_tokens = generator.max_context_tokens(),
                     .max_response_tokens = generator.max_context_tokens(),
                     .max_calls = std::numeric_limits<int64_t>::max()};
    // No sample gives the draws of a call without an episode, so each call has random ones of its
    // own.
    std::array<uint64_t, 1> bits{};
    (void)!::getrandom(bits.data(), sizeof bits, 0);
    spec.key = {bits[0]};
    return std::make_shared<Attempt>(spec, format, /*is_anonymous=*/true);
  }

  // Where its answers go on; a fault: nowhere.
  std::optional<ApiError> place(Call& call) {
    SessionId unused = 0;
    auto placed = call.attempt->place(call.request, call.digest, unused);
    if (unused != 0) release_later(unused);
    if (const auto* error = std::get_if<ApiError>(&placed)) return *error;
    for (Capture::Place& place : std::get<std::vector<Capture::Place>>(placed))
      call.branches.push_back({.place = std::move(place)});
    return std::nullopt;
  }

  void enqueue(Call call) {
    int64_t id;
    http::Reply reply = call.reply;
    {
      MutexLock lock(mutex);
      id = call.id = ++last_call;
      inbox.push_back(std::move(call));
      arrived.notify_one();
    }
    // Behind it, so that nobody is told of a call that has gone before it has come.
    reply.when_gone([this, id] {
      MutexLock lock(mutex);
      gone.push_back(id);
      arrived.notify_one();
    });
  }

  void release_later(SessionId session) {
    MutexLock lock(mutex);
    released.push_back(session);
  }

  ModelEntry model_entry() const {
    return {.id = options.model, .max_context_tokens = generator.max_context_tokens()};
  }

  // --- The engine's thread.

  void poll() {
    std::vector<Call> coming;
    std::vector<int64_t> left;
    std::vector<SessionId> unused;
    {
      MutexLock lock(mutex);
      // Only the lists change hands under the lock. Threads that read would else wait for the
      // engine.
      coming.swap(inbox);
      left.swap(gone);
      unused.swap(released);
    }
    for (const SessionId session : unused) generator.release(session);
    for (Call& call : coming) calls.begin(std::move(call));
    for (const int64_t id : left) calls.drop(id);
    calls.stream();
    calls.score_next();
  }

  CapturedAttempt end(const std::string& key) {
    std::shared_ptr<Attempt> attempt = attempt_with(key);
    TR_CHECK(attempt != nullptr, "no attempt has the key {}", key);
    // A client that has read its answer may be here before the I/O thread knows that it is written.
    if (attempt->has_unknown()) server.catch_up();
    {
      MutexLock lock(mutex);
      attempts.erase(key);
      std::erase_if(inbox, [&](const Call& call) {
        if (call.attempt != attempt) return false;
        calls.release_unbegun(call);
        return true;
      });
    }
    calls.drop_all(*attempt);
    for (const SessionId session : attempt->sessions()) generator.release(session);
    return attempt->end();
  }

  GeneratorDriver& generator;
  const chat::PromptFormat& format;
  const GatewayOptions options;
  const Clock& clock;

  Mutex mutex;
  std::condition_variable arrived;
  std::unordered_map<std::string, std::shared_ptr<Attempt>> attempts TR_GUARDED_BY(mutex);
  std::vector<Call> inbox TR_GUARDED_BY(mutex);
  std::vector<int64_t> gone TR_GUARDED_BY(mutex);
  std::vector<SessionId> released TR_GUARDED_BY(mutex);

  int64_t last_call TR_GUARDED_BY(mutex) = 0;
  CountedLines refusals;

  const CallWriter writer;
  OpenCalls calls;  // of the engine's thread

  // Last: the threads end before all that they use; the I/O thread first, which gives to the pool.
  ReadingPool pool;
  http::Server server;
};

Gateway::Gateway(GeneratorDriver& generator, const chat::PromptFormat& format,
                 const GatewayOptions& options, const Clock& clock)
    : state_(std::make_unique<State>(generator, format, options, clock)) {}

Gateway::~Gateway() = default;

std::string Gateway::begin(const AttemptSpec& spec, std::string key) {
  if (key.empty()) key = new_key();
  auto attempt = std::make_shared<Attempt>(spec, state_->format, /*is_anonymous=*/false);
  MutexLock lock(state_->mutex);
  state_->attempts.emplace(key, std::move(attempt));
  return key;
}

CapturedAttempt Gateway::end(const std::string& key) { return state_->end(key); }

std::string Gateway::base_url(const std::string& key, uint16_t sandbox_port) const {
  const std::string root =
      sandbox_port > 0
          ? fmt::format("http://127.0.0.1:{}", sandbox_port)
          : fmt::format("http://{}:{}", state_->options.http.address, state_->server.port());
  return key.empty() ? root + "/v1" : fmt::format("{}/s/{}/v1", root, key);
}

http::Server& Gateway::server() { return state_->server; }
void Gateway::poll() { state_->poll(); }

bool Gateway::idle() const {
  MutexLock lock(state_->mutex);
  return state_->calls.empty() && state_->inbox.empty();
}

std::optional<HeldCall> Gateway::held() const {
  auto held = state_->pool.oldest();
  if (held && state_->clock.now() - held->since < kWorthNaming) return std::nullopt;
  return held;
}

std::vector<std::string> Gateway::take_refusals(bool is_end) {
  return is_end ? state_->refusals.take_totals() : state_->refusals.take();
}

void Gateway::wait(std::chrono::milliseconds longest) {
  if (state_->calls.has_to_score()) return;
  MutexLock lock(state_->mutex);
  state_->arrived.wait_for(lock.native(), longest,
                           [&] { return !state_->inbox.empty() || !state_->gone.empty(); });
}

}  // namespace tailrace::gateway
