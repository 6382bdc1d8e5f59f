#include "trainer/worker/publisher.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/base/unique_number.h"
#include "core/model/adapter_files.h"
#include "core/model/model_form.h"
#include "core/model/parameter_files.h"
#include "core/run/metrics.h"
#include "core/weights/frozen_base.h"
#include "core/weights/version_folder.h"
#include "kernels/base/backend.h"

namespace tailrace {

Publisher::Publisher(const TrainerWorkerConfig& config, PolicyTrainer& trainer,
                     ReferenceWeights& reference, HeldVersion& held, const Digest& base, Log& log)
    : config_(config),
      trainer_(trainer),
      reference_(reference),
      held_(held),
      base_(base),
      log_(log),
      versions_(config.run.weights(), 0,
                {.anchor_interval = config.anchor_interval,
                 .on_failure =
                     [this](const std::string& why) {
                       log_.warning("old versions of the weights stay: {}", why);
                     }}),
      checkpoints_(config.run.checkpoints(), config.tokenizer_dir, config.checkpoint.keep_last),
      attempt_(fmt::format("{:016x}", unique_number())) {}

// Updates of the steps that move the policy; a checkpoint says of how many updates they are.
int64_t Publisher::horizon() const {
  const int64_t steps = config_.schedule_steps > 0 ? config_.schedule_steps : config_.steps;
  const int64_t of_critic = config_.critic ? config_.critic->warmup_steps : 0;
  return std::max<int64_t>(0, steps - of_critic) * config_.train.ppo_epochs *
         config_.train.minibatches_per_step;
}

void Publisher::load() {
  const auto loaded = checkpoints_.load_latest(config_.model, trainer_.parameters(),
                                               trainer_.optimizer(), trainer_.critic());
  if (loaded) {
    resume(*loaded);
  } else {
    begin();
  }
}

void Publisher::begin() {
  if (config_.model.lora && !config_.adapter_dir.empty()) {
    require_base(config_.adapter_dir, config_.model_dir, base_);
    load_parameters(config_.adapter_dir, config_.model, trainer_.parameters(), kAdapterFile);
  } else if (config_.model.lora || config_.model_dir.empty()) {
    init_parameters(config_.model, mix({config_.seed, kInitStream}), trainer_.parameters());
  } else {
    load_parameters(config_.model_dir, config_.model, trainer_.parameters());
    checkpoints_.use_form(read_model_form(config_.model_dir));
  }
  trainer_.weights_changed();
}

void Publisher::resume(const ProvedCheckpoint& loaded) {
  tell_passed_over(log_, loaded, "step");
  // A step that is trained again keeps its part of the run.
  if (loaded.state.horizon != horizon() && config_.optim.schedule != LrSchedule::kConstant)
    log_.warning(
        "the run has another length than before, {} updates at most, now {}: from version {} on "
        "rates go by the new one",
        loaded.state.horizon, horizon(), loaded.state.version);
  require_saved_base(loaded.state, base_, config_.model_dir);
  trainer_.weights_changed();
  MetricList metrics;
  if (auto row = parse_metrics_row(loaded.state.extra)) metrics = std::move(row).value().values;
  saved_version_ = loaded.state.version;
  saved_path_ = loaded.path;
  // Again below RUN/weights: those of this version may have been let go since.
  const WeightManifest manifest = manifest_of(loaded.state.version);
  warn_of_another_class(manifest);
  publish(manifest, std::move(metrics));
  // Its files are proved: another digest would be of a build that reads them in another way.
  if (held_.master != loaded.state.digest)
    throw UserError("{}: the weights have digest {}, but were saved with {}", loaded.path.string(),
                    held_.master, loaded.state.digest);
  if (config_.algo.kl.needs_reference()) reference_.load(loaded.state.reference);
  log_.info("resumed version={} checkpoint={}", held_.version, loaded.path.string());
}

void Publisher::warn_of_another_class(const WeightManifest& now) const {
  const auto before = read_manifest(config_.run.weights() / manifest_name(0, now.version));
  if (before && before.value().numerics_class != now.numerics_class)
    log_.warning(
        "the run goes on as {}; version {} was made as {}: the weights from here on have other "
        "bits "
        "than they would have had there",
        now.numerics_class, now.version, before.value().numerics_class);
}

WeightManifest Publisher::manifest_of(int64_t version) const {
  WeightManifest manifest = make_manifest(trainer_.parameters(), 0, version,
                                          numerics_class(config_.compute, config_.device), base_,
                                          config_.compute.weights);
  // Two processes may publish one version (after a crash and a resume); the attempt tells their
  // manifests apart.
  manifest.attempt = attempt_;
  // The parent of a version that lies there already is not in its checkpoint.
  const auto before = read_manifest(config_.run.weights() / manifest_name(0, version));
  manifest.parent =
      before && before.value().master == manifest.master ? before.value().parent : held_.digest;
  return manifest;
}

void Publisher::publish(const WeightManifest& manifest, MetricList metrics) {
  Result<std::string> file =
      publish_weights(config_.run.weights(), manifest, trainer_.parameters());
  if (!file)
    throw UserError("weights of version {} were not published: {}", manifest.version,
                    file.failure().message);
  held_ = {.version = manifest.version,
           .digest = manifest.root,
           .master = manifest.master,
           .manifest = std::move(file).value(),
           .metrics = std::move(metrics)};
  versions_.published(manifest.version);
}

void Publisher::release(const wire::ReleaseWeights& message) {
  versions_.release(message.below, message.fetched_from, message.evaluated);
}

void Publisher::write_checkpoint() {
  // A request to save may come twice, and a checkpoint of this version lies there.
  if (saved_version_ == held_.version) return;
  Result<std::filesystem::path> saved = checkpoints_.save(
      {.step = held_.version,
       .version = held_.version,
       .updates = trainer_.optimizer().updates(),
       .horizon = horizon(),
       .digest = held_.master,
       .reference = reference_.digest(),
       .base = base_,
       .extra = format_metrics_row({.step = held_.version, .values = held_.metrics})},
      written_as(config_.model, config_.compute.weights), trainer_.parameters(),
      trainer_.optimizer(), trainer_.critic());
  if (!saved) throw UserError("{}", saved.failure().message);
  saved_version_ = held_.version;
  saved_path_ = saved.value();
  log_.info("checkpoint version={} path={}", held_.version, saved_path_.string());
}

wire::Durable Publisher::durable() const {
  return {.version = saved_version_,
          .oldest = checkpoints_.oldest().value_or(saved_version_),
          .path = saved_path_.string()};
}

}  // namespace tailrace
