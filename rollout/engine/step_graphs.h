// Steps that decode alone, as graphs: one call in place of some hundred launches.
//
// A graph repeats its sizes, so there is one for each size that a step is brought to: rows to the
// next power of two (the bucket), contexts to the next power of two from kLeastContext on, because
// how many pieces attention divides a context into is one of the arguments. One for the longest
// context alone would have blocks of threads for pieces that nobody has: at 32768 positions, 128 of
// them in place of one. By design rule 3 no size changes a bit of a row.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "kernels/base/stream_graph.h"

namespace tailrace {

// The sizes and places that the arguments of a step depend on.
struct StepShape {
  int64_t rows = 0;     // 0: it has no graph
  int64_t context = 0;  // of the longest sequence, at most
  size_t memory = 0;    // which of the steps in flight it is, whose arrays it reads and writes
  const std::byte* weights = nullptr;  // where they lie

  auto operator<=>(const StepShape&) const = default;
};

class StepGraphs {
 public:
  static constexpr int64_t kMostRows = 256, kLeastContext = 256;

  StepGraphs() = default;  // there are none
  // For steps of at most so many rows and positions.
  StepGraphs(int64_t max_rows, int64_t max_context);

  // The shape of a step that decodes `rows` sequences; one of no rows where it has no graph.
  StepShape shape_of(int64_t rows, int64_t context, size_t memory) const;
  // Notes that a step of these sizes runs; true: the first. It runs op by op: the device loads the
  // kernels then, which it may not do while it captures.
  bool note_first(const StepShape& shape) {
    return sizes_.insert({shape.rows, shape.context}).second;
  }
  // Empty until it is captured. The step's memory must be free, and stay where it is.
  StreamGraph& of(const StepShape& shape) { return graphs_[shape]; }
  // Whether steps of these weights find graphs, or will when `weights` come to lie there: of the
  // last two places, since versions are staged in two in turn.
  bool knows(const std::byte* weights) const { return std::ranges::count(places_, weights) > 0; }
  // Weights are there from now on. The graphs of a place that is known no more go: none may be
  // under way where this one was not known.
  void moved_to(const std::byte* weights);

 private:
  int64_t max_rows_ = 0, max_context_ = 0;
  std::array<const std::byte*, 2> places_ = {};  // the present one, and the one before
  std::set<std::pair<int64_t, int64_t>> sizes_;  // that have run: rows, context
  std::map<StepShape, StreamGraph> graphs_;
};

}  // namespace tailrace
