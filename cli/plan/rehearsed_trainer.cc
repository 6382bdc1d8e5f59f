#include "cli/plan/rehearsed_trainer.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "cli/plan/quiet_clock.h"
#include "core/base/error.h"
#include "core/base/random.h"
#include "core/model/adapter_files.h"
#include "core/model/parameter_files.h"
#include "core/weights/version_folder.h"
#include "trainer/batch.h"
#include "trainer/loss/options.h"

namespace tailrace {
namespace {

// A step that takes longer is not measured whole.
constexpr double kLongestStep = 12;

// Kept sets and expert choices do not come with made-up tokens.
TrainerWorkerConfig without_records(TrainerWorkerConfig config) {
  config.algo.sampling_mask = SamplingMask::kNone;
  config.algo.router_replay = RouterReplay::kOff;
  return config;
}

}  // namespace

RehearsedTrainer::RehearsedTrainer(const TrainerWorkerConfig& config, std::string sampled_as)
    : config_(without_records(config)),
      sampled_as_(std::move(sampled_as)),
      pool_(static_cast<int>(config.train.threads)),
      stream_(config.device, &pool_),
      base_(config.model.lora ? load_frozen_base(stream_.get(), config.model_dir, config.model,
                                                 config.compute.weights)
                              : FrozenBase{}),
      trainer_(stream_.get(), config_.model, config_.train, config_.max_sequence_tokens,
               config_.compute, base_.weights),
      loss_(policy_loss_config(config_.algo)) {
  if (config_.model.lora && !config_.adapter_dir.empty())
    load_parameters(config_.adapter_dir, config_.model, trainer_.parameters(), kAdapterFile);
  else if (config_.model.lora || config_.model_dir.empty())
    init_parameters(config_.model, config_.seed, trainer_.parameters());
  else
    load_parameters(config_.model_dir, config_.model, trainer_.parameters());
  trainer_.weights_changed();
  OptimOptions optim = config_.optim;
  optim.schedule = LrSchedule::kConstant;
  trainer_.reset_optimizer(optim);
  if (config_.critic) trainer_.use_critic(*config_.critic);
  if (loss_.kl.needs_reference()) {
    if (reference_is_base(config_))
      trainer_.set_reference_to_base();
    else
      trainer_.set_reference(trainer_.parameters());
  }
}

void RehearsedTrainer::change_weights() {
  float& weight = trainer_.parameters().flat().front();
  weight = std::max(std::abs(weight), 1e-3f) * 1.1f;  // seen in any dtype
  trainer_.weights_changed();
}

RehearsedTrainer::Published RehearsedTrainer::publish(const std::filesystem::path& folder,
                                                      int64_t version) {
  const QuietClock watch;
  Published published{.manifest = make_manifest(trainer_.parameters(), 0, version,
                                                numerics_class(config_.compute, config_.device),
                                                base_.root, config_.compute.weights),
                      .file = {}};
  auto file = publish_weights(folder, published.manifest, trainer_.parameters());
  if (!file) throw UserError("{}", file.failure().message);
  published.file = std::move(file).value();
  published.seconds = watch.seconds();
  published.payload_bytes =
      static_cast<double>(std::filesystem::file_size(folder / published.manifest.payload));
  return published;
}

std::vector<Trajectory> RehearsedTrainer::trajectories_of(
    std::span<const PlannedEpisode> episodes) const {
  Rng rng(config_.seed);
  const int64_t ids = config_.model.num_ids();
  std::vector<Trajectory> trajectories;
  for (const PlannedEpisode& planned : episodes) {
    Trajectory& trajectory = trajectories.emplace_back();
    trajectory.lease.member = planned.member;
    trajectory.numerics_classes = {sampled_as_};
    // Each group has both, so that all of it is trained on.
    trajectory.reward = planned.member.member % 2;
    Segment& segment = trajectory.segments.emplace_back();
    const auto append = [&](int64_t tokens, TokenRole role, Rng& from) {
      const bool sampled = role == TokenRole::kSampled;
      if (sampled) segment.turn_begins.push_back(static_cast<int32_t>(segment.tokens.size()));
      for (int64_t i = 0; i < tokens; ++i) {
        if (std::ssize(segment.tokens) >= config_.max_sequence_tokens) return;
        segment.tokens.push_back(static_cast<TokenId>(from.below(ids)));
        segment.roles.push_back(role);
        // As a uniform policy samples: any number does, since the time of a step does not depend on
        // it.
        segment.logprobs.push_back(sampled ? -std::log(static_cast<float>(ids)) : 0);
        segment.versions.push_back(sampled ? 0 : -1);
        segment.classes.push_back(sampled ? 0 : -1);
      }
    };
    // A group has one prompt, which the trainer computes once.
    const MemberId& member = planned.member;
    Rng of_prompt(
        mix({config_.seed, static_cast<uint64_t>(member.epoch),
             static_cast<uint64_t>(member.prompt), static_cast<uint64_t>(member.dataset)}));
    append(planned.episode.prompt_tokens, TokenRole::kPrompt, of_prompt);
    for (const simulator::Turn& turn : planned.episode.turns) {
      append(turn.tokens, TokenRole::kSampled, rng);
      append(turn.env_tokens, TokenRole::kObservation, rng);
      ++trajectory.turns;
    }
  }
  return trajectories;
}

RehearsedTrainer::Trained RehearsedTrainer::train(std::span<const PlannedEpisode> episodes) {
  const std::vector<Trajectory> trajectories = trajectories_of(episodes);
  const QuietClock watch(pool_.num_threads());
  auto batch =
      build_batch(trajectories, {.algo = config_.algo,
                                 .numerics_class = numerics_class(config_.compute, config_.device),
                                 .vocab_size = config_.model.num_ids(),
                                 .max_sequence_tokens = config_.max_sequence_tokens});
  if (!batch) throw UserError("{}", batch.failure().message);
  Trained trained{.samples = std::ssize(episodes)};
  for (const TrainSequence& sequence : batch.value().sequences)
    trained.tokens += static_cast<double>(sequence.tokens.size());
  trainer_.policy_step(batch.value(), /*version=*/0, loss_);
  trained.seconds = watch.seconds();
  return trained;
}

simulator::TrainModel RehearsedTrainer::measure(std::span<const PlannedEpisode> episodes) {
  // Whole groups: a step that is cut inside one has other minibatches.
  std::vector<size_t> ends;
  for (size_t i = 1; i <= episodes.size(); ++i)
    if (i == episodes.size() || task_of(episodes[i].member) != task_of(episodes[i - 1].member))
      ends.push_back(i);
  const int64_t groups = std::ssize(ends);
  const auto first_groups = [&](int64_t n) {
    return episodes.first(ends[static_cast<size_t>(n - 1)]);
  };
  // A minibatch needs a group.
  const int64_t few = std::min<int64_t>(groups, config_.train.minibatches_per_step);
  Trained small = train(first_groups(few));
  if (small.seconds < 1) small = train(first_groups(few));  // the first one touches memory
  const double a_group = small.seconds / static_cast<double>(few);
  const int64_t many =
      std::clamp<int64_t>(static_cast<int64_t>(kLongestStep / a_group), few, groups);
  simulator::TrainModel model;
  if (many == few || small.tokens == 0) {
    // Nothing to compare with: it is all the tokens'.
    model.token = small.tokens > 0 ? small.seconds / small.tokens : 0;
    model.update = small.tokens > 0 ? 0 : small.seconds;
    return model;
  }
  std::vector<double> seconds;
  Trained large;
  const int runs = a_group * static_cast<double>(many) < 1 ? 3 : 1;
  for (int run = 0; run < runs; ++run) {
    large = train(first_groups(many));
    seconds.push_back(large.seconds);
    if (runs > 1) small.seconds = std::min(small.seconds, train(first_groups(few)).seconds);
  }
  std::ranges::sort(seconds);
  large.seconds = seconds[seconds.size() / 2];
  // A line through two sizes of a step: its slope is the time of a token, and what is left at none
  // is that of the update.
  model.token = std::max(0.0, (large.seconds - small.seconds) / (large.tokens - small.tokens));
  model.update = std::max(0.0, large.seconds - model.token * large.tokens);
  return model;
}

}  // namespace tailrace
