#include "rollout/gateway/gateway.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/random.h>

#include "core/base/digest_of.h"
#include "core/base/error.h"
#include "core/base/random.h"
#include "core/base/time.h"
#include "core/chat/tool_calls.h"
#include "core/http/exchange.h"
#include "kernels/base/check.h"
#include "kernels/base/mutex.h"
#include "rollout/gateway/answer_stream.h"
#include "rollout/gateway/chat_answer.h"
#include "rollout/gateway/chat_api.h"
#include "rollout/gateway/refusals.h"

namespace tailrace::gateway {
namespace {

using nlohmann::ordered_json;

// Reading takes milliseconds: what takes longer than this holds others up.
constexpr std::chrono::seconds kWorthNaming{2};

std::string new_key() {
  std::array<uint64_t, 2> bits{};
  if (::getrandom(bits.data(), sizeof bits, 0) != sizeof bits) {
    std::random_device device;
    for (uint64_t& word : bits) word = uint64_t{device()} << 32 | device();
  }
  return fmt::format("tr-{:016x}{:016x}", bits[0], bits[1]);
}

// Of what a draw stands behind: two conversations do not share their random numbers.
uint64_t hash_of(std::span<const TokenId> tokens) {
  uint64_t value = 0;
  for (const TokenId token : tokens) value = mix({value, static_cast<uint64_t>(token)});
  return value;
}

struct Route {
  std::string key, path;  // "/v1/..."
};
Route route_of(std::string_view target) {
  target = target.substr(0, target.find('?'));
  Route route;
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

struct Gateway::State : AnswerSink {
  struct Branch {
    Capture::Place place;
    SessionId session = 0;
    Choice choice = {};
    bool is_done = false;
    std::unique_ptr<AnswerStream> stream = nullptr;  // where the client wants one
  };

  struct Call {
    int64_t id = 0;
    std::shared_ptr<Attempt> attempt;
    ChatRequest request;
    Digest digest = {};  // of what it asks
    Digest name = {};    // the same of a call that is sent again
    http::Reply reply;
    AnswerHead head = {};
    Usage usage = {};
    std::vector<Branch> branches = {};
  };

  State(GeneratorDriver& its_generator, const chat::PromptFormat& its_format,
        GatewayOptions its_options, const Clock& its_clock)
      : generator(its_generator),
        format(its_format),
        options(std::move(its_options)),
        clock(its_clock),
        pool(options.reading, its_clock),
        server(with_refusals(options.http), [this](http::Request request, http::Reply reply) {
          handle(std::move(request), std::move(reply));
        }) {}

  ~State() override {
    for (const auto& [session, of] : branches) generator.release(session);
  }

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
    auto read = is_chat ? read_chat_request(request.body, known->spec().sampling)
                        : read_completion_request(request.body, known->spec().sampling);
    if (const auto* error = std::get_if<ApiError>(&read)) return refuse(*error);
    Call call{.attempt = known, .request = std::move(std::get<ChatRequest>(read)), .reply = reply};
    call.digest = call.name = digest_of(path + " " + request.body);
    // Clients ask again when they have not heard an answer in time. One that does not say so is not
    // told from one that wants another sample: it gets that.
    const std::string_view retries = request.header("x-stainless-retry-count"),
                           id = request.header("idempotency-key");
    if (!id.empty()) call.name = digest_of(call.digest + " " + std::string(id));
    if (!id.empty() || (!retries.empty() && retries != "0"))
      if (const auto answered = known->remembered(call.name)) return answer_again(call, *answered);
    if (auto error = place(call)) return refuse(*error);
    enqueue(std::move(call));
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
    if (!options.api_key.empty() && options.api_key != key)
      return ApiError{401, "this key is not the one that the server was started with (--api-key)",
                      "invalid_request_error", "invalid_api_key", ""};
    AttemptSpec spec{.sampling = options.sampling,
                     .max_context_tokens = generator.max_context_tokens(),
                     .max_response_tokens = generator.max_context_tokens(),
                     .max_calls = std::numeric_limits<int64_t>::max()};
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
      coming.swap(inbox);
      left.swap(gone);
      unused.swap(released);
    }
    for (const SessionId session : unused) generator.release(session);
    for (Call& call : coming) begin(std::move(call));
    for (const int64_t id : left)
      if (const auto at = calls.find(id); at != calls.end()) drop(at);
    stream();
  }

  void begin(Call call) {
    if (call.attempt->has_ended()) return release_unbegun(call);  // its reply is gone with it
    call.attempt->call_began(clock.now());
    const int64_t id = call.id;
    const Capture::Place& place = call.branches.front().place;
    call.head = {.id = fmt::format("{}-{}", call.request.is_chat ? "chatcmpl" : "cmpl", id),
                 .model = options.model,
                 .created = static_cast<int64_t>(unix_seconds())};
    call.usage.prompt_tokens = std::ssize(place.context);
    call.usage.cached_tokens = place.session != 0 ? static_cast<int64_t>(place.num_known) : 0;
    Call& open = calls.emplace(id, std::move(call)).first->second;
    for (size_t i = 0; i < open.branches.size(); ++i) submit(open, open.branches[i], i);
  }

  // The session that its place has taken goes with it.
  void release_unbegun(const Call& call) {
    for (const Branch& branch : call.branches)
      if (branch.place.session != 0) generator.release(branch.place.session);
  }

  void submit(Call& call, Branch& branch, size_t index) {
    const Capture::Place& place = branch.place;
    branch.session = place.session != 0 ? place.session : generator.open(*this);
    branches[branch.session] = {call.id, index};
    const size_t known = place.session != 0 ? place.num_known : 0;
    GenerateRequest request;
    request.session = branch.session;
    request.new_tokens.assign(place.context.begin() + static_cast<std::ptrdiff_t>(known),
                              place.context.end());
    request.sampling = call.request.sampling;
    request.wants_kept = call.attempt->spec().keeps_sets;
    const uint64_t seed = call.request.seed.value_or(0);
    request.key = {call.attempt->is_anonymous() && call.request.seed
                       ? mix({seed, static_cast<uint64_t>(place.ordinal)})
                       : mix({call.attempt->spec().key.value, hash_of(place.context),
                              static_cast<uint64_t>(place.ordinal), seed})};
    generator.submit(std::move(request));
  }

  void answered(Generation generation) override {
    const auto found = branches.find(generation.session);
    if (found == branches.end()) return;
    const auto [id, index] = found->second;
    branches.erase(found);
    const auto at = calls.find(id);
    if (at == calls.end()) return;
    Call& call = at->second;
    Branch& branch = call.branches[index];
    branch.is_done = true;
    take(call, branch, generation);
    if (call.request.stream && !branch.choice.tokens.empty())
      send_delta(call, index, stream_of(call, branch).rest(branch.choice),
                 branch.stream->text_offset());
    if (std::ranges::all_of(call.branches, [](const Branch& b) { return b.is_done; })) finish(at);
  }

  // What was sampled becomes an answer.
  void take(Call& call, Branch& branch, const Generation& generation) {
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

  // All its answers are there: now they count.
  CapturedCall capture_answers(Call& call) {
    CapturedCall captured;
    for (Branch& branch : call.branches) {
      if (!branch.choice.tokens.empty()) {
        call.attempt->commit(branch.place, branch.choice, message_of(branch.choice.answer),
                             branch.session, call.digest, captured);
      } else {
        call.attempt->discard(branch.place, /*is_full=*/true);
        generator.release(branch.session);
      }
    }
    return captured;
  }

  // Whether somebody was there to read it is known when it is written. On the I/O thread: before a
  // call is placed whose client has read it.
  static void note_whether_heard(const Call& call, const CapturedCall& captured) {
    if (call.attempt->is_anonymous()) return;
    http::Reply(call.reply).when_written([attempt = call.attempt, captured](bool is_written) {
      attempt->set_heard(captured, is_written);
    });
  }

  chat::AnswerForm form_of(const ChatRequest& request) const {
    chat::AnswerForm form = format.answer_form();
    if (request.tools.empty()) form.tools = chat::ToolForm::kNone;
    return form;
  }

  static uint64_t salt_of(const Branch& branch) {
    return mix({hash_of(branch.place.context), static_cast<uint64_t>(branch.place.ordinal)});
  }

  // Without the token that ended it, and special tokens.
  std::string shown_text(const ChatRequest& request, std::span<const GeneratedToken> tokens,
                         FinishReason reason) const {
    std::vector<TokenId> ids;
    for (const GeneratedToken& token : tokens) ids.push_back(token.id);
    if (reason == FinishReason::kStopToken && !ids.empty()) ids.pop_back();
    return up_to_stop(format.tokenizer().decode(ids, keeps_special(request)),
                      request.sampling.stop_strings);
  }

  // Calls of tools may be written with special tokens.
  static bool keeps_special(const ChatRequest& request) {
    return request.is_chat && !request.tools.empty();
  }

  static ordered_json message_of(const chat::ParsedAnswer& answer) {
    ordered_json message = {{"role", "assistant"}, {"content", answer.content}};
    if (!answer.reasoning.empty()) message["reasoning_content"] = answer.reasoning;
    if (answer.calls.empty()) return message;
    ordered_json& list = message["tool_calls"] = ordered_json::array();
    for (const chat::ToolCall& call : answer.calls)
      list.push_back({{"id", call.id},
                      {"type", "function"},
                      {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
    return message;
  }

  void finish(std::map<int64_t, Call>::iterator at) {
    Call& call = at->second;
    CapturedCall captured = capture_answers(call);
    std::vector<Choice> choices;
    for (Branch& branch : call.branches) choices.push_back(std::move(branch.choice));
    if (std::ranges::all_of(choices, [](const Choice& c) { return c.tokens.empty(); })) {
      refuse_full(call);
    } else {
      note_whether_heard(call, captured);
      Answered answered{call.head, call.usage, std::move(choices), std::move(captured)};
      if (call.request.stream) {
        end_stream(call);
      } else {
        call.reply.send(200, response(call.request, answered));
      }
      call.attempt->remember(call.name, std::move(answered));
    }
    close(call);
    calls.erase(at);
  }

  void refuse_full(Call& call) {
    const ApiError error{400, "the context is full", "invalid_request_error",
                         "context_length_exceeded", ""};
    note_refusal(error, call.attempt.get());
    call.reply.send(error.status, error.json());
  }

  std::string response(const ChatRequest& request, const Answered& answered) const {
    const TokenBytes bytes = bytes_for(request);
    return request.is_chat
               ? chat_response(answered.head, answered.choices, answered.usage, bytes)
               : completion_response(answered.head, answered.choices, answered.usage, bytes);
  }

  TokenBytes bytes_for(const ChatRequest& request) const {
    if (!request.wants_logprobs) return nullptr;
    return [this](TokenId id) { return format.tokenizer().bytes_of(id); };
  }

  // To a client that has not heard it.
  void answer_again(Call& call, const Answered& answered) const {
    note_whether_heard(call, answered.captured);
    if (!call.request.stream) return call.reply.send(200, response(call.request, answered));
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

  void send_delta(Call& call, size_t index, Delta delta, int64_t text_offset) const {
    delta.index = static_cast<int64_t>(index);
    const TokenBytes bytes = bytes_for(call.request);
    const bool with_usage = call.request.include_usage;
    call.reply.stream(call.request.is_chat
                          ? chat_chunk(call.head, delta, with_usage, bytes)
                          : completion_chunk(call.head, delta, with_usage, bytes, text_offset));
  }

  static void end_stream(Call& call) {
    if (call.request.include_usage)
      call.reply.stream(usage_chunk(call.head, call.request.is_chat, call.usage));
    call.reply.stream(std::string(kStreamEnd));
    call.reply.end();
  }

  AnswerStream& stream_of(const Call& call, Branch& branch) const {
    if (branch.stream == nullptr)
      branch.stream = std::make_unique<AnswerStream>(
          format.tokenizer(), AnswerStreamOptions{.is_chat = call.request.is_chat,
                                                  .keeps_special = keeps_special(call.request),
                                                  .wants_tokens = call.request.wants_logprobs,
                                                  .stops = call.request.sampling.stop_strings,
                                                  .form = form_of(call.request),
                                                  .salt = salt_of(branch)});
    return *branch.stream;
  }

  void stream() {
    for (auto& [id, call] : calls) {
      if (!call.request.stream) continue;
      for (size_t i = 0; i < call.branches.size(); ++i) {
        Branch& branch = call.branches[i];
        if (branch.is_done) continue;
        if (auto delta = stream_of(call, branch).more(generator.so_far(branch.session)))
          send_delta(call, i, std::move(*delta), branch.stream->text_offset());
      }
    }
  }

  // --- Ends.

  // Nobody hears its answers: they leave nothing.
  void drop(std::map<int64_t, Call>::iterator at) {
    Call& call = at->second;
    for (Branch& branch : call.branches) {
      branches.erase(branch.session);
      generator.release(branch.session);
      call.attempt->discard(branch.place, /*is_full=*/false);
    }
    close(call);
    calls.erase(at);
  }

  void close(const Call& call) {
    call.attempt->call_ended(clock.now());
    if (!call.attempt->is_anonymous()) return;
    for (const SessionId session : call.attempt->sessions()) generator.release(session);
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
        release_unbegun(call);
        return true;
      });
    }
    for (auto at = calls.begin(); at != calls.end();) {
      const auto next = std::next(at);
      if (at->second.attempt == attempt) drop(at);
      at = next;
    }
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

  // Of the engine's thread.
  std::map<int64_t, Call> calls;
  std::unordered_map<SessionId, std::pair<int64_t, size_t>> branches;

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
  MutexLock lock(state_->mutex);
  state_->arrived.wait_for(lock.native(), longest,
                           [&] { return !state_->inbox.empty() || !state_->gone.empty(); });
}

}  // namespace tailrace::gateway
