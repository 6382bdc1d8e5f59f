#include "core/base/progress.h"

#include <utility>

#include <fmt/format.h>

#include "core/base/machine.h"

namespace tailrace {
namespace {

constexpr std::chrono::seconds kSameWait{1};

thread_local ProgressScope* bound_scope = nullptr;

}  // namespace

ProgressScope::ProgressScope(std::function<void(const std::string&)> tell, const Clock& clock)
    : tell_(std::move(tell)), clock_(clock), outer_(std::exchange(bound_scope, this)) {}

ProgressScope::~ProgressScope() { bound_scope = outer_; }

Progress::Progress(std::string what, int64_t total_bytes)
    : scope_(bound_scope), what_(std::move(what)), total_(total_bytes) {
  if (scope_ == nullptr) return;
  const Time now = scope_->clock_.now();
  // Otherwise the time of the last line stays: a hundred loops of a second each are one wait, and
  // each alone would never come to a line.
  if (scope_->ended_ == Time::min() || now - scope_->ended_ > kSameWait) scope_->told_ = now;
}

Progress::~Progress() {
  if (scope_ != nullptr) scope_->ended_ = scope_->clock_.now();
}

void Progress::add(int64_t bytes) {
  if (scope_ == nullptr) return;
  done_ += bytes;
  const Time now = scope_->clock_.now();
  if (now - scope_->told_ < kTellEvery) return;
  scope_->told_ = now;
  scope_->tell_(fmt::format("{}: {} of {}", what_, format_bytes(done_), format_bytes(total_)));
}

}  // namespace tailrace
