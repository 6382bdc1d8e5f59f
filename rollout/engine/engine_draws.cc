// How the engine draws tokens from logits.
#include "kernels/ops/sample.h"
#include "rollout/engine/engine.h"
#include "rollout/engine/sampler.h"

namespace tailrace {

void Engine::plan_draws(StepInFlight& step) {
  const std::span<SamplingRow> how = step.draws.how.host;
  for (size_t row = 0; row < step.drawing.size(); ++row) {
    const StepInFlight::Part& part = step.parts[step.drawing[row]];
    // The number belongs to (key, absolute position of the new token): neither the batch nor a
    // preemption can change a draw.
    how[row] =
        sampling_row(part.sequence->sampling, sample_uniform(part.sequence->key, part.length));
    if (const std::span<int32_t> all = step.draws.stops.host; !all.empty()) {
      const std::vector<TokenId>& ends = part.sequence->sampling.stop_tokens;
      const auto stops = all.subspan(row * kDrawnStops, kDrawnStops);
      for (size_t i = 0; i < stops.size(); ++i) stops[i] = i < ends.size() ? ends[i] : -1;
    }
    step.wants_sets =
        step.wants_sets || (part.sequence->wants_kept && truncates(how[row], arrays_.logits.cols));
  }
}

// Draws the rows from `begin` on, whose logits these are.
void Engine::draw(StepInFlight& step, int64_t begin, const Tensor& logits) {
  const int64_t count = logits.rows, vocab = logits.cols;
  const MirroredDraws draws = step.draws.slice(begin, count);
  const Mirror<int32_t>& ids = arrays_.kept_ids;
  const auto wants_set = [&](int64_t row) {
    return step.drawn_part(begin + row).sequence->wants_kept &&
           truncates(draws.how.host[row], vocab);
  };
  draws.how.send(stream_);
  draws.stops.send(stream_);
  sample(stream_, workspace_,
         {.logits = logits,
          .rows = draws.how.device,
          .drawn = draws.tokens.device,
          .lse = draws.lse.device,
          .logprobs = draws.logprobs.device,
          .kept_lse = draws.kept_lse.device,
          .kept_counts = draws.kept_counts.device,
          .kept_ids = ids.device.first(count * vocab)});
  draws.fetch(stream_);
  if (step.wants_sets) {
    // How many ids there are decides what is copied.
    wait(stream_);
    const auto set_of = [&](int64_t row) {
      return ids.slice(row * vocab, draws.kept_counts.host[row]);
    };
    for (int64_t row = 0; row < count; ++row)
      if (wants_set(row) && draws.kept_counts.host[row] > 0) set_of(row).fetch(stream_);
    wait(stream_);
    for (int64_t row = 0; row < count; ++row) {
      const auto set = set_of(row).host;
      if (wants_set(row)) step.kept[begin + row].assign(set.begin(), set.end());
    }
  }
}

}  // namespace tailrace
