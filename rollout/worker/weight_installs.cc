#include "rollout/worker/weight_installs.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/base/time.h"
#include "core/weights/frozen_base.h"

namespace tailrace {
namespace {

constexpr std::chrono::seconds kTellProgress{5};

// The weights of the trainer beside this worker; null: it packs its own.
std::shared_ptr<PackedWeights> shared_weights(const RolloutWorkerConfig& config) {
  if (config.colocation == nullptr) return nullptr;
  auto weights = config.colocation->weights();
  if (weights == nullptr) throw UserError("the trainer that has the device in turn has ended");
  return weights;
}

}  // namespace

WeightInstalls::WeightInstalls(const RolloutWorkerConfig& config, Engine& engine,
                               const Stream& stream, wire::WorkerClient& client, Log& log)
    : config_(config),
      engine_(engine),
      stream_(stream),
      client_(client),
      log_(log),
      stage_(
          config.model, config.compute.weights, stream,
          {.fetch = config.fetch_weights ? config.fetch_weights : weights_in(config.run.weights()),
           .fetch_takes_long = config.fetch_weights != nullptr,
           .shared = shared_weights(config),
           .shared_holds = [&config](const Digest& root) { return config.colocation->holds(root); },
           .base = config.model.lora ? load_frozen_base(stream, config.base_dir, config.model,
                                                        config.compute.weights)
                                     : FrozenBase{}}) {}

template <class Asked>
bool WeightInstalls::samples_policy_of(const Asked& message) {
  if (message.policy == kPolicy) return true;
  refuse({message.version, message.digest},
         fmt::format("this worker samples policy {}, not {}", kPolicy, message.policy),
         message.policy);
  return false;
}

void WeightInstalls::on(const wire::Stage& stage) {
  // Whatever is asked has an answer, also the wrong policy: the scheduler would else wait for it
  // until its deadline, and count that as a fault.
  if (samples_policy_of(stage)) stage_.ask({stage.version, stage.digest}, stage.manifest);
}

void WeightInstalls::on(const wire::Switch& change) {
  if (samples_policy_of(change)) stage_.order_switch({change.version, change.digest});
}

bool WeightInstalls::take_turn() {
  Colocation* const shared = config_.colocation;
  if (shared == nullptr) return true;
  if (has_turn_ && shared->is_wanted() && !stage_.is_staging()) {
    // The trainer writes over this memory as soon as it has the turn, so that no kernel of ours may
    // still run. A staging goes to its end first: it reads the shared weights.
    engine_.freeze();
    wait(stream_);
    shared->end_sampling();
    has_turn_ = false;
  }
  if (!has_turn_ && shared->try_sample()) {
    has_turn_ = true;
    stage_.overwritten();
  }
  return has_turn_;
}

void WeightInstalls::proceed(bool samples, bool may_switch) {
  if (const auto staged = stage_.poll(samples)) say(*staged);
  tell_progress();
  if (const auto switched = stage_.poll_switch(may_switch)) install(*switched);
}

void WeightInstalls::say(const WeightStage::Staged& staged) {
  if (staged.failure) return refuse(staged.version, staged.failure->message, kPolicy, staged.cause);
  client_.send(wire::Staged{kPolicy, staged.version.version, staged.version.root, staged.metrics});
}

void WeightInstalls::install(const WeightStage::Switched& switched) {
  const auto& [version, root] = switched.version;
  MetricList metrics;
  if (switched.failure) return refuse(switched.version, switched.failure->message);
  if (switched.weights) {
    log_stats();
    const Time start = steady_now();
    engine_.install(switched.weights, version);
    const Time end = steady_now();
    metrics = {{"pause_ms", 1e3 * seconds_of(end - start)},
               {"apply_ms", 1e3 * seconds_of(end - switched.ordered)}};
  }
  if (!std::exchange(told_weights_, true)) log_.info("weights installed version={}", version);
  client_.send(wire::Installed{kPolicy, version, root, std::move(metrics)});
}

void WeightInstalls::refuse(const WeightVersion& asked, const std::string& reason, PolicyId policy,
                            InstallCause cause) {
  log_.error("install failed version={} reason={}", asked.version, reason);
  client_.send(wire::InstallFailed{policy, asked.version, asked.root, reason, cause});
}

// While a version is on its way, so that the time that it may take is that of a link that stands
// still.
void WeightInstalls::tell_progress() {
  const auto progress = stage_.progress();
  if (!progress) return;
  if (std::exchange(told_root_, progress->version.root) != progress->version.root) told_bytes_ = 0;
  if (progress->bytes <= told_bytes_ || steady_now() - told_progress_ < kTellProgress) return;
  told_progress_ = steady_now();
  told_bytes_ = progress->bytes;
  client_.send(wire::StageProgress{kPolicy, progress->version.version, progress->version.root,
                                   progress->bytes, progress->total});
}

void WeightInstalls::log_stats() {
  EngineStats stats = engine_.stats();
  if (stats.sampled_tokens == 0) return;
  log_.info(
      "version done version={} sampled_tokens={} tokens_per_s={:.0f} prefill_tokens={} "
      "prefix_hit_frac={:.2f} preemptions={} peak_blocks={}/{}",
      engine_.version(), stats.sampled_tokens - logged_.sampled_tokens,
      static_cast<double>(stats.sampled_tokens - logged_.sampled_tokens) /
          std::max(1e-9, stats.busy_seconds - logged_.busy_seconds),
      stats.prefill_tokens - logged_.prefill_tokens, stats.prefix_hit_fraction(),
      stats.planner.preemptions, stats.planner.peak_blocks, engine_.num_blocks());
  logged_ = stats;
}

}  // namespace tailrace
