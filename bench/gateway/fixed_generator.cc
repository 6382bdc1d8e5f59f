#include "bench/gateway/fixed_generator.h"

#include <thread>
#include <utility>

#include "core/base/clock.h"
#include "kernels/base/check.h"

namespace tailrace {

void FixedGenerator::submit(GenerateRequest request) {
  const int64_t client = request.sampling.max_new_tokens - kFirst;
  TR_CHECK(client >= 0 && client < std::ssize(seconds_), "a call of nobody: {}", client);
  sessions_.insert(request.session);
  open_[request.session] = {
      .steps = steps_, .client = static_cast<size_t>(client), .since = seconds_of(steady_now())};
}

void FixedGenerator::release(SessionId session) {
  sessions_.erase(session);
  if (open_.erase(session) > 0) aborted_.push_back(session);
}

std::vector<Generation> FixedGenerator::step() {
  std::vector<Generation> done;
  for (const SessionId session : std::exchange(aborted_, {}))
    done.push_back({.session = session, .tokens = {}, .reason = FinishReason::kAborted});
  if (!open_.empty() && step_.count() > 0) std::this_thread::sleep_for(step_);
  const double now = seconds_of(steady_now());
  for (auto at = open_.begin(); at != open_.end();) {
    if (--at->second.steps > 0) {
      ++at;
      continue;
    }
    Generation& generation = done.emplace_back();
    generation.session = at->first;
    for (const TokenId id : answer_) generation.tokens.push_back({.id = id, .logprob = -1});
    seconds_[at->second.client] = now - at->second.since;
    at = open_.erase(at);
  }
  return done;
}

}  // namespace tailrace
