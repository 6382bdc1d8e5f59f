#include "trainer/worker/step_traces.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "core/base/file.h"
#include "core/trajectory/trace_rows.h"
#include "kernels/base/pulse.h"

namespace tailrace {
namespace {

using Sequences = std::map<std::pair<LeaseId, int32_t>, const TrainSequence*>;

// The turn of each answer of a segment. Credit counts within the segment where nothing else is
// known (build_batch()).
std::vector<int32_t> answer_numbers(const Segment& segment) {
  if (!segment.turn_numbers.empty()) return segment.turn_numbers;
  std::vector<int32_t> numbers(segment.turn_begins.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

TraceSegment trace_segment(const Segment& segment) {
  return {.parent = segment.parent,
          .parent_tokens = segment.parent_tokens,
          .tokens = segment.tokens,
          .roles = segment.roles,
          .versions = segment.versions,
          .logprobs = segment.logprobs,
          .log_masses = segment.log_masses,
          .mask = std::vector<uint8_t>(segment.tokens.size(), 0),
          .turn_begins = segment.turn_begins,
          .turn_numbers = answer_numbers(segment),
          .old_logprobs = {},
          .new_logprobs = {},
          .ref_logprobs = {}};
}

// A sequence begins with the context that its segment continues.
size_t inherited_tokens(const TrainSequence& sequence, const TraceSegment& segment) {
  return sequence.tokens.size() - segment.tokens.size();
}

void mark_targets(const TrainSequence& sequence, std::span<const float> seen,
                  TraceSegment& segment) {
  const size_t inherited = inherited_tokens(sequence, segment);
  for (size_t k = 0; k < sequence.targets.size(); ++k) {
    if (!sequence.is_trained(k)) continue;
    segment.mask[static_cast<size_t>(sequence.targets[k]) - inherited] = 1;
    segment.old_logprobs.push_back(sequence.old_logprobs[k]);
    segment.new_logprobs.push_back(seen[k]);
    segment.advantages.push_back(sequence.advantages[k]);
    if (!sequence.ref_logprobs.empty()) segment.ref_logprobs.push_back(sequence.ref_logprobs[k]);
  }
}

// Gives each sampled token that is not in the loss its reason. `whole`: of the sample. `sequence`:
// nothing where no token of the segment was a target.
void tell_left_out(std::optional<LeftOut> whole, const TrainSequence* sequence,
                   TraceSegment& segment) {
  std::map<size_t, LeftOut> of_targets;
  if (sequence != nullptr) {
    const size_t inherited = inherited_tokens(*sequence, segment);
    for (size_t k = 0; k < sequence->targets.size(); ++k)
      // A step whose loss never saw what it could have: it trained no policy.
      of_targets.emplace(static_cast<size_t>(sequence->targets[k]) - inherited,
                         sequence->is_trained(k) ? LeftOut::kCriticWarmUp : LeftOut::kRejected);
  }
  for (size_t i = 0; i < segment.tokens.size(); ++i) {
    if (segment.roles[i] != TokenRole::kSampled || segment.mask[i] != 0) continue;
    const auto target = of_targets.find(i);
    // build_batch() leaves no other token out.
    const bool is_first = i == 0 && segment.parent_tokens == 0;
    const LeftOut why = whole                        ? *whole
                        : target != of_targets.end() ? target->second
                        : is_first                   ? LeftOut::kFirstToken
                                                     : LeftOut::kTooOld;
    segment.left_out[why].push_back(static_cast<int32_t>(i));
  }
}

// Sums are of double: the mean of equal advantages has their bits.
struct Mean {
  double sum = 0;
  int64_t count = 0;

  void add(float value) { sum += value, ++count; }
  std::optional<float> value() const {
    if (count == 0) return std::nullopt;
    return static_cast<float>(sum / static_cast<double>(count));
  }
};

// The turns of one sample, by number.
class Turns {
 public:
  // `credit`: nothing where its group was not trained on.
  Turns(const Trajectory& sample, const SampleCredit* credit) : credit_(credit) {
    for (size_t i = 0; i < sample.turn_rewards.size(); ++i)
      at(i).turn.reward = sample.turn_rewards[i];
    for (size_t i = 0; i < sample.turn_anchors.size(); ++i)
      at(i).turn.anchor = sample.turn_anchors[i];
  }

  // `sequence`: nothing where no token of the segment came to the loss.
  void add(const TraceSegment& segment, const TrainSequence* sequence) {
    const std::vector<int32_t> answers = answers_of_tokens(segment.roles, segment.turn_begins);
    const auto turn_of = [&](int32_t answer) -> TraceTurn& {
      return at(static_cast<size_t>(segment.turn_numbers[static_cast<size_t>(answer)])).turn;
    };
    for (const int32_t answer : answers)
      if (answer >= 0) ++turn_of(answer).tokens;
    for (const auto& [why, places] : segment.left_out)
      for (const int32_t place : places)
        if (const int32_t answer = answers[static_cast<size_t>(place)]; answer >= 0)
          ++turn_of(answer).left_out[why];
    for (size_t k = 0; sequence != nullptr && k < sequence->targets.size(); ++k)
      if (sequence->is_trained(k)) add_trained(*sequence, k);
  }

  std::optional<float> mean_advantage() const { return all_.value(); }
  std::vector<TraceTurn> take() {
    std::vector<TraceTurn> turns;
    for (auto& [number, known] : known_) {
      TraceTurn& turn = turns.emplace_back(known.turn);
      turn.number = number;
      turn.advantage = known.advantages.value();
      if (credit_ != nullptr && std::cmp_less(number, credit_->returns.size()))
        turn.turn_return = credit_->returns[static_cast<size_t>(number)];
    }
    return turns;
  }

 private:
  struct Known {
    TraceTurn turn;
    Mean advantages;
  };

  Known& at(size_t number) { return known_[static_cast<int32_t>(number)]; }
  void add_trained(const TrainSequence& sequence, size_t k) {
    auto& [turn, advantages] = at(static_cast<size_t>(std::max(0, sequence.turns[k])));
    if (turn.trained++ == 0) {
      turn.first = sequence.advantages[k];
      if (!sequence.returns.empty()) {
        turn.value = sequence.old_values[k];
        turn.turn_return = sequence.returns[k];
      }
    }
    turn.last = sequence.advantages[k];
    advantages.add(sequence.advantages[k]);
    all_.add(sequence.advantages[k]);
  }

  const SampleCredit* credit_;
  std::map<int32_t, Known> known_;
  Mean all_;
};

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
  std::map<LeaseId, const SampleCredit*> credit;
  for (const SampleCredit& sample : batch.credit) credit[sample.lease] = &sample;
  std::map<LeaseId, LeftOut> left_out;
  for (const SampleLeftOut& sample : batch.left_out) left_out[sample.lease] = sample.why;
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
    const auto its = credit.find(sample->lease);
    const SampleCredit* its_credit = its == credit.end() ? nullptr : its->second;
    if (its_credit != nullptr && its_credit->penalty != 0)
      row.shaped_reward = row.reward + its_credit->penalty;
    const auto out = left_out.find(sample->lease);
    const auto whole = out == left_out.end() ? std::nullopt : std::optional(out->second);
    Turns turns(*sample, its_credit);
    for (size_t i = 0; i < sample->segments.size(); ++i) {
      TraceSegment segment = trace_segment(sample->segments[i]);
      const std::pair id(sample->lease, static_cast<int32_t>(i));
      const auto sequence = sequences.find(id);
      const auto logprobs = seen.find(id);
      const TrainSequence* its_targets = sequence == sequences.end() ? nullptr : sequence->second;
      const bool trained = its_targets != nullptr && logprobs != seen.end();
      if (trained) mark_targets(*its_targets, logprobs->second, segment);
      tell_left_out(whole, its_targets, segment);
      turns.add(segment, trained ? sequence->second : nullptr);
      row.segments.push_back(std::move(segment));
    }
    row.advantage = turns.mean_advantage();
    row.turns = turns.take();
    const std::string line = format_trace_row(row);
    // The head says how many samples there were, so a reader knows that some are missing.
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
    // Files of later steps are of a run that went on from an earlier checkpoint.
    if (of && (*of > step || *of <= step - steps_)) old.push_back(entry.path());
  }
  // One that cannot go does no harm.
  for (const auto& path : old) std::filesystem::remove(path, error);
}

}  // namespace tailrace
