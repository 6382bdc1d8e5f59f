#include "trainer/row_task.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/base/random.h"

namespace tailrace {

std::vector<size_t> shuffled_rows(size_t rows, uint64_t seed, int64_t epoch) {
  std::vector<size_t> order(rows);
  std::iota(order.begin(), order.end(), size_t{0});
  Rng rng(mix({seed, 0x5f7, static_cast<uint64_t>(epoch)}));  // 0x5f7: a stream of its own
  // Fisher-Yates by hand: the standard leaves open what std::shuffle draws, and a run's seed must
  // mean the same rows everywhere.
  for (size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[static_cast<size_t>(rng.below(static_cast<int64_t>(i)))]);
  }
  return order;
}

RowBatches batches_of_rows(size_t rows, int64_t batch_rows, uint64_t seed, int64_t epoch) {
  RowBatches batches;
  for (const size_t row : shuffled_rows(rows, seed, epoch)) {
    if (batches.empty() || std::ssize(batches.back()) == batch_rows) batches.emplace_back();
    batches.back().push_back(row);
  }
  return batches;
}

RowTask::RowTask(const RowOptions& options, bool has_held_out, RowBatches batches)
    : has_held_out_(has_held_out),
      eval_updates_(options.eval_updates),
      batches_(std::move(batches)) {
  if (eval_updates_ > 0)
    eval_updates_ = std::max(eval_updates_, total_updates() / kMostRowEvaluations);
}

std::optional<MetricList> RowTask::update() {
  if (updates_done_ == total_updates()) return std::nullopt;
  const double done = static_cast<double>(updates_done_) / static_cast<double>(total_updates());
  MetricList metrics = update_rows(batches_[static_cast<size_t>(updates_done_)], done);
  ++updates_done_;
  return metrics;
}

bool RowTask::evaluation_is_due() const {
  if (!has_held_out_) return false;
  if (updates_done_ == 0 || updates_done_ == total_updates()) return true;
  return eval_updates_ > 0 && updates_done_ % eval_updates_ == 0;
}

void RowTask::skip(int64_t updates) { updates_done_ = std::min(updates, total_updates()); }

}  // namespace tailrace
