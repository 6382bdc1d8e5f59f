#include "trainer/batch.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "core/trajectory/body_limits.h"
#include "kernels/base/check.h"
#include "kernels/ops/router.h"
#include "trainer/loss/credit.h"
#include "trainer/loss/shaping.h"
#include "trainer/sample_advantages.h"

namespace tailrace {
namespace {

// Bodies come from other processes: what they hold is data and never meets TR_CHECK.
std::optional<Failure> find_failure(const Trajectory& t, const BatchOptions& options) {
  std::string where = to_string(t.lease);
  if (auto fault = find_fault(t)) return Failure{fmt::format("trajectory {}: {}", where, *fault)};
  if (t.outcome != Outcome::kFinished && t.outcome != Outcome::kTruncated) {
    return Failure{
        fmt::format("trajectory {} ended as {}; only finished and truncated ones are trained on",
                    where, name_of(t.outcome))};
  }
  if (!t.reward || !std::isfinite(*t.reward))
    return Failure{fmt::format("trajectory {} has no finite reward", where)};
  BodyLimits limits{.vocab_size = options.vocab_size,
                    .max_context_tokens = options.max_sequence_tokens,
                    .needs_sets = options.algo.sampling_mask == SamplingMask::kKeep};
  // Recorded experts matter only where they are replayed; else a body may have them or not.
  if (options.experts != ExpertShape{}) limits.experts = options.experts;
  if (options.algo.distill.has_teacher())
    for (const Segment& segment : t.segments)
      if (segment.teacher_logprobs.empty() &&
          std::ranges::count(segment.roles, TokenRole::kSampled) > 0)
        return Failure{
            fmt::format("trajectory {} was scored by no teacher (algo.distill.policy)", where)};
  if (auto unfit = find_unfit(t, limits))
    return Failure{fmt::format("trajectory {} {}", where, *unfit)};
  return std::nullopt;
}

bool is_too_old(int64_t version, const BatchOptions& options) {
  // By token and not by sample: a sample that was carried over an install has fresh tokens behind
  // old ones.
  return options.max_staleness && version < options.version - *options.max_staleness;
}

// The recorded experts of segment `index` and of all that it continues.
std::vector<int32_t> choices_of(const Trajectory& t, size_t index) {
  const Segment& segment = t.segments[index];
  const auto per_token = static_cast<size_t>(t.experts.per_token());
  std::vector<int32_t> choices;
  if (segment.parent >= 0) {
    choices = choices_of(t, static_cast<size_t>(segment.parent));
    choices.resize(static_cast<size_t>(segment.parent_tokens) * per_token);
  }
  const size_t size = choices.size() + segment.tokens.size() * per_token;
  choices.insert(choices.end(), segment.choices.begin(), segment.choices.end());
  // The last sampled token has no recorded choices (nothing was computed behind it), so the list
  // may end early; such places choose for themselves.
  choices.resize(size, kChoose);
  return choices;
}

// Whether one sampler drew all that a segment continues too, beyond its context.
bool has_one_sampler(const Trajectory& t, size_t index) {
  std::optional<std::pair<int64_t, int32_t>> first;
  for (auto at = static_cast<int32_t>(index); at >= 0;
       at = t.segments[static_cast<size_t>(at)].parent) {
    const Segment& segment = t.segments[static_cast<size_t>(at)];
    for (size_t i = 0; i < segment.tokens.size(); ++i) {
      if (segment.roles[i] != TokenRole::kSampled) continue;
      const std::pair sampler(segment.versions[i], segment.classes[i]);
      if (first.value_or(sampler) != sampler) return false;
      first = sampler;
    }
  }
  return true;
}

// Adds the recorded numbers of sampled token `i` of a segment, as the next target.
void add_recorded(const Trajectory& t, const Segment& segment, size_t i,
                  const BatchOptions& options, TrainSequence& sequence) {
  const float logprob = segment.logprobs[i];
  // The difference that linear_logprob() makes of the same two numbers, so that it has its bits.
  const float drawn = segment.log_masses.empty() ? logprob : logprob - segment.log_masses[i];
  const bool restricted = options.algo.sampling_mask == SamplingMask::kKeep;
  sequence.behaviour_logprobs.push_back(drawn);
  sequence.recorded_logprobs.push_back(restricted ? drawn : logprob);
  sequence.versions.push_back(segment.versions[i]);
  const auto numerics_class = static_cast<size_t>(segment.classes[i]);
  // Another class adds up in another order: its log-probabilities are no bits of this trainer, and
  // score_old() computes them again.
  sequence.foreign_class.push_back(t.numerics_classes[numerics_class] != options.numerics_class);
  if (options.algo.distill.has_teacher())
    sequence.teacher_logprobs.push_back(segment.teacher_logprobs[i]);
}

// The same of the teacher's likeliest tokens in the place of the sampled token of this number.
void add_support(const Segment& segment, size_t number, size_t num_sampled,
                 TrainSequence& sequence) {
  const size_t k = segment.teacher_top_ids.size() / num_sampled;
  const auto ids = std::span(segment.teacher_top_ids).subspan(number * k, k);
  const auto logprobs = std::span(segment.teacher_top_logprobs).subspan(number * k, k);
  sequence.teacher_top_ids.insert(sequence.teacher_top_ids.end(), ids.begin(), ids.end());
  sequence.teacher_top_logprobs.insert(sequence.teacher_top_logprobs.end(), logprobs.begin(),
                                       logprobs.end());
}

// The turn in its trajectory of an answer of a segment; -1: not known. A body of before has no
// numbers, and of several segments each could begin anywhere.
int32_t turn_number(const Trajectory& t, const Segment& segment, int32_t answer) {
  TR_CHECK(answer >= 0, "a sampled token that no answer holds");
  if (segment.turn_numbers.empty()) return t.segments.size() == 1 ? answer : -1;
  return segment.turn_numbers[static_cast<size_t>(answer)];
}

TrainSequence make_sequence(const Trajectory& t, size_t index, const TurnCredit& credit,
                            const BatchOptions& options) {
  const Segment& segment = t.segments[index];
  TrainSequence sequence;
  const bool has_sets =
      options.algo.sampling_mask == SamplingMask::kKeep && !segment.kept_counts.empty();
  if (has_sets) sequence.kept_offsets.push_back(0);
  auto next_set = segment.kept_ids.begin();
  sequence.lease = t.lease;
  sequence.segment = static_cast<int32_t>(index);
  sequence.tokens = context_of(t.segments, index);
  if (options.experts != ExpertShape{}) {
    sequence.choices = choices_of(t, index);
    sequence.choices_per_token = options.experts.per_token();
    sequence.mixed_choices = !has_one_sampler(t, index);
  }
  sequence.inv_temperature = inverse_temperature(t.sampling);
  sequence.positive = *t.reward > 0;
  size_t prefix = sequence.tokens.size() - segment.tokens.size();
  const std::vector<int32_t> answers = answers_of_tokens(segment.roles, segment.turn_begins);
  const auto num_sampled =
      static_cast<size_t>(std::ranges::count(segment.roles, TokenRole::kSampled));
  size_t next_sampled = 0;
  for (size_t i = 0; i < segment.tokens.size(); ++i) {
    // The segment's own tokens only: those of its parents are trained in the parents' sequences,
    // and would count once a branch here.
    bool sampled = segment.roles[i] == TokenRole::kSampled;
    const auto set = next_set;
    const size_t number = next_sampled;
    next_sampled += sampled ? 1 : 0;
    if (has_sets) next_set += segment.kept_counts[i];
    // Nothing predicts the first token of a context.
    if (sampled && prefix + i >= 1 && !is_too_old(segment.versions[i], options)) {
      sequence.targets.push_back(static_cast<int32_t>(prefix + i));
      add_recorded(t, segment, i, options, sequence);
      if (!segment.teacher_top_ids.empty()) add_support(segment, number, num_sampled, sequence);
      if (has_sets) {
        sequence.kept_ids.insert(sequence.kept_ids.end(), set, next_set);
        sequence.kept_offsets.push_back(std::ssize(sequence.kept_ids));
      }
      const int32_t number = turn_number(t, segment, answers[i]);
      sequence.advantages.push_back(static_cast<float>(credit.of(number)));
      // Without a number the place in the segment stands for it: turns within one segment stay
      // apart.
      sequence.turns.push_back(number < 0 ? answers[i] : number);
    }
  }
  return sequence;
}

MetricList batch_metrics(std::span<const Trajectory* const> sorted, std::span<const double> rewards,
                         const std::vector<bool>& zero_signal, const BatchOptions& options) {
  double sampled = 0, most = 0, truncated = 0, turns = 0, cut_mass = 0, too_old = 0;
  double environment = 0, generation = 0, carried = 0;
  for (const Trajectory* t : sorted) {
    auto n = static_cast<double>(t->num_sampled());
    sampled += n;
    most = std::max(most, n);
    truncated += t->outcome == Outcome::kTruncated;
    turns += t->turns;
    environment += t->env_seconds;
    generation += t->generate_seconds;
    const int64_t newest = t->max_version();
    for (const Segment& segment : t->segments) {
      for (float log_mass : segment.log_masses) cut_mass -= std::expm1(double{log_mass});
      for (size_t i = 0; i < segment.versions.size(); ++i) {
        if (segment.roles[i] != TokenRole::kSampled) continue;
        too_old += is_too_old(segment.versions[i], options);
        carried += segment.versions[i] < newest;
      }
    }
  }
  auto n = static_cast<double>(sorted.size());
  auto [mean, std] = mean_std(rewards);
  auto [low, high] = std::ranges::minmax(rewards);
  double zeros = static_cast<double>(std::ranges::count(zero_signal, true));
  return {{"reward/mean", mean},
          {"reward/std", std},
          {"reward/min", low},
          {"reward/max", high},
          {"rollout/groups", static_cast<double>(zero_signal.size())},
          {"rollout/zero_signal_frac", zeros / static_cast<double>(zero_signal.size())},
          {"rollout/response_tokens/mean", sampled / n},
          {"rollout/response_tokens/max", most},
          {"rollout/truncated_frac", truncated / n},
          {"rollout/cut_mass", sampled > 0 ? cut_mass / sampled : 0},
          {"rollout/turns/mean", turns / n},
          {"staleness/masked_frac", sampled > 0 ? too_old / sampled : 0},
          {"staleness/carried_frac", sampled > 0 ? carried / sampled : 0},
          {"time/env", environment / n},
          {"time/generate", generation / n}};
}

Result<SampleAdvantages> ordered_advantages(std::span<const Trajectory> trajectories,
                                            const BatchOptions& options) {
  std::vector<const Trajectory*> sorted;
  for (const Trajectory& t : trajectories) {
    if (auto failure = find_failure(t, options)) return *failure;
    sorted.push_back(&t);
  }
  std::ranges::sort(sorted, {}, [](const Trajectory* t) { return batch_order(t->lease.member); });
  std::vector<int32_t> groups;
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (i > 0 && sorted[i]->lease.member == sorted[i - 1]->lease.member) {
      return Failure{
          fmt::format("member {} is in the batch twice", to_string(sorted[i]->lease.member))};
    }
    if (i == 0 || !same_group(sorted[i]->lease.member, sorted[i - 1]->lease.member)) {
      groups.push_back(static_cast<int32_t>(i));
    }
  }
  // The end of the last group, so that group g is [groups[g], groups[g + 1]).
  groups.push_back(static_cast<int32_t>(sorted.size()));
  return sample_advantages(std::move(sorted), std::move(groups), options.algo);
}

MetricList metrics_of(const SampleAdvantages& all, const BatchOptions& options) {
  MetricList metrics = batch_metrics(all.samples, all.rewards, all.advantages.zero_signal, options);
  if (options.algo.length.penalty != LengthPenalty::kNone)
    metrics.emplace_back("reward/length_penalty", mean_std(all.penalties).mean);
  return metrics;
}

// The reward of a turn is that of its last trained token; of a turn without one, of the last before
// it. In front of the first there is none that it could be for: it was earned before.
void place_rewards(std::span<TrainSequence> sequences, std::span<const double> rewards) {
  std::vector<float*> last_of(rewards.size());
  for (TrainSequence& s : sequences) {
    for (size_t k = 0; k < s.targets.size(); ++k) {
      const auto turn = static_cast<size_t>(std::max(0, s.turns[k]));
      if (turn < last_of.size()) last_of[turn] = &s.advantages[k];
    }
  }
  float* place = nullptr;
  for (size_t turn = 0; turn < rewards.size(); ++turn) {
    if (last_of[turn] != nullptr) place = last_of[turn];
    if (place != nullptr) *place += static_cast<float>(rewards[turn]);
  }
}

}  // namespace

Result<MetricList> sample_metrics(std::span<const Trajectory> trajectories,
                                  const BatchOptions& options) {
  if (trajectories.empty()) return MetricList{};
  const auto ordered = ordered_advantages(trajectories, options);
  if (!ordered) return ordered.failure();
  return metrics_of(ordered.value(), options);
}

Result<TrainBatch> build_batch(std::span<const Trajectory> trajectories,
                               const BatchOptions& options) {
  TR_CHECK(options.max_staleness.value_or(0) >= 0, "{}", *options.max_staleness);
  const AlgoOptions& algo = options.algo;
  TrainBatch batch;
  batch.returns = algo.returns;
  batch.returns.kind = return_kind(algo.advantage, algo.credit.kind);
  if (trajectories.empty()) return batch;
  const auto ordered = ordered_advantages(trajectories, options);
  if (!ordered) return ordered.failure();
  const SampleAdvantages& all = ordered.value();

  // Metrics of all samples, before any group leaves: they say how the policy plays, not what is
  // learned from it.
  batch.metrics = metrics_of(all, options);
  for (size_t g = 0; g + 1 < all.groups.size(); ++g) {
    const auto first = static_cast<size_t>(all.groups[g]),
               last = static_cast<size_t>(all.groups[g + 1]);
    if (algo.filter_zero_signal == ZeroSignalFilter::kDrop && all.advantages.zero_signal[g]) {
      for (size_t i = first; i < last; ++i)
        batch.left_out.push_back({all.samples[i]->lease, LeftOut::kNoSignal});
      continue;
    }
    const std::vector<TurnCredit> credit = turn_credit_of(all, first, last, algo);
    for (size_t i = first; i < last; ++i) {
      const Trajectory& t = *all.samples[i];
      const bool cut = t.outcome == Outcome::kTruncated;
      const bool cut_out = cut && algo.truncated == TruncatedSamples::kMask;
      const bool masked = cut_out || is_baseline(t, algo);
      if (masked)
        batch.left_out.push_back(
            {t.lease, cut_out ? LeftOut::kTruncated : LeftOut::kGreedyBaseline});
      const size_t before = batch.sequences.size();
      int32_t trained = 0;
      // A masked sample leaves the loss and stays in the baseline of its group, which is made
      // above.
      for (size_t s = 0; s < (masked ? 0 : t.segments.size()); ++s) {
        TrainSequence sequence = make_sequence(t, s, credit[i - first], options);
        if (sequence.targets.empty()) continue;
        sequence.trajectory = static_cast<int32_t>(batch.trajectory_tokens.size());
        sequence.goes_on = cut && algo.truncated == TruncatedSamples::kBootstrap;
        trained += static_cast<int32_t>(sequence.targets.size());
        batch.sequences.push_back(std::move(sequence));
      }
      place_rewards(std::span(batch.sequences).subspan(before), credit[i - first].rewards);
      // Also 0: the index is the trajectory's id.
      batch.trajectory_tokens.push_back(trained);
      batch.credit.push_back({t.lease, all.penalties[i], credit[i - first].returns});
    }
    auto end = static_cast<int32_t>(batch.sequences.size());
    // A group without a target would be a minibatch without a loss.
    if (end > batch.group_offsets.back()) batch.group_offsets.push_back(end);
  }
  return batch;
}

void append(TrainBatch& batch, TrainBatch part) {
  const auto sequences = static_cast<int32_t>(batch.sequences.size());
  const auto trajectories = static_cast<int32_t>(batch.trajectory_tokens.size());
  for (TrainSequence& sequence : part.sequences) {
    sequence.trajectory += trajectories;
    batch.sequences.push_back(std::move(sequence));
  }
  // The first offset of a part is 0, which the batch has already as its own end.
  for (size_t g = 1; g < part.group_offsets.size(); ++g)
    batch.group_offsets.push_back(sequences + part.group_offsets[g]);
  batch.trajectory_tokens.insert(batch.trajectory_tokens.end(), part.trajectory_tokens.begin(),
                                 part.trajectory_tokens.end());
  std::ranges::move(part.credit, std::back_inserter(batch.credit));
  std::ranges::move(part.left_out, std::back_inserter(batch.left_out));
  batch.returns = part.returns;
}

std::vector<Minibatch> split_minibatches(const TrainBatch& batch, int64_t parts) {
  int64_t groups = batch.num_groups();
  std::vector<Minibatch> result;
  for (int64_t p = 0; p < parts; ++p) {
    // Whole groups, as even as integers allow: sizes differ by one at most, and a batch of fewer
    // groups than parts has fewer updates.
    auto begin = static_cast<size_t>(groups * p / parts),
         end = static_cast<size_t>(groups * (p + 1) / parts);
    if (begin == end) continue;
    result.push_back({static_cast<size_t>(batch.group_offsets[begin]),
                      static_cast<size_t>(batch.group_offsets[end])});
  }
  return result;
}

LossCounts loss_counts(const TrainBatch& batch, const Minibatch& minibatch) {
  LossCounts counts{.trajectory_tokens = batch.trajectory_tokens};
  int32_t last = -1;
  for (size_t i = minibatch.begin; i < minibatch.end; ++i) {
    const TrainSequence& sequence = batch.sequences[i];
    const int32_t trajectory = sequence.trajectory;
    counts.tokens +=
        sequence.mask.empty() ? std::ssize(sequence.targets) : std::ranges::count(sequence.mask, 1);
    // Segments of one are side by side.
    counts.trajectories +=
        trajectory != last && batch.trajectory_tokens[static_cast<size_t>(trajectory)] > 0;
    last = trajectory;
  }
  return counts;
}

}  // namespace tailrace
