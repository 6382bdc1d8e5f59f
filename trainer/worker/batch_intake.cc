#include "trainer/worker/batch_intake.h"

#include "core/base/error.h"

namespace tailrace {

void refuse_batch(int64_t step, const std::string& reason) {
  throw UserError("the batch of step {} cannot be trained on: {}", step, reason);
}

void BatchIntake::add(const wire::Batch& part) {
  // Parts come in order and may come twice: one that begins before the end of what is here was
  // here.
  if (part.first < num_items_) return;
  if (part.first > num_items_) refuse_batch(part.step, "a part of it is missing");
  num_items_ += std::ssize(part.items);
  fetches_.emplace_back(part, next_request_);
  next_request_ = fetches_.back().end_request();
}

void BatchIntake::add(const wire::Payload& payload) {
  if (fetches_.empty()) return;
  // Only the front one asks; the next begins when it is taken.
  if (auto taken = fetches_.front().take(payload); !taken)
    refuse_batch(fetches_.front().batch().step, taken.failure().message);
}

void BatchIntake::forget() {
  fetches_.clear();
  num_items_ = 0;
}

void BatchIntake::request() {
  if (fetches_.empty()) return;
  for (const wire::Fetch& request : fetches_.front().next()) ask_(request);
}

BatchFetch BatchIntake::take() {
  BatchFetch whole = std::move(fetches_.front());
  fetches_.pop_front();
  request();
  return whole;
}

}  // namespace tailrace
