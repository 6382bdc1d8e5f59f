#include "core/weights/colocation.h"

#include <chrono>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/pulse.h"

namespace tailrace {
namespace {

// Waits for `ready` in pieces, so that nobody takes who waits for one who stands still.
template <class Ready>
void wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                const Ready& ready) {
  while (!changed.wait_for(lock, std::chrono::milliseconds(200), ready)) beat();
}

}  // namespace

Colocation::Colocation(Device device, int64_t turn_bytes, int64_t planned_bytes)
    : arena_(static_cast<size_t>(turn_bytes), device), planned_bytes_(planned_bytes) {}

void Colocation::share(std::shared_ptr<PackedWeights> weights) {
  {
    const std::lock_guard lock(mutex_);
    weights_ = std::move(weights);
  }
  changed_.notify_all();
}

void Colocation::begin_training() {
  std::unique_lock lock(mutex_);
  wanted_ = true;
  // A trainer that has the device already does not wait: it may train several batches in one turn.
  wait_until(changed_, lock, [&] { return holder_ != Holder::kRollout || left_; });
  wanted_ = false;
  holder_ = Holder::kTrainer;
}

void Colocation::end_training(Digest root) {
  const std::lock_guard lock(mutex_);
  root_ = std::move(root);
  TR_CHECK(holder_ == Holder::kTrainer, "the trainer does not have the device");
  holder_ = Holder::kNobody;
}

std::shared_ptr<PackedWeights> Colocation::weights() {
  std::unique_lock lock(mutex_);
  wait_until(changed_, lock, [&] { return weights_ != nullptr || left_; });
  return weights_;
}

bool Colocation::holds(const Digest& root) const {
  const std::lock_guard lock(mutex_);
  return root_ == root;
}

bool Colocation::is_wanted() const {
  const std::lock_guard lock(mutex_);
  return wanted_;
}

bool Colocation::try_sample() {
  const std::lock_guard lock(mutex_);
  // A trainer that waits comes first, so that sampling cannot keep it from the device step after
  // step.
  if (holder_ == Holder::kNobody && !wanted_) holder_ = Holder::kRollout;
  return holder_ == Holder::kRollout;
}

void Colocation::end_sampling() {
  {
    const std::lock_guard lock(mutex_);
    TR_CHECK(holder_ == Holder::kRollout, "the rollout worker does not have the device");
    holder_ = Holder::kNobody;
  }
  changed_.notify_all();
}

void Colocation::leave() {
  {
    const std::lock_guard lock(mutex_);
    left_ = true;
  }
  changed_.notify_all();
}

}  // namespace tailrace
