#include "rollout/engine/step_graphs.h"

#include <algorithm>
#include <bit>

namespace tailrace {
namespace {

int64_t next_power(int64_t n) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n)));
}

}  // namespace

StepGraphs::StepGraphs(int64_t max_rows, int64_t max_context)
    : max_rows_(max_rows), max_context_(max_context) {}

StepShape StepGraphs::shape_of(int64_t rows, int64_t context, size_t memory) const {
  if (rows < 1 || rows > std::min(max_rows_, kMostRows)) return {};
  return {.rows = std::min(next_power(rows), max_rows_),
          .context = std::min(next_power(std::max(context, kLeastContext)), max_context_),
          .memory = memory,
          .weights = places_[0]};
}

void StepGraphs::moved_to(const std::byte* weights) {
  if (places_[0] == weights) return;
  places_ = {weights, places_[0]};
  std::erase_if(graphs_, [&](const auto& graph) { return !knows(graph.first.weights); });
}

}  // namespace tailrace
