// Training on rows of a file: supervised rows, preferences, pairs for a reward model. What all of
// them share is here: the passes over the rows, which of them an update takes, when the held-out
// rows are measured, and where a training that was killed goes on. Its owner drives it update by
// update, to do other things in between.
//
// Batches are a function of the rows, the options and the seed, so that updates that were made
// before a kill are passed over by number.
//
// Thread: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/base/metric_list.h"
#include "trainer/options.h"

namespace tailrace {

// Limit of one training's evaluations: each makes a row of the metrics.
inline constexpr int64_t kMostRowEvaluations = 500;

// [0, rows) in the order of one epoch: shuffled by (seed, epoch).
std::vector<size_t> shuffled_rows(size_t rows, uint64_t seed, int64_t epoch);

// Row indices of each update.
using RowBatches = std::vector<std::vector<size_t>>;

// One epoch in batches of so many rows; the last one may have fewer.
RowBatches batches_of_rows(size_t rows, int64_t batch_rows, uint64_t seed, int64_t epoch);

class RowTask {
 public:
  virtual ~RowTask() = default;
  RowTask(const RowTask&) = delete;

  // One update; nothing when all are done.
  std::optional<MetricList> update();

  // Whether the held-out rows are to be measured now; always after the last update.
  bool evaluation_is_due() const;
  virtual MetricList evaluate() = 0;

  // The first updates were done before, and the weights and the optimizer are those behind them.
  void skip(int64_t updates);

  int64_t updates_done() const { return updates_done_; }
  int64_t total_updates() const { return static_cast<int64_t>(batches_.size()); }

 protected:
  // All epochs are cut beforehand: the schedule has to know how many updates there are.
  RowTask(const RowOptions& options, bool has_held_out, RowBatches batches);

  // One update on these rows. `done`: the share of the training that lies before it.
  virtual MetricList update_rows(std::span<const size_t> rows, double done) = 0;

 private:
  bool has_held_out_;
  int64_t eval_updates_;  // 0: only before the first and after the last
  RowBatches batches_;
  int64_t updates_done_ = 0;
};

// The batches of all epochs, of which options.updates (where that is not 0) are left.
// `batches_of(epoch)`: of one.
template <class BatchesOf>
RowBatches all_batches(const RowOptions& options, const BatchesOf& batches_of) {
  RowBatches all;
  const auto enough = [&] { return options.updates > 0 && std::ssize(all) >= options.updates; };
  for (int64_t epoch = 0; epoch < options.epochs && !enough(); ++epoch) {
    for (auto& batch : batches_of(epoch)) all.push_back(std::move(batch));
  }
  if (enough()) all.resize(static_cast<size_t>(options.updates));
  return all;
}

}  // namespace tailrace
