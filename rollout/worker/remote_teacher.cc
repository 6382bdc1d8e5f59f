#include "rollout/worker/remote_teacher.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/json_row.h"
#include "core/base/json_text.h"
#include "core/base/printable.h"

namespace tailrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kIdName = "token_id:";
constexpr size_t kShown = 200;  // bytes of an answer, in a message

BodyId body_of(const Trajectory& trajectory) { return {trajectory.lane, trajectory.lease}; }

Failure refused(const std::string& what) { return {what, /*is_final=*/true}; }

// A finite logarithm of a probability; rounding alone may have put it above 0.
std::optional<float> logprob_of(const Json& value) {
  constexpr double kRounding = 1e-3;
  const double number = value.is_number() ? value.get<double>() : std::nan("");
  if (!std::isfinite(number) || number > kRounding) return std::nullopt;
  return static_cast<float>(std::min(number, 0.0));
}

std::optional<TokenId> id_of(std::string_view name) {
  if (!name.starts_with(kIdName)) return std::nullopt;
  name.remove_prefix(kIdName.size());
  TokenId id = 0;
  for (const char digit : name) {
    if (digit < '0' || digit > '9' || id > 100'000'000) return std::nullopt;
    id = id * 10 + (digit - '0');
  }
  return name.empty() ? std::nullopt : std::optional(id);
}

struct Top {
  TokenId id = 0;
  float logprob = 0;
};

// The `k` likeliest tokens of a position.
Result<std::vector<Top>> top_of(const Json& named, int64_t k, int64_t num_ids) {
  if (!named.is_object()) return refused("no likeliest tokens");
  std::vector<Top> top;
  for (const auto& [name, value] : named.items()) {
    const auto id = id_of(name);
    const auto logprob = logprob_of(value);
    if (!id || *id >= num_ids || !logprob)
      return refused(fmt::format("'{}' with {} among its likeliest tokens", printable(name),
                                 json_text(value).substr(0, 40)));
    top.push_back({*id, *logprob});
  }
  // The token that stands there may be one more.
  if (std::ssize(top) < k)
    return refused(fmt::format("{} likeliest tokens where {} are asked for", top.size(), k));
  std::ranges::sort(top, [](const Top& a, const Top& b) {
    return a.logprob > b.logprob || (a.logprob == b.logprob && a.id < b.id);
  });
  top.resize(static_cast<size_t>(k));
  return top;
}

const Json* find(const Json& object, const char* name) {
  const auto at = object.is_object() ? object.find(name) : object.end();
  return at == object.end() ? nullptr : &*at;
}

// The list of this name, of one entry a token.
Result<const Json*> list_of(const Json& logprobs, const char* name, size_t size) {
  const Json* list = find(logprobs, name);
  if (list == nullptr || !list->is_array() || list->size() < size)
    return refused(fmt::format("no {} of {} tokens", name, size));
  return list;
}

Result<Json> ask(const RemoteTeacherConfig& config, std::span<const TokenId> ids) {
  Json body = {{"prompt", ids},
               {"max_tokens", 0},
               {"echo", true},
               {"temperature", 1},
               {"logprobs", std::max<int64_t>(config.top_k, 1)},
               {"return_tokens_as_token_ids", true}};
  if (!config.served_as.empty()) body["model"] = config.served_as;
  const auto posted =
      http::post_json(config.url, "/completions", json_text(body),
                      {.wait = config.wait, .bearer = config.key, .max_body_bytes = 256 << 20});
  if (!posted) return posted.failure();
  const auto& [status, text] = posted.value();
  const std::string said = printable(text.substr(0, kShown));
  if (status != 200) {
    // What it cannot do it will not do the next time either.
    const bool is_final = status >= 400 && status < 500 && status != 408 && status != 429;
    return Failure{fmt::format("status {}: {}", status, said), is_final};
  }
  auto answer = parse_json_row(text);
  if (!answer) return refused("an answer that is " + answer.failure().message);
  const Json* choices = find(answer.value(), "choices");
  const bool has_one = choices != nullptr && choices->is_array() && !choices->empty();
  const Json* logprobs = has_one ? find(choices->front(), "logprobs") : nullptr;
  if (logprobs == nullptr || !logprobs->is_object())
    return refused("an answer without logprobs: " + said);
  return Json(*logprobs);
}

// Sets the scores of a segment from the answer about its context, of `ids`.
Result<void> take(const RemoteTeacherConfig& config, const Json& logprobs,
                  std::span<const TokenId> ids, size_t inherited, Segment& segment) {
  const auto tokens = list_of(logprobs, "tokens", ids.size()),
             scores = list_of(logprobs, "token_logprobs", ids.size());
  if (!tokens) return tokens.failure();
  if (!scores) return scores.failure();
  const Json* tops = nullptr;
  if (config.top_k > 0) {
    const auto found = list_of(logprobs, "top_logprobs", ids.size());
    if (!found) return found.failure();
    tops = found.value();
  }
  for (size_t at = 0; at < ids.size(); ++at) {
    const Json& name = (*tokens.value())[at];
    if (!name.is_string() || id_of(name.get_ref<const std::string&>()) != ids[at])
      return refused(fmt::format("token {} is {}, and {}{} was sent", at,
                                 json_text(name).substr(0, 40), kIdName, ids[at]));
    if (at < std::max<size_t>(inherited, 1)) continue;
    const size_t i = at - inherited;
    if (segment.roles[i] != TokenRole::kSampled) continue;
    const auto score = logprob_of((*scores.value())[at]);
    if (!score)
      return refused(fmt::format("token {} has the log-probability {}", at,
                                 json_text((*scores.value())[at]).substr(0, 40)));
    segment.teacher_logprobs[i] = *score;
    if (tops == nullptr) continue;
    const auto top = top_of((*tops)[at], config.top_k, config.num_ids);
    if (!top) return top.failure();
    for (const auto& [id, logprob] : top.value()) {
      segment.teacher_top_ids.push_back(id);
      segment.teacher_top_logprobs.push_back(logprob);
    }
  }
  return {};
}

}  // namespace

Result<void> score_remotely(const RemoteTeacherConfig& config, Trajectory& trajectory) {
  for (size_t s = 0; s < trajectory.segments.size(); ++s) {
    const std::vector<TokenId> context = begin_scores(trajectory.segments, s);
    if (context.empty()) continue;
    Segment& segment = trajectory.segments[s];
    const auto inherited = static_cast<size_t>(segment.parent_tokens);
    std::optional<Failure> failure;
    for (int tried = 0; tried < config.tries; ++tried) {
      if (tried > 0) std::this_thread::sleep_for(config.pause * tried);
      const auto answer = ask(config, context);
      const auto taken = answer ? take(config, answer.value(), context, inherited, segment)
                                : Result<void>(answer.failure());
      failure = taken ? std::nullopt : std::optional(taken.failure());
      if (!failure || failure->is_final) break;
    }
    if (!failure) continue;
    for (Segment& other : trajectory.segments)
      other.teacher_logprobs.clear(), other.teacher_top_ids.clear(),
          other.teacher_top_logprobs.clear();
    return Failure{
        fmt::format("policy {} ({}): {}", config.name, config.url.text(), failure->message)};
  }
  return {};
}

RemoteTeacher::RemoteTeacher(const RemoteTeacherConfig& config) : config_(config) {
  for (int64_t i = 0; i < config.at_once; ++i)
    threads_.emplace_back([this](const std::stop_token& stop) { work(stop); });
}

RemoteTeacher::~RemoteTeacher() {
  for (std::jthread& thread : threads_) thread.request_stop();
  arrived_.notify_all();
}

void RemoteTeacher::submit(Trajectory trajectory) {
  {
    MutexLock lock(mutex_);
    held_.insert(body_of(trajectory));
    waiting_.push_back(std::move(trajectory));
  }
  arrived_.notify_one();
}

bool RemoteTeacher::holds(const BodyId& id) {
  MutexLock lock(mutex_);
  return held_.contains(id);
}

bool RemoteTeacher::drop(const BodyId& id) {
  MutexLock lock(mutex_);
  if (held_.erase(id) == 0) return false;
  std::erase_if(waiting_, [&](const Trajectory& t) { return body_of(t) == id; });
  std::erase_if(done_, [&](const Scored& s) { return body_of(s.trajectory) == id; });
  return true;
}

std::vector<BodyId> RemoteTeacher::held() {
  MutexLock lock(mutex_);
  return {held_.begin(), held_.end()};
}

bool RemoteTeacher::idle() {
  MutexLock lock(mutex_);
  return held_.empty();
}

std::vector<RemoteTeacher::Scored> RemoteTeacher::take() {
  MutexLock lock(mutex_);
  for (const Scored& scored : done_) held_.erase(body_of(scored.trajectory));
  return std::exchange(done_, {});
}

void RemoteTeacher::work(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    std::optional<Trajectory> trajectory;
    {
      MutexLock lock(mutex_);
      arrived_.wait(lock.native(), stop, [this] { return !waiting_.empty(); });
      if (waiting_.empty()) continue;
      trajectory.emplace(std::move(waiting_.front()));
      waiting_.pop_front();
    }
    const auto scored = score_remotely(config_, *trajectory);
    MutexLock lock(mutex_);
    // Dropped meanwhile.
    if (!held_.contains(body_of(*trajectory))) continue;
    done_.push_back({std::move(*trajectory), scored ? "" : scored.failure().message});
  }
}

}  // namespace tailrace
