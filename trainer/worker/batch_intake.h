// The batch of the next step as it comes: parts in their order, the bodies of each fetched in
// bounded pieces (batch_fetch.h). It asks nobody, so it is tested without a connection.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>

#include "core/messages/message.h"
#include "trainer/worker/batch_fetch.h"

namespace tailrace {

// Throws UserError: the batch of `step` cannot be trained on.
[[noreturn]] void refuse_batch(int64_t step, const std::string& reason);

class BatchIntake {
 public:
  using Ask = std::function<void(const wire::Fetch&)>;
  explicit BatchIntake(Ask ask) : ask_(std::move(ask)) {}

  bool empty() const { return fetches_.empty(); }
  // A part of a batch; one that is repeated changes nothing. None can be missing, as a session
  // keeps the order: throws UserError.
  void add(const wire::Batch& part);
  // A piece of the first part that is not whole; others are ignored. Throws UserError where it is
  // not what was asked for.
  void add(const wire::Payload& payload);
  void forget();

  // The first part that is here; not of an empty one. `request`: asks for more of it.
  const BatchFetch& front() const { return fetches_.front(); }
  void request();
  // Takes it, and asks for the next one, so that it comes meanwhile.
  BatchFetch take();

 private:
  Ask ask_;
  std::deque<BatchFetch> fetches_;  // parts whose bodies come
  int64_t num_items_ = 0;           // of all parts that came
  int64_t next_request_ = 0;
};

}  // namespace tailrace
