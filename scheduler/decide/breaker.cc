#include "scheduler/decide/breaker.h"

#include <algorithm>

namespace tailrace::scheduler {

void halt(Context& context, std::string reason) {
  if (!context.state.halted.empty()) return;
  context.state.halted = std::move(reason);
  context.act(Halt{context.state.halted});
}

void record_outcome(Context& context, Outcome outcome, const std::string& reason) {
  Breaker& breaker = context.state.breaker;
  const BreakerConfig& config = context.config().breaker;
  breaker.window.push_back(outcome);
  while (std::ssize(breaker.window) > config.window) breaker.window.pop_front();
  if (outcome == Outcome::kFinished || outcome == Outcome::kTruncated) return;
  if (!reason.empty()) breaker.last_reason[outcome] = reason;

  const int64_t failed = std::count(breaker.window.begin(), breaker.window.end(), outcome);
  const bool full = config.window > 0 && std::ssize(breaker.window) == config.window;
  if (!full || static_cast<double>(failed) <= config.share * static_cast<double>(config.window))
    return;
  const auto last = breaker.last_reason.find(outcome);
  halt(context,
       fmt::format("{} of the last {} attempts ended as {}{}", failed, config.window, name(outcome),
                   last == breaker.last_reason.end() ? "" : "; the last one: " + last->second));
}

}  // namespace tailrace::scheduler
