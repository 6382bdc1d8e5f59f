// A training batch: trajectories in their fixed order, cut into one sequence a segment, with
// advantages.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/expert_shape.h"
#include "core/base/metric_list.h"
#include "core/base/result.h"
#include "core/trajectory/trace_rows.h"
#include "core/trajectory/trajectory.h"
#include "trainer/loss/aggregation.h"
#include "trainer/loss/options.h"
#include "trainer/loss/returns.h"
#include "trainer/options.h"
#include "trainer/packed_forward.h"

namespace tailrace {

// One segment with its whole context (the tokens it continues from its parents come first) and what
// the loss needs of each trained token. Trained are the segment's own sampled tokens.
struct TrainSequence {
  std::vector<TokenId> tokens;
  std::vector<int32_t> targets;  // ascending positions of the trained tokens
  // [targets]
  // Of what sampled: of the whole distribution, or of the part that truncation kept.
  std::vector<float> behaviour_logprobs;
  // Recorded too, but of the distribution that the trainer computes: where version and class are
  // its own, its pass gives the same bits. Equal to the former unless truncation is a mismatch.
  std::vector<float> recorded_logprobs;
  // With algo.distill: by the teacher, of the same distribution as recorded_logprobs.
  std::vector<float> teacher_logprobs;
  // And its likeliest tokens there, where the loss has a support: [targets, k].
  std::vector<TokenId> teacher_top_ids = {};
  std::vector<float> teacher_top_logprobs = {};
  std::vector<int64_t> versions;       // weights that sampled them
  std::vector<uint8_t> foreign_class;  // 1: sampled in another numerics class than the trainer's
  // Where returns are of tokens (ReturnKind) their rewards, until settle_advantages().
  std::vector<float> advantages;
  // The turn's number in its trajectory; where that is not known, counted in the sequence.
  std::vector<int32_t> turns;
  // Set by the trainer; ref only with a reference policy.
  std::vector<float> old_logprobs, ref_logprobs;
  // With a critic: what it said of each target when the step began, set by the trainer, and what it
  // is to say.
  std::vector<float> old_values, returns;
  // 0: the token is in neither the loss nor its counts (mask_rejected()). Empty: all are.
  std::vector<uint8_t> mask;
  // With SamplingMask::kKeep, of truncated sampling: the set of each target, as KeptSets has it.
  std::vector<int64_t> kept_offsets;
  std::vector<TokenId> kept_ids;
  // With RouterReplay::kReplay: the experts of each token, or kChoose where nothing was drawn from
  // it; [tokens, experts.per_token()], as ForwardBatch has it.
  std::vector<int32_t> choices;
  int64_t choices_per_token = 0;
  // Several versions or classes sampled its context. What the last of them computed anew of the
  // tokens in front was not with the recorded experts, so that no log-probability is known.
  bool mixed_choices = false;
  LeaseId lease = {};  // whose, and which of its segments
  int32_t segment = 0;
  int32_t trajectory = 0;  // index in TrainBatch::trajectory_tokens
  float inv_temperature = 1;
  bool positive = false;  // the trajectory's reward is above 0
  bool goes_on = false;   // the trajectory was cut, and counts as if it went on (kBootstrap)

  PackedSequence packed() const {
    return {tokens,
            targets,
            inv_temperature,
            {kept_offsets, kept_ids},
            {choices.data(), choices.empty() ? 0 : std::ssize(tokens), choices_per_token}};
  }
  // Weights of `version` sampled target k as the trainer would: its log-probability is known.
  bool is_fresh(size_t k, int64_t version) const {
    return versions[k] == version && foreign_class[k] == 0 && !mixed_choices;
  }
  bool is_trained(size_t k) const { return mask.empty() || mask[k] != 0; }
};

// The parts of a sample's advantages, for those who show it.
struct SampleCredit {
  LeaseId lease = {};
  double penalty = 0;                // of its length, added to its reward
  std::vector<double> returns = {};  // by turn; empty unless credit goes by them
};

// A sample that no token of came to the loss.
struct SampleLeftOut {
  LeaseId lease = {};
  LeftOut why = {};
};

struct TrainBatch {
  // By (epoch, prompt, dataset, launch, member, segment); of parts, as they were appended.
  std::vector<TrainSequence> sequences;
  std::vector<int32_t> group_offsets{0};   // [groups + 1] first sequence of each group
  std::vector<int32_t> trajectory_tokens;  // [trajectories] trained tokens of each
  std::vector<SampleCredit> credit;        // [trajectories]
  std::vector<SampleLeftOut> left_out;     // whole samples; tokens are by their versions
  ReturnOptions returns = {};              // what settle_advantages() makes of its advantages
  MetricList metrics;  // reward/..., rollout/..., staleness/masked_frac, of all samples

  int64_t num_groups() const { return static_cast<int64_t>(group_offsets.size()) - 1; }
};

struct BatchOptions {
  // Read of it: the axes that sample_advantages.h has, filter_zero_signal, truncated,
  // sampling_mask.
  AlgoOptions algo = {};
  ExpertShape experts = {};    // whose recorded choices are replayed; all 0: none are
  std::string numerics_class;  // the trainer's
  // Limits of the model. Trajectories come from outside: one that does not fit is a Failure.
  int64_t vocab_size = 0, max_sequence_tokens = 0;
  // The version of the weights that the step starts from. Tokens that weights more than
  // `max_staleness` versions older sampled are no targets; nullopt: all sampled tokens are.
  int64_t version = 0;
  std::optional<int64_t> max_staleness = {};
};

// The order of `trajectories` does not matter. All must be finished or truncated, have a reward,
// and be distinct members; anything else is a Failure that names the trajectory.
// A token that is too old is in neither the loss nor its counts, but its sample is in the
// advantages and metrics of its group; so are a sample that was cut with TruncatedSamples::kMask,
// and a greedy member (temperature 0) of AdvantageKind::kGreedy. A trajectory, a group and a whole
// batch may be left without a target.
// Where returns are of tokens (return_kind()) the advantages are the rewards of tokens: those of a
// turn at its last trained token.
Result<TrainBatch> build_batch(std::span<const Trajectory> trajectories,
                               const BatchOptions& options);

// The metrics of such a batch alone.
Result<MetricList> sample_metrics(std::span<const Trajectory> trajectories,
                                  const BatchOptions& options);

// Puts the sequences of `part`, which was made with the same options, behind those of `batch`;
// metrics are not joined.
void append(TrainBatch& batch, TrainBatch part);

// [begin, end) of sequences.
struct Minibatch {
  size_t begin = 0, end = 0;
};

// Whole groups in order, in `parts` of nearly equal numbers of groups. Parts without groups are
// left out, so that there may be none.
std::vector<Minibatch> split_minibatches(const TrainBatch& batch, int64_t parts);

// Counts over one minibatch: the denominators of its loss.
LossCounts loss_counts(const TrainBatch& batch, const Minibatch& minibatch);

}  // namespace tailrace
