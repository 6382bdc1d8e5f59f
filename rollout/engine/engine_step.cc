// A step of the engine: its plan, its work on the stream, and what becomes of what was drawn.
#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "core/base/error.h"
#include "kernels/base/check.h"
#include "kernels/ops/linear.h"
#include "rollout/engine/engine.h"

namespace tailrace {

void Engine::plan(StepInFlight& step) {
  bool is_planned = planner_.plan(gate_.may_admit(), /*may_preempt=*/in_flight_ == nullptr);
  if (!is_planned) {
    drain();
    is_planned = planner_.plan(gate_.may_admit(), /*may_preempt=*/true);
  }
  TR_CHECK(is_planned, "a plan that may preempt");
  step.clear();
  step.version = gate_.version();
  for (Sequence* sequence : planner_.running()) {
    if (sequence->planned == 0) continue;
    const int64_t count = sequence->planned, first = sequence->next_position();
    const auto position = static_cast<int32_t>(first);
    // Only the last position says what comes next; a piece of a prompt wants no logits.
    const bool to_the_end = count == sequence->uncomputed();
    StepInFlight::Part part{.sequence = sequence, .count = count, .length = first + count};
    if (to_the_end) {
      part.row = static_cast<int32_t>(step.drawing.size());
      step.drawing.push_back(step.parts.size());
    }
    if (sequence->drawn_row >= 0) {
      TR_CHECK(count == 1 && first == sequence->length(), "{} tokens from {} on behind {}", count,
               first, sequence->length());
      step.builder.add_drawn(sequence->drawn_row, position, sequence->blocks.ids());
    } else {
      const auto last = static_cast<int32_t>(count - 1);
      step.builder.add(std::span<const TokenId>(sequence->tokens)
                           .subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
                       position, sequence->blocks.ids(),
                       {&last, to_the_end ? size_t{1} : size_t{0}});
    }
    step.parts.push_back(part);
    planner_.started(*sequence, part.row);
  }
  if (step.parts.empty()) return;
  ++stats_.steps;
  plan_draws(step);
  choose_graph(step);
}

// A step that decodes alone becomes the step of its graph.
void Engine::choose_graph(StepInFlight& step) {
  const auto decodes = [](const StepInFlight::Part& part) {
    return part.count == 1 && part.row >= 0;
  };
  if (step.wants_sets || !std::ranges::all_of(step.parts, decodes)) return;
  step.shape = graphs_.shape_of(std::ssize(step.parts), step.builder.max_context(),
                                static_cast<size_t>(&step - steps_.data()));
  if (step.shape.rows == 0) return;
  step.builder.pad(step.shape.rows, num_blocks_, static_cast<int>(step.shape.context));
  for (int64_t row = std::ssize(step.drawing); row < step.shape.rows; ++row)
    step.draws.how.host[static_cast<size_t>(row)] = {.greedy = true};
}

void Engine::enqueue(StepInFlight& step) {
  for (const auto& [from, to, tokens] : planner_.copies())
    kv_.copy_block(stream_, from, to, tokens);
  if (step.parts.empty()) return;
  if (step.shape.rows == 0 || graphs_.note_first(step.shape)) {
    compute(step);
  } else {
    StreamGraph& graph = graphs_.of(step.shape);
    if (graph.empty()) {
      graph.begin(stream_);
      compute(step);
      graph.end();
      ++stats_.captures;
    }
    graph.launch(stream_);
    ++stats_.graph_steps;
  }
  step.done.set(stream_);
}

// In a capture only `shape` may decide what is asked of the stream, never the parts.
void Engine::compute(StepInFlight& step) {
  Workspace::Scope scope(workspace_);
  const int64_t num_rows = step.num_rows();
  // Where the step in flight draws, if there is one.
  const StepInFlight& other = steps_[next_step_];
  const std::span<const int32_t> drawn = other.draws.tokens.device;
  // A graph has a block for rows that nobody reads.
  const DrawnEnds ends =
      step.shape.rows > 0 ? DrawnEnds{other.draws.stops.device, num_blocks_} : DrawnEnds{};
  const Mirror<int32_t> chosen = step.chosen.slice(
      0, kv_.keeps_choices()
             ? step.builder.num_tokens() * model_.config().expert_shape().per_token()
             : 0);
  model_.forward(stream_, workspace_, *weights_, step.builder.batch(stream_, drawn, ends), kv_,
                 arrays_.hidden.slice_rows(0, num_rows), /*sink=*/nullptr, chosen.device);
  if (kv_.keeps_choices()) chosen.fetch(stream_);
  step.kept.resize(step.drawing.size());
  for (int64_t begin = 0; begin < num_rows; begin += arrays_.logits.rows) {
    const int64_t end = std::min(begin + arrays_.logits.rows, num_rows);
    const Tensor logits = arrays_.logits.slice_rows(0, end - begin);
    // In pieces of rows: [rows, vocab] is the largest buffer of a decode step, and a row does not
    // depend on its neighbours.
    linear(stream_,
           {.x = arrays_.hidden.slice_rows(begin, end), .weight = weights_->head(), .y = logits});
    draw(step, begin, logits);
  }
}

void Engine::check_finite(const StepInFlight& step) {
  for (const StepInFlight::Part& part : step.parts) {
    if (part.sequence == nullptr || part.row < 0) continue;
    // One NaN or +infinity among the logits makes it so. A draw would mean nothing.
    if (std::isfinite(step.draws.lse.host[static_cast<size_t>(part.row)])) continue;
    // Nothing of what is in flight was collected: all of it is planned again.
    for (Sequence* sequence : planner_.running()) planner_.forget_flight(*sequence);
    in_flight_ = nullptr;
    throw UserError("the weights of version {} give logits that are not finite (at position {})",
                    step.version, part.length);
  }
}

void Engine::collect(StepInFlight& step) {
  step.done.wait();
  check_finite(step);
  if (kv_.keeps_choices()) store_choices(step);
  for (const auto& [sequence, count, length, row] : step.parts) {
    if (sequence == nullptr) continue;
    const bool decodes = count == 1 && !sequence->sampled.empty();
    (decodes ? stats_.decode_tokens : stats_.prefill_tokens) += count;
    planner_.computed(*sequence, count);
    if (kv_.keeps_choices()) record_choices(*sequence);
  }
  for (size_t row = 0; row < step.drawing.size(); ++row) {
    if (step.parts[step.drawing[row]].sequence == nullptr) continue;
    Sequence& sequence = *step.parts[step.drawing[row]].sequence;
    sequence.tokens.push_back(step.draws.tokens.host[row]);
    sequence.sampled.push_back(drawn_token(step, sequence, row));
    ++stats_.sampled_tokens;
    if (auto reason = reason_to_stop(sequence)) {
      planner_.finish(sequence);
      if (in_flight_ != nullptr) in_flight_->drop(sequence);
      ready_.push_back(
          {sequence.session, std::move(sequence.sampled), *reason, std::move(sequence.choices)});
      sequence.sampled.clear();
      sequence.choices.clear();
    }
  }
  if (in_flight_ != nullptr && !in_flight_->is_of_use()) in_flight_ = nullptr;
}

}  // namespace tailrace
