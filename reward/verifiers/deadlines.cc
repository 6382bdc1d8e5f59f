#include "reward/verifiers/deadlines.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace tailrace {

Time deadline_of(std::optional<Time> anchor, const DeadlineRule& rule) {
  if (!anchor) return rule.most;
  const auto scaled = std::chrono::duration<double, Time::period>(*anchor) * rule.factor;
  return std::clamp(std::chrono::duration_cast<Time>(scaled), rule.least, rule.most);
}

AdaptiveDeadlines::AdaptiveDeadlines(DeadlineRule rule, size_t most_tests)
    : rule_(rule), most_tests_(most_tests) {
  TR_CHECK(most_tests >= 1 && rule.least <= rule.most);
}

Time AdaptiveDeadlines::of(const Digest& test) const {
  MutexLock lock(mutex_);
  const auto anchor = anchors_.find(test);
  return deadline_of(anchor == anchors_.end() ? std::nullopt : std::optional(anchor->second),
                     rule_);
}

void AdaptiveDeadlines::learn(const Digest& test, Time taken) {
  MutexLock lock(mutex_);
  const auto [anchor, is_new] = anchors_.try_emplace(test, taken);
  anchor->second = std::max(anchor->second, taken);
  // Age is that of the first time: a test that comes up often is not kept longer, and the queue
  // holds each once.
  if (!is_new) return;
  by_age_.push_back(test);
  if (by_age_.size() <= most_tests_) return;
  anchors_.erase(by_age_.front());
  by_age_.pop_front();
}

}  // namespace tailrace
