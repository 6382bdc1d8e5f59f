// How the engine draws tokens from logits: on the device, and those rows on the host that the
// device cannot draw.
#include <algorithm>
#include <cmath>

#include "kernels/ops/log_softmax.h"
#include "kernels/ops/sample.h"
#include "rollout/engine/engine.h"
#include "rollout/engine/sampler.h"

namespace tailrace {
namespace {

// Calls f(begin, end, inv_temperature). kept_log_sum_exp() takes one temperature: rows that share
// theirs with the next ones go together.
template <class F>
void for_each_temperature(std::span<const SamplingRow> rows, const F& f) {
  for (size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
    const float inv_temperature = rows[begin].inv_temperature;
    while (end < rows.size() && rows[end].inv_temperature == inv_temperature) ++end;
    f(static_cast<int64_t>(begin), static_cast<int64_t>(end), inv_temperature);
  }
}

}  // namespace

// Draws the rows from `begin` on, whose logits these are.
void Engine::draw(StepInFlight& step, int64_t begin, const MirrorMatrix& logits) {
  const int64_t count = logits.host.rows, vocab = logits.host.cols;
  const MirroredDraws draws = step.draws.slice(begin, count);
  const Mirror<int32_t>& ids = arrays_.kept_ids;
  const auto wants_set = [&](int64_t row) {
    return step.drawn_part(begin + row).sequence->wants_kept &&
           truncates(draws.how.host[row], vocab);
  };
  bool by_host = false, wants_sets = false;
  for (int64_t row = 0; row < count; ++row) {
    const StepInFlight::Part& part = step.drawn_part(begin + row);
    // The number belongs to (key, absolute position of the new token): neither the batch nor a
    // preemption can change a draw.
    draws.how.host[row] =
        sampling_row(part.sequence->sampling, sample_uniform(part.sequence->key, part.length));
    by_host = by_host || !can_sample(stream_.device, draws.how.host[row]);
    wants_sets = wants_sets || wants_set(row);
  }
  draws.how.send(stream_);
  sample(stream_, workspace_,
         {.logits = logits.device,
          .rows = draws.how.device,
          .drawn = draws.tokens.device,
          .lse = draws.lse.device,
          .logprobs = draws.logprobs.device,
          .kept_lse = draws.kept_lse.device,
          .kept_counts = draws.kept_counts.device,
          .kept_ids = ids.device.first(count * vocab)});
  draws.fetch(stream_);
  if (wants_sets) {
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
  if (by_host) draw_on_host(step, begin, logits);
}

// Draws those rows that the device cannot draw. The others stay as the device drew them: who else
// is in a batch must not change a draw.
void Engine::draw_on_host(StepInFlight& step, int64_t begin, const MirrorMatrix& logits) {
  const int64_t count = logits.host.rows, vocab = logits.host.cols;
  const MirroredDraws draws = step.draws.slice(begin, count);
  logits.fetch(stream_);
  wait(stream_);
  Workspace::Scope scope(host_workspace_);
  const DrawnRows own(host_workspace_, count);
  const std::span<int32_t> ids = arrays_.kept_ids.host;
  sample({.device = {}, .pool = stream_.pool}, host_workspace_,
         {.logits = logits.host,
          .rows = draws.how.host,
          .drawn = own.tokens,
          .lse = own.lse,
          .logprobs = own.logprobs,
          .kept_lse = own.kept_lse,
          .kept_counts = own.kept_counts,
          .kept_ids = ids.first(count * vocab)});
  // A set lies where its row's part of the ids begins, and goes to where the one before it ends,
  // which is never behind that.
  const Mirror<int64_t> offsets = arrays_.kept_offsets.slice(0, count + 1);
  offsets.host[0] = 0;
  for (int64_t row = 0; row < count; ++row) {
    offsets.host[row + 1] = offsets.host[row];
    const SamplingRow& how = draws.how.host[row];
    // collect() refuses a row whose lse is not finite.
    if (can_sample(stream_.device, how) || !std::isfinite(draws.lse.host[row])) continue;
    draws.tokens.host[row] = own.tokens[row];
    draws.kept_counts.host[row] = own.kept_counts[row];
    // The device's numbers, not the host's: those that linear_logprob() gives.
    draws.logprobs.host[row] =
        logits.host.row(row)[own.tokens[row]] * how.inv_temperature - draws.lse.host[row];
    const auto set = ids.subspan(row * vocab, own.kept_counts[row]);
    if (step.drawn_part(begin + row).sequence->wants_kept)
      step.kept[begin + row].assign(set.begin(), set.end());
    std::ranges::copy(set, ids.begin() + offsets.host[row]);
    offsets.host[row + 1] += std::ssize(set);
  }
  // The next step takes them from there.
  draws.tokens.send(stream_);
  const int64_t num_kept = offsets.host[count];
  if (num_kept == 0) return;
  offsets.send(stream_);
  arrays_.kept_ids.slice(0, num_kept).send(stream_);
  const KeptSets kept{offsets.device, arrays_.kept_ids.device};
  for_each_temperature(draws.how.host, [&](int64_t from, int64_t to, float inv_temperature) {
    kept_log_sum_exp(stream_, {.logits = logits.device.slice_rows(from, to),
                               .kept = kept.slice(from, to),
                               .inv_temperature = inv_temperature,
                               .kept_lse = draws.kept_lse.device.subspan(from, to - from)});
  });
  draws.kept_lse.fetch(stream_);
  // The ids are written again by the next chunk.
  wait(stream_);
}

}  // namespace tailrace
