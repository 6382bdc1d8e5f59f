// A step of the engine from its plan until what it drew is collected.
//
// While the next step may be planned before this one is collected there are two of them, so that
// neither the host nor a copy writes over what the other still reads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "core/generate.h"
#include "core/model/forward_batch.h"
#include "core/model/mirror.h"
#include "kernels/base/device.h"
#include "kernels/base/memory.h"
#include "kernels/ops/end_drawn.h"
#include "kernels/ops/sample.h"
#include "rollout/engine/batch_planner.h"
#include "rollout/engine/step_graphs.h"

namespace tailrace {

// How rows are drawn, and what sample() says of them: an element each, on both sides.
struct MirroredDraws {
  Mirror<SamplingRow> how;
  // [rows * kDrawnStops] Which draws end their sequence. The host writes them; on the CPU, where
  // nobody looks, there are none.
  Mirror<int32_t> stops;
  Mirror<int32_t> tokens, kept_counts;
  Mirror<float> lse, logprobs, kept_lse;

  MirroredDraws(const MirrorMemory& memory, int64_t rows)
      : how(memory, rows),
        stops(memory, memory.is_one() ? 0 : rows * kDrawnStops),
        tokens(memory, rows),
        kept_counts(memory, rows),
        lse(memory, rows),
        logprobs(memory, rows),
        kept_lse(memory, rows) {}

  MirroredDraws slice(int64_t begin, int64_t count) const {
    MirroredDraws part = *this;
    part.how = how.slice(begin, count);
    if (!stops.host.empty()) part.stops = stops.slice(begin * kDrawnStops, count * kDrawnStops);
    part.tokens = tokens.slice(begin, count);
    part.kept_counts = kept_counts.slice(begin, count);
    part.lse = lse.slice(begin, count);
    part.logprobs = logprobs.slice(begin, count);
    part.kept_lse = kept_lse.slice(begin, count);
    return part;
  }
  // All but `how` and `stops`, which the host writes.
  void fetch(const Stream& stream) const {
    tokens.fetch(stream);
    kept_counts.fetch(stream);
    lse.fetch(stream);
    logprobs.fetch(stream);
    kept_lse.fetch(stream);
  }
};

struct StepInFlight {
  // The part of a sequence that the pass computes.
  struct Part {
    Sequence* sequence = nullptr;  // null: it has ended meanwhile, and this is of no use
    int64_t count = 0;             // positions
    int64_t length = 0;            // of the sequence up to them
    int32_t row = -1;              // its next token's; -1: none is drawn
  };

  BatchBuilder builder;
  MirroredDraws draws;
  Mirror<int32_t> chosen;  // [sparse layers, tokens, k] experts of all rows; empty: nobody asks
  std::vector<Part> parts;
  std::vector<size_t> drawing;  // the parts that draw, in the order of the rows
  StepShape shape;              // of its graph; none: of no rows
  bool wants_sets = false;      // some row is drawn from a set that its request wants
  std::vector<std::vector<TokenId>>
      kept;              // of each row: what it was drawn from, if it wants to know
  int64_t version = -1;  // of the weights
  StreamMark done;

  StepInFlight(const BatchRoom& room, Device device, const MirroredDraws& memory,
               const Mirror<int32_t>& choices)
      : builder(room, device), draws(memory), chosen(choices) {}

  // Waits for what still reads its arrays.
  void clear() {
    done.wait();
    builder.clear();
    parts.clear();
    drawing.clear();
    shape = {};
    wants_sets = false;
  }
  // Rows that are drawn, those of the graph included that nobody reads.
  int64_t num_rows() const { return std::max(static_cast<int64_t>(drawing.size()), shape.rows); }
  const Part& drawn_part(int64_t row) const { return parts[drawing[static_cast<size_t>(row)]]; }
  void drop(const Sequence& sequence) {
    for (Part& part : parts)
      if (part.sequence == &sequence) part.sequence = nullptr;
  }
  bool is_of_use() const {
    return std::ranges::any_of(parts, [](const Part& part) { return part.sequence != nullptr; });
  }
};

}  // namespace tailrace
