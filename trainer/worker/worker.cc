#include "trainer/worker/worker.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <variant>

#include <fmt/format.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/machine.h"
#include "core/base/time.h"
#include "core/collective/gloo.h"
#include "core/model/proved_products.h"
#include "core/model/reward_head.h"
#include "core/weights/frozen_base.h"
#include "kernels/base/backend.h"
#include "kernels/base/pulse.h"
#include "kernels/base/thread_pool.h"
#include "trainer/distillation_pass.h"
#include "trainer/policy_trainer.h"
#include "trainer/worker/batch_intake.h"
#include "trainer/worker/held_version.h"
#include "trainer/worker/publisher.h"
#include "trainer/worker/rank_meeting.h"
#include "trainer/worker/row_stages.h"
#include "trainer/worker/saved_state.h"
#include "trainer/worker/step_traces.h"
#include "trainer/worker/step_work.h"

namespace tailrace {
namespace {

constexpr std::chrono::milliseconds kPoll{100}, kMeetingPoll{5};

// Ranks share the cores of a machine.
int pool_size(const TrainOptions& train) {
  if (train.threads > 0) return static_cast<int>(train.threads);
  const int64_t cores = num_usable_cores();
  return static_cast<int>(std::max<int64_t>(1, cores / train.ranks));
}

class TrainerWorker {
 public:
  TrainerWorker(const TrainerWorkerConfig& config, Log& log, const Clock& clock)
      : config_(config),
        log_(log),
        clock_(clock),
        client_({.role = Role::kTrainer,
                 .worker = config.worker,
                 .incarnation = 0,
                 .pid = static_cast<int32_t>(::getpid()),
                 .slots = 1,
                 .numerics_class = numerics_class(config.compute, config.device),
                 .joined = false,
                 .pool = {},
                 .hardware = hardware(config.device),
                 .rank = config.rank},
                config.endpoint, config.link),
        pool_(pool_size(config.train)),
        stream_(config.device, &pool_),
        base_(config.model.lora ? load_frozen_base(stream_.get(), config.model_dir, config.model,
                                                   config.compute.weights)
                                : FrozenBase{}),
        trainer_(stream_.get(), config.model, config.train, config.max_sequence_tokens,
                 config.compute, base_.weights,
                 config.colocation ? config.colocation->turn_memory() : DeviceBytes{}),
        reference_(config_, trainer_, base_.root),
        publisher_(config_, trainer_, reference_, held_, base_.root, log),
        ranks_(config_, trainer_, reference_, held_, base_.root, log, clock),
        work_(config_, stream_.get(), trainer_, held_, log, clock),
        intake_([this](const wire::Fetch& request) { client_.send(request); }),
        traces_(config.run.traces(), config.train.trace_steps) {
    if (config.colocation) config.colocation->share(trainer_.packed());
    if (config.critic) trainer_.use_critic(*config.critic);
    // Rank 0 sees the log-probabilities of all ranks, and it alone writes them.
    if (ranks_.leads() && traces_.enabled())
      trainer_.watch_logprobs([this](const TrainSequence& sequence, std::span<const float> seen) {
        traces_.saw(sequence, seen);
      });
  }

  ExitCode run() {
    try {
      while (!ended_) {
        beat();
        if (auto message = client_.receive(ranks_.is_meeting() ? kMeetingPoll : kPoll)) {
          // All that is here before it waits for others: what it waits for may be off.
          std::visit([this](auto& m) { on(m); }, *message);
        } else if (client_.silence() > config_.patience) {
          log_.error("scheduler silent seconds={}", client_.silence().count() / 1000);
          return kExitFailed;
        } else {
          meet();
        }
      }
    } catch (const RankLost& lost) {
      log_.error("starts again: {}", lost.what());
      return kExitFailed;
    } catch (const UserError& e) {
      log_.error("stopped: {}", e.what());
      client_.send(wire::WorkerFailed{e.what()});
      return kExitUserError;
    }
    // Only the end of the run is success: who starts this worker must start it again otherwise.
    return client_.displaced() ? kExitFailed : kExitDone;
  }

 private:
  // A message that is not for a trainer changes nothing.
  template <class Other>
  void on(const Other&) {}

  // A session begins: say what we hold, and ask again. What was asked for in the last one is void.
  void on(const wire::Welcome&) {
    forget_batch();
    if (!started_) {
      started_ = true;
      trainer_.reset_optimizer(config_.optim);
      // Only in the first session: later ones find the weights in memory, newer than any checkpoint
      // perhaps.
      if (ranks_.leads()) publisher_.load();
      warm_up_memory();
      if (ranks_.leads()) announce();
      if (ranks_.leads() && held_.version < 0) begin();
      if (ended_) return;
    } else if (ranks_.leads()) {
      announce();
      if (stages_ != nullptr) stages_->say_again();
    } else {
      // The ranks meet anew. Until then rank 0, which may have the batch that is forgotten here,
      // must not wait for this one in the middle of a step.
      ranks_.leave();
    }
    if (ranks_.leads()) ask();
  }

  // The scheduler hears of a rank that goes, and says anew when all are there: what was said before
  // is void then.
  void on(const wire::FormRanks& message) {
    if (message.rank != config_.rank || message.size != config_.train.ranks) return;
    forget_batch();
    ranks_.form(message);
  }

  void on(const wire::Batch& batch) {
    // A batch for ranks that have lost one of them is dropped; it comes again.
    if (!ranks_.ready() && !ranks_.is_meeting()) return;
    // A repeated answer, or one to a question from before a rollback. Which version a rank holds,
    // it learns where it meets the others.
    if (ranks_.ready() && !is_next(batch)) return;
    if (batch.first == 0) forget_batch();
    intake_.add(batch);
    advance();
  }

  void on(const wire::Payload& payload) {
    intake_.add(payload);
    advance();
  }

  // A request for another version is void: we have gone on, or back.
  void on(const wire::Save& request) {
    if (held_.version >= 0 && request.version == held_.version) save();
  }

  void on(const wire::ReleaseWeights& message) { publisher_.release(message); }

  void on(const wire::Shutdown& message) {
    log_.info("shutdown version={} reason={}", held_.version, message.reason);
    ended_ = true;
  }

  // ---- what it says

  // With the step's metrics: after a crash of both sides nobody else has them.
  void announce() {
    if (held_.version >= 0) end_turn();
    client_.send(wire::TrainerReady{.version = held_.version,
                                    .digest = held_.digest,
                                    .manifest = held_.manifest,
                                    .master = held_.master,
                                    .metrics = held_.metrics});
  }

  void ask() {
    const bool more = config_.steps == 0 || held_.version < config_.steps;
    if (held_.version >= 0 && more) client_.send(wire::TrainerWants{.step = held_.version + 1});
  }

  void report_published() {
    end_turn();
    client_.send(wire::Published{.version = held_.version,
                                 .digest = held_.digest,
                                 .manifest = held_.manifest,
                                 .master = held_.master,
                                 .metrics = held_.metrics});
    log_.info("published version={} digest={}", held_.version, held_.digest);
  }

  void save() {
    publisher_.write_checkpoint();
    client_.send(publisher_.durable());
  }

  // ---- before the first step

  // Memory that is missing then would be missing in the middle of a step.
  void warm_up_memory() {
    const Time start = clock_.now();
    trainer_.warm_up();
    log_.info("first micro-batch done seconds={:.1f}", seconds_of(clock_.now() - start));
  }

  // The trainings on rows, if there are any, which wait for the other ranks.
  void begin() {
    if (!config_.stages.empty()) {
      stages_ = make_stages();
      if (stages_->begin() && !ranks_.ready()) return;
    }
    prepare();
  }

  std::unique_ptr<RowStages> make_stages() {
    return std::make_unique<RowStages>(
        config_, stream_.get(), trainer_, base_.root, log_,
        RowStages::Owner{.begins = [this](const wire::TrainingStage& at) { client_.send(at); },
                         .report = [this](const wire::Progress& done) { client_.send(done); },
                         .stops = [this] { return stops_stage(); }});
  }

  // The trainings that are left, and version 0.
  void prepare() {
    MetricList metrics;
    if (stages_ != nullptr) {
      metrics = stages_->run(ranks_.ranks());
      end_stages();
      if (ended_) return;
    }
    if (config_.algo.kl.needs_reference()) reference_.keep();
    publisher_.publish(publisher_.manifest_of(0), std::move(metrics));
    // Before anybody hears of version 0: there is no older checkpoint to go back to.
    publisher_.write_checkpoint();
    std::error_code ignored;
    for (const RowStage& stage : config_.stages) {
      std::filesystem::remove_all(config_.run.stage_checkpoints(stage.name), ignored);
      std::filesystem::remove(config_.run.stage_reference(stage.name), ignored);
      std::filesystem::remove(config_.run.stage_teacher(stage.name), ignored);
    }
    report_published();
    save();
  }

  // Another rank, that has met rank 0 before there is a version.
  void follow_stages() {
    stages_ = make_stages();
    stages_->follow(*ranks_.ranks());
    end_stages();
  }

  // The ranks meet anew behind them, with what belongs to version 0.
  void end_stages() {
    stages_.reset();
    ranks_.leave();
    // Each had an optimizer of its own, whose moments are about another loss.
    trainer_.reset_optimizer(config_.optim);
  }

  // Only an end or a scheduler without memory matters before there is a version: ranks that are
  // told to meet have met, and part together.
  bool stops_stage() {
    while (std::optional<wire::Message> message = client_.receive(std::chrono::milliseconds(0))) {
      if (auto* shutdown = std::get_if<wire::Shutdown>(&*message)) on(*shutdown);
      if (ranks_.leads() && std::holds_alternative<wire::Welcome>(*message)) {
        announce();
        stages_->say_again();
      }
    }
    // Rank 0, which waits for this one, will not hear of it.
    if (!ranks_.leads() && client_.displaced())
      throw RankLost(fmt::format("another worker is rank {} now", config_.rank));
    return ended_;
  }

  // ---- ranks

  void meet() {
    try {
      if (!ranks_.poll()) return;
    } catch (const RankLost& lost) {
      return lose_ranks(lost);
    }
    if (held_.version >= 0) return advance();  // its batch may have come
    if (!ranks_.leads()) return follow_stages();
    prepare();
    ask();
  }

  // A rank beside rank 0 holds nothing of its own: as another process it will be met again, also
  // where nobody is gone, and a connection was the reason.
  void lose_ranks(const RankLost& lost) {
    if (!ranks_.leads()) throw lost;
    log_.warning("waits for all ranks: {}", lost.what());
    ranks_.leave();
    forget_batch();
  }

  // ---- a step

  bool is_next(const wire::Batch& batch) const { return batch.step == held_.version + 1; }

  // Asks for more of the batch, and trains on what is there once it, or a part of it, is whole.
  void advance() {
    while (!intake_.empty()) {
      intake_.request();
      if (!intake_.front().complete() || !ranks_.ready()) return;
      if (!is_next(intake_.front().batch())) return forget_batch();
      const BatchFetch whole = intake_.take();
      const int64_t before = trainer_.tries();
      try {
        train(whole);
      } catch (const RankLost& lost) {
        // Between two updates of a step the weights are of no version.
        if (trainer_.tries() != before) throw;
        return lose_ranks(lost);
      }
      if (!whole.batch().last) continue;
      forget_batch();
      if (ranks_.leads()) ask();
    }
  }

  void forget_batch() {
    intake_.forget();
    work_.clear();
  }

  // A whole batch, or a part of it.
  void train(const BatchFetch& part) {
    begin_turn();
    work_.add(part);
    if (part.batch().last) publish_step(part.batch().step, work_.finish(part.batch()));
  }

  void publish_step(int64_t step, MetricList metrics) {
    const WeightManifest manifest = publisher_.manifest_of(step);
    // No version is published yet: a step that loses a rank until here comes again.
    ranks_.compare(manifest);
    // Also after a step without an update: every step publishes a version, and the scheduler waits
    // for it.
    if (!ranks_.leads()) {
      held_.version = step;
      return;
    }
    publisher_.publish(manifest, std::move(metrics));
    report_published();
    // Others have their weights meanwhile. A run is worth more than its traces.
    if (auto traced = traces_.write(step, work_.trajectories(), work_.batch()); !traced)
      log_.warning("step={} is not traced: {}", step, traced.failure().message);
  }

  // The turn on a shared device: from the first computation to a version that others have.
  void begin_turn() {
    if (config_.colocation == nullptr || std::exchange(has_turn_, true)) return;
    config_.colocation->begin_training();
  }
  void end_turn() {
    if (config_.colocation == nullptr || !std::exchange(has_turn_, false)) return;
    wait(stream_.get());
    config_.colocation->end_training(held_.digest);
  }

  const TrainerWorkerConfig& config_;
  Log& log_;
  const Clock& clock_;
  wire::WorkerClient client_;
  ThreadPool pool_;
  OwnedStream stream_;
  FrozenBase base_;  // of an adapter
  PolicyTrainer trainer_;
  HeldVersion held_;
  ReferenceWeights reference_;
  Publisher publisher_;
  RankMeeting ranks_;
  StepWork work_;
  BatchIntake intake_;
  StepTraces traces_;
  std::unique_ptr<RowStages> stages_;  // while they last

  bool started_ = false, ended_ = false;
  bool has_turn_ = true;  // of a shared device
};

}  // namespace

PlacedMemory trainer_memory(const TrainerWorkerConfig& config) {
  std::vector<OptimizerKind> optimizers = {config.optim.kind}, of_rewards;
  for (const RowStage& stage : config.stages)
    (stage.trains_policy() ? optimizers : of_rewards).push_back(stage.rows().optim.kind);
  PlacedMemory memory;
  const bool on_cpu = config.device.kind == DeviceKind::kCpu;
  (on_cpu ? memory.host : memory.device) = PolicyTrainer::memory(
      config.model, config.train, config.max_sequence_tokens, pool_size(config.train),
      {.keeps_reference = config.algo.kl.needs_reference() && !reference_is_base(config),
       .streams = config.streams,
       .has_critic = config.critic.has_value(),
       .compute = config.compute,
       .device = config.device,
       .optimizers = std::move(optimizers)});
  // Beside the policy while its stage lasts.
  if (!of_rewards.empty()) {
    int64_t bytes = 0;
    for (const MemoryItem& item : PolicyTrainer::memory(
             reward_model_config(config.model), config.train, config.max_sequence_tokens,
             pool_size(config.train), {.compute = config.compute, .optimizers = of_rewards}))
      bytes += item.bytes;
    memory.host.push_back({"reward model in training (all of it)", bytes});
  }
  // One after the other, each while its stage scores its rows.
  const FrozenModel* teacher = nullptr;
  int64_t teacher_bytes = 0;
  for (const FrozenModel& each : config.teachers) {
    const int64_t bytes = FrozenScorer::bytes(each, config.compute, config.device,
                                              pool_size(config.train), config.max_sequence_tokens)
                              .all();
    if (bytes > teacher_bytes) teacher = &each, teacher_bytes = bytes;
  }
  if (teacher != nullptr)
    memory.host.push_back(
        {fmt::format("policy {}, while it scores rows", teacher->name), teacher_bytes});
  if (const DistillOptions& distill = config.algo.distill;
      teacher != nullptr || (distill.has_teacher() && distill.kind != DistillLoss::kPolicyGradient))
    memory.host.push_back({"logits of a teacher's loss", DistillationPass::bytes(config.model)});
  const int64_t floats = ParameterLayout::trained(config.model).size();
  if (!on_cpu)
    memory.host.push_back(
        {"copy of the weights (fp32 master)", floats * static_cast<int64_t>(sizeof(float))});
  if (config.train.ranks > 1)
    memory.host.push_back({"what other ranks send (train.ranks)",
                           sum_bytes(static_cast<int>(config.train.ranks), floats)});
  return memory;
}

ExitCode run_trainer_worker(const TrainerWorkerConfig& config, Log& log, const Clock& clock) {
  // Before its memory is taken, and before it says its class.
  prove_products_of(config.model, config.compute.weights, config.device);
  return TrainerWorker(config, log, clock).run();
}

}  // namespace tailrace
