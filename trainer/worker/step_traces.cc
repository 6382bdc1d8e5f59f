#include "trainer/worker/step_traces.h"

#include <algorithm>
#include <string>

#include "core/base/file.h"
#include "core/trajectory/trace_rows.h"
#include "kernels/base/pulse.h"

namespace tailrace {
namespace {

using Sequences = std::map<std::pair<LeaseId, int32_t>, const TrainSequence*>;

TraceSegment trace_segment(const Segment& segment) {
  return {.parent = segment.parent,
          .parent_tokens = segment.parent_tokens,
          .tokens = segment.tokens,
          .roles = segment.roles,
          .versions = segment.versions,
          .logprobs = segment.logprobs,
          .log_masses = segment.log_masses,
          .mask = std::vector<uint8_t>(segment.tokens.size(), 0),
          .old_logprobs = {},
          .new_logprobs = {},
          .ref_logprobs = {}};
}

// A sequence begins with the context that its segment continues.
void mark_targets(const TrainSequence& sequence, TraceSegment& segment) {
  const size_t inherited = sequence.tokens.size() - segment.tokens.size();
  for (const int32_t target : sequence.targets)
    segment.mask[static_cast<size_t>(target) - inherited] = 1;
  segment.old_logprobs = sequence.old_logprobs;
  segment.ref_logprobs = sequence.ref_logprobs;
}

}  // namespace

void StepTraces::saw(const TrainSequence& sequence, std::span<const float> logprobs) {
  seen_[{sequence.lease, sequence.segment}].assign(logprobs.begin(), logprobs.end());
}

Result<void> StepTraces::write(int64_t step, std::span<const Trajectory> samples,
                               const TrainBatch& batch) {
  const auto seen = std::exchange(seen_, {});
  if (!enabled()) return {};
  Sequences sequences;
  for (const TrainSequence& sequence : batch.sequences)
    sequences[{sequence.lease, sequence.segment}] = &sequence;
  std::vector<const Trajectory*> sorted;
  for (const Trajectory& sample : samples) sorted.push_back(&sample);
  std::ranges::sort(sorted, {}, [](const Trajectory* t) { return batch_order(t->lease.member); });

  std::string text = format_trace_head(step, std::ssize(samples)) + "\n";
  for (const Trajectory* sample : sorted) {
    beat();
    TraceRow row{.lease = sample->lease,
                 .step = step,
                 .outcome = sample->outcome,
                 .reward = sample->reward.value_or(0),
                 .advantage = {},
                 .temperature = sample->sampling.temperature,
                 .segments = {}};
    for (size_t i = 0; i < sample->segments.size(); ++i) {
      TraceSegment segment = trace_segment(sample->segments[i]);
      const std::pair id(sample->lease, static_cast<int32_t>(i));
      const auto sequence = sequences.find(id);
      const auto logprobs = seen.find(id);
      // A group without a signal and what is too old never came to the loss.
      if (sequence != sequences.end() && logprobs != seen.end()) {
        mark_targets(*sequence->second, segment);
        segment.new_logprobs = logprobs->second;
        row.advantage = sequence->second->advantages.front();
      }
      row.segments.push_back(std::move(segment));
    }
    const std::string line = format_trace_row(row);
    if (std::ssize(text) + std::ssize(line) >= max_bytes_) break;
    text += line;
    text += '\n';
  }
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) return Failure{describe_errno("create", folder_, error.value())};
  if (auto written = write_file_atomic(folder_ / trace_file_name(step), text); !written)
    return written;
  prune(step);
  return {};
}

void StepTraces::prune(int64_t step) const {
  std::error_code error;
  std::vector<std::filesystem::path> old;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
    const auto of = trace_file_step(entry.path());
    if (of && (*of > step || *of <= step - steps_)) old.push_back(entry.path());
  }
  // One that cannot go does no harm.
  for (const auto& path : old) std::filesystem::remove(path, error);
}

}  // namespace tailrace
