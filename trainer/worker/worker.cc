#include "trainer/worker/worker.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <variant>

#include <unistd.h>

#include "core/base/error.h"
#include "core/base/machine.h"
#include "core/base/metrics.h"
#include "core/base/random.h"
#include "core/base/time.h"
#include "core/base/unique_number.h"
#include "core/collective/gloo.h"
#include "core/model/adapter_files.h"
#include "core/model/model_form.h"
#include "core/model/parameter_files.h"
#include "core/model/proved_products.h"
#include "core/weights/frozen_base.h"
#include "core/weights/manifest.h"
#include "core/weights/version_folder.h"
#include "core/weights/version_keeper.h"
#include "kernels/base/backend.h"
#include "kernels/base/pulse.h"
#include "kernels/base/thread_pool.h"
#include "trainer/checkpoint.h"
#include "trainer/policy_trainer.h"
#include "trainer/sft.h"
#include "trainer/worker/batch_fetch.h"
#include "trainer/worker/step_traces.h"

namespace tailrace {
namespace {

constexpr std::chrono::milliseconds kPoll{100}, kMeetingPoll{5};
constexpr int64_t kProgressReports = 50;  // of a whole warm-up

// Streams of random numbers of one run seed.
enum : uint64_t { kInitStream = 1, kSftStream = 2 };

// Ranks share the cores of a machine.
int pool_size(const TrainOptions& train) {
  if (train.threads > 0) return static_cast<int>(train.threads);
  const int64_t cores = num_usable_cores();
  return static_cast<int>(std::max<int64_t>(1, cores / train.ranks));
}

bool without_signal(const MetricList& metrics) {
  return std::ranges::any_of(metrics, [](const auto& metric) {
    return metric.first == "rollout/zero_signal_frac" && metric.second == 1;
  });
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
        base_(config.model.lora
                  ? load_frozen_base(stream_.get(), config.model_dir, config.model, config.compute)
                  : FrozenBase{}),
        trainer_(stream_.get(), config.model, config.train, config.max_sequence_tokens,
                 config.compute, base_.weights,
                 config.colocation ? config.colocation->turn_memory() : DeviceBytes{}),
        step_(trainer_.begin_step(config.streams)),
        loss_(policy_loss_config(config.algo)),
        versions_(config.run.weights(), 0,
                  {.anchor_interval = config.anchor_interval,
                   .on_failure =
                       [this](const std::string& why) {
                         log_.warning("old versions of the weights stay: {}", why);
                       }}),
        checkpoints_(config.run.checkpoints(), config.tokenizer_dir, config.checkpoint.keep_last),
        traces_(config.run.traces(), config.train.trace_steps) {
    if (config.colocation) config.colocation->share(trainer_.packed());
    if (config.critic) trainer_.use_critic(*config.critic);
    // What all ranks saw; it is rank 0 that writes.
    if (leads() && traces_.enabled())
      trainer_.watch_logprobs([this](const TrainSequence& sequence, std::span<const float> seen) {
        traces_.saw(sequence, seen);
      });
  }

  ExitCode run() {
    try {
      while (!ended_) {
        beat();
        if (auto message = client_.receive(meeting_ ? kMeetingPoll : kPoll)) {
          // All that is here before it waits for others: what it waits for may be off.
          std::visit([this](auto& m) { on(m); }, *message);
        } else if (client_.silence() > config_.patience) {
          log_.error("scheduler silent seconds={}", client_.silence().count() / 1000);
          return kExitFailed;
        } else if (meeting_) {
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
      // Only in the first session: later ones find the weights in memory, newer than any checkpoint
      // perhaps.
      if (leads()) {
        load();
      } else {
        reset_rl_optimizer();
      }
      warm_up_memory();
      if (leads()) announce();
      if (leads() && version_ < 0) prepare();
      if (ended_) return;
    } else if (leads()) {
      announce();
    } else {
      // The ranks meet anew. Until then rank 0, which may have the batch that is forgotten here,
      // must not wait for this one in the middle of a step.
      leave_ranks();
    }
    if (leads()) ask();
  }

  // The scheduler hears of a rank that goes, and says anew when all are there: what was said before
  // is void then.
  void on(const wire::FormRanks& message) {
    if (message.rank != config_.rank || message.size != config_.train.ranks) return;
    forget_batch();
    leave_ranks();
    meeting_ =
        Meeting{.place = {.folder = config_.run.ranks() / fmt::format("{:016x}", message.formation),
                          .rank = message.rank,
                          .size = message.size,
                          .timeout = std::chrono::seconds(config_.train.rank_seconds)},
                .warned = clock_.now()};
    // Rank 0 comes last: a checkpoint may keep it.
    if (!leads()) arrive(meeting_->place);
  }

  void on(const wire::Batch& batch) {
    // Of ranks that have lost one of them; it comes again.
    if (!has_ranks() && !meeting_) return;
    // A repeated answer, or one to a question from before a rollback. Which version a rank holds,
    // it learns where it meets the others.
    if (has_ranks() && !is_next(batch)) return;
    if (batch.first == 0) forget_batch();
    // A part that is repeated. None can be missing: a session keeps the order.
    if (batch.first < num_items_) return;
    if (batch.first > num_items_) fail(batch.step, "a part of it is missing");
    num_items_ += std::ssize(batch.items);
    fetches_.emplace_back(batch, next_request_);
    next_request_ = fetches_.back().end_request();
    advance();
  }

  bool is_next(const wire::Batch& batch) const { return batch.step == version_ + 1; }

  void on(const wire::Payload& payload) {
    if (fetches_.empty()) return;
    if (auto taken = fetches_.front().take(payload); !taken)
      fail(fetches_.front().batch().step, taken.failure().message);
    advance();
  }

  // Asks for more of the batch, and trains on what is there once it, or a part of it, is whole.
  void advance() {
    while (!fetches_.empty()) {
      request();
      if (!fetches_.front().complete() || !has_ranks()) return;
      if (!is_next(fetches_.front().batch())) return forget_batch();
      const BatchFetch whole = std::move(fetches_.front());
      fetches_.pop_front();
      request();  // of the next part, so that it comes meanwhile
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
      if (leads()) ask();
    }
  }

  void request() {
    if (fetches_.empty()) return;
    for (const wire::Fetch& request : fetches_.front().next()) client_.send(request);
  }

  void forget_batch() {
    fetches_.clear();
    num_items_ = 0;
    if (!trajectories_.empty()) clear_step();
  }

  // ---- ranks

  bool leads() const { return config_.rank == 0; }

  // It can train: alone, or all ranks have met.
  bool has_ranks() const { return config_.train.ranks == 1 || ranks_ != nullptr; }

  void leave_ranks() {
    trainer_.join(nullptr);
    ranks_.reset();
    meeting_.reset();
  }

  // Waits for nobody, so that it hears when the meeting is off: of one that is gone the scheduler
  // knows, and one that still begins may take its time.
  void meet() {
    if (const std::optional<int> missing = missing_rank(meeting_->place)) {
      if (clock_.now() - meeting_->warned < meeting_->place.timeout) return;
      meeting_->warned = clock_.now();
      log_.warning("rank {} of {} has not come to {} yet", *missing, config_.train.ranks,
                   meeting_->place.folder.string());
      return;
    }
    const GlooOptions place = std::exchange(meeting_, std::nullopt)->place;
    if (leads()) arrive(place);
    try {
      ranks_ = join_ranks(place);
      agree_with_rank_0();
      trainer_.join(ranks_.get());
    } catch (const RankLost& lost) {
      return lose_ranks(lost);
    }
    // All have read it: they have spoken with each other.
    std::error_code ignored;
    if (leads()) std::filesystem::remove_all(place.folder, ignored);
    log_.info("rank {} of {} is ready version={}", place.rank, place.size, version_);
    advance();  // its batch may have come
  }

  // A rank beside rank 0 holds nothing of its own: as another process it will be met again, also
  // where nobody is gone, and a connection was the reason.
  void lose_ranks(const RankLost& lost) {
    if (!leads()) throw lost;
    log_.warning("waits for all ranks: {}", lost.what());
    leave_ranks();
    forget_batch();
  }

  std::vector<std::string> gather_text(const std::string& own) {
    std::vector<std::string> all;
    for (const std::vector<std::byte>& bytes : ranks_->gather(std::as_bytes(std::span(own))))
      all.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return all;
  }

  // Which version it holds, and what the policy is held to; the weights follow.
  void agree_with_rank_0() {
    std::string own = numerics_class(config_.compute, config_.device);
    if (!base_.root.empty()) own += fmt::format(" beside the base {}", base_.root);
    const std::vector<std::string> classes = gather_text(own);
    for (size_t rank = 0; rank < classes.size(); ++rank) {
      if (classes[rank] != classes.front())
        throw UserError(
            "train.ranks: rank {} computes as {} and rank 0 as {}; their sums would differ. Take "
            "machines of one kind, or TAILRACE_ISA.",
            rank, classes[rank], classes.front());
    }
    ranks_->broadcast(std::as_writable_bytes(std::span(&version_, 1)));
    const Digest reference = gather_text(reference_).front();
    if (!leads() && reference != reference_) load_reference(reference);
  }

  // Equal weights are no promise but a proof.
  void compare_weights(const WeightManifest& own) {
    const std::string critic =
        trainer_.critic() ? " and the critic " + trainer_.critic()->digest() : "";
    const std::vector<std::string> digests = gather_text(own.master + critic);
    for (size_t rank = 0; rank < digests.size(); ++rank) {
      if (digests[rank] != digests.front())
        throw UserError(
            "train.ranks: after step {} rank {} has the weights {}, and rank 0 {}. A machine "
            "computes wrongly, or another program runs there.",
            own.version, rank, digests[rank], digests.front());
    }
  }

  // Of another version it is void: we have gone on, or back.
  void on(const wire::Save& request) {
    if (version_ >= 0 && request.version == version_) save();
  }

  void on(const wire::Shutdown& message) {
    log_.info("shutdown version={} reason={}", version_, message.reason);
    ended_ = true;
  }

  // With the step's metrics: after a crash of both sides nobody else has them.
  void announce() {
    if (version_ >= 0) end_turn();
    client_.send(wire::TrainerReady{.version = version_,
                                    .digest = digest_,
                                    .manifest = manifest_,
                                    .metrics = metrics_,
                                    .master = master_});
  }

  void ask() {
    bool more = config_.steps == 0 || version_ < config_.steps;
    if (version_ >= 0 && more) client_.send(wire::TrainerWants{.step = version_ + 1});
  }

  void on(const wire::ReleaseWeights& message) {
    versions_.release(message.below, message.fetched_from, message.evaluated);
  }

  // ---- weights

  // The steps of the run that move the policy; a checkpoint says of how many updates they are.
  int64_t schedule_steps() const {
    const int64_t steps = config_.schedule_steps > 0 ? config_.schedule_steps : config_.steps;
    return std::max<int64_t>(0, steps - critic_steps());
  }
  int64_t critic_steps() const { return config_.critic ? config_.critic->warmup_steps : 0; }
  int64_t horizon() const {
    return schedule_steps() * config_.train.ppo_epochs * config_.train.minibatches_per_step;
  }
  static RunShare share_of(const wire::Batch& batch) {
    return {batch.share_begin, batch.share_end};
  }
  void reset_rl_optimizer() { trainer_.reset_optimizer(config_.optim); }

  // Before anybody waits for a step: what is missing then would be missing in the middle of one.
  void warm_up_memory() {
    const Time start = clock_.now();
    trainer_.warm_up();
    log_.info("first micro-batch done seconds={:.1f}", seconds_of(clock_.now() - start));
  }

  // The newest checkpoint, or the weights that the run begins with.
  void load() {
    reset_rl_optimizer();
    auto loaded = checkpoints_.load_latest(config_.model, trainer_.parameters(),
                                           trainer_.optimizer(), trainer_.critic());
    if (!loaded) {
      if (config_.model.lora && !config_.adapter_dir.empty()) {
        require_base(config_.adapter_dir, config_.model_dir, base_.root);
        load_parameters(config_.adapter_dir, config_.model, trainer_.parameters(), kAdapterFile);
      } else if (config_.model.lora || config_.model_dir.empty()) {
        init_parameters(config_.model, mix({config_.seed, kInitStream}), trainer_.parameters());
      } else {
        load_parameters(config_.model_dir, config_.model, trainer_.parameters());
        checkpoints_.use_form(read_model_form(config_.model_dir));
      }
      trainer_.weights_changed();
      return;
    }
    tell_passed_over(*loaded, "step");
    // A step that is trained again keeps its part of the run.
    if (loaded->state.horizon != horizon() && config_.optim.schedule != LrSchedule::kConstant)
      log_.warning(
          "the run has another length than before, {} updates at most, now {}: from version {} on "
          "rates go by the new one",
          loaded->state.horizon, horizon(), loaded->state.version);
    refuse_another_base(loaded->state);
    trainer_.weights_changed();
    version_ = saved_version_ = loaded->state.version;
    if (auto row = parse_metrics_row(loaded->state.extra)) metrics_ = std::move(row).value().values;
    saved_path_ = loaded->path;
    // Again below RUN/weights: those of this version may have been let go since.
    publish_files(manifest_of(version_));
    // Its files are proved: another digest would be of a build that reads them in another way.
    if (master_ != loaded->state.digest)
      throw UserError("{}: the weights have digest {}, but were saved with {}",
                      loaded->path.string(), master_, loaded->state.digest);
    if (loss_.kl.needs_reference()) load_reference(loaded->state.reference);
    log_.info("resumed version={} checkpoint={}", version_, loaded->path.string());
  }

  // The launch shows these lines to a person (kPassedOver). `unit`: of the checkpoints' numbers.
  void tell_passed_over(const ProvedCheckpoint& loaded, std::string_view unit) {
    for (const std::string& reason : loaded.passed_over)
      log_.warning("checkpoint{}{}; it goes on from {} {} ({})", kPassedOver, reason, unit,
                   loaded.state.step, loaded.path.string());
  }

  void refuse_another_base(const CheckpointState& saved) const {
    if (saved.base == base_.root) return;
    throw UserError(
        "{}: the weights of the base are not those that this run's adapter was trained beside. "
        "Put them back, or start a new run directory.",
        config_.model_dir.string());
  }

  // It lies beside the checkpoints, and each of them says which one it was trained against.
  void load_reference(const Digest& expected) {
    if (config_.model.lora && expected == base_.root) {
      reference_ = base_.root;
      return trainer_.set_reference_to_base();
    }
    Parameters& reference = trainer_.scratch();
    load_parameters(config_.run.reference(), config_.model, reference,
                    config_.model.lora ? kAdapterFile : "");
    reference_ = root_of(reference);
    if (reference_ != expected)
      throw UserError(
          "{}: the weights that algo.kl holds the policy to were changed or damaged since the run "
          "began. Put them back, or start a new run directory.",
          config_.run.reference().string());
    trainer_.set_reference(reference);
  }

  ModelConfig written_as(Dtype dtype) const {
    ModelConfig config = config_.model;
    config.dtype = dtype;
    return config;
  }

  static Digest root_of(const Parameters& parameters) {
    return make_manifest(parameters, 0, 0, numerics_class()).master;
  }

  // The policy as it is now, in a form in which nothing of it is rounded: its digest is proved when
  // the run goes on.
  void keep_reference() {
    if (reference_is_base(config_)) return load_reference(base_.root);
    trainer_.set_reference(trainer_.parameters());
    reference_ = root_of(trainer_.parameters());
    if (config_.model.lora) {
      std::filesystem::create_directories(config_.run.reference());
      save_adapter(config_.run.reference(), config_.model.lora, trainer_.parameters(), base_.root);
    } else {
      save_model(config_.run.reference(), written_as(Dtype::kF32), trainer_.parameters());
    }
  }

  // The supervised warm-up, if there is one, and version 0.
  void prepare() {
    MetricList metrics = warm_up();
    if (ended_) return;
    // The warm-up had an optimizer of its own, and its moments are about another loss.
    if (!config_.sft.data.empty()) reset_rl_optimizer();
    if (loss_.kl.needs_reference()) keep_reference();
    version_ = 0;
    metrics_ = std::move(metrics);
    publish_files(manifest_of(version_));
    // Before anybody hears of version 0: there is no older checkpoint to go back to.
    write_checkpoint();
    std::error_code ignored;
    std::filesystem::remove_all(config_.run.warm_up(), ignored);
    report_published();
    save();
  }

  // Goes on from a checkpoint of its own where it was killed. Its updates are counted by the task.
  MetricList warm_up() {
    MetricList last;
    const SftOptions& sft = config_.sft;
    if (sft.data.empty()) return last;
    const auto rows = [&](const std::string& file) {
      return file.empty()
                 ? std::vector<SftRow>()
                 : read_sft_rows(file, config_.model.num_ids(), config_.max_sequence_tokens);
    };
    SftTask task(trainer_, sft, rows(sft.data), rows(sft.eval_data),
                 mix({config_.seed, kSftStream}));
    CheckpointFolder saved(config_.run.warm_up(), config_.tokenizer_dir, /*keep_last=*/1);
    if (auto loaded =
            saved.load_latest(config_.model, trainer_.parameters(), trainer_.optimizer())) {
      tell_passed_over(*loaded, "update");
      refuse_another_base(loaded->state);
      trainer_.weights_changed();
      task.skip(loaded->state.step);
      log_.info("resumed update={} checkpoint={}", task.updates_done(), loaded->path.string());
    }
    const int64_t interval = std::max<int64_t>(1, task.total_updates() / kProgressReports);
    MetricList measured;
    const auto report = [&](const MetricList& metrics) {
      client_.send(wire::Progress{"sft", task.updates_done(), task.total_updates(), metrics});
    };
    const auto evaluate = [&] {
      measured = task.evaluate();
      log_.info("update={} of {} eval_loss={:.4f} token_accuracy={:.4f}", task.updates_done(),
                task.total_updates(), measured[0].second, measured[1].second);
    };
    if (task.updates_done() == 0 && task.evaluation_is_due()) {
      evaluate();
      report(measured);
    }
    while (std::optional<MetricList> metrics = task.update()) {
      last = std::move(*metrics);
      const int64_t done = task.updates_done();
      const bool due = done % interval == 0 || done == task.total_updates();
      MetricList row = due ? last : MetricList();
      if (task.evaluation_is_due()) {
        evaluate();
        row.insert(row.end(), measured.begin(), measured.end());
      }
      if (!row.empty()) report(row);
      if (sft.checkpoint_updates > 0 && done % sft.checkpoint_updates == 0 &&
          done < task.total_updates())
        save_warm_up(saved, task);
      // Only an end or a scheduler without memory matters before there is a version.
      while (std::optional<wire::Message> message = client_.receive(std::chrono::milliseconds(0))) {
        if (auto* shutdown = std::get_if<wire::Shutdown>(&*message)) on(*shutdown);
        if (std::holds_alternative<wire::Welcome>(*message)) announce();
      }
      if (ended_) {
        // A person has stopped it, and may go on.
        if (done < task.total_updates()) save_warm_up(saved, task);
        break;
      }
    }
    last.insert(last.end(), measured.begin(), measured.end());
    return last;
  }

  void save_warm_up(CheckpointFolder& folder, const SftTask& task) {
    const auto saved =
        folder.save({.step = task.updates_done(),
                     .version = 0,
                     .updates = task.updates_done(),
                     .horizon = task.total_updates(),
                     .digest = root_of(trainer_.parameters()),
                     .base = base_.root},
                    written_as(config_.compute), trainer_.parameters(), trainer_.optimizer());
    // It would cost what a kill costs without it.
    if (!saved)
      log_.warning("update={} is not saved: {}", task.updates_done(), saved.failure().message);
  }

  // A whole batch, or a part of it.
  void train(const BatchFetch& fetched) {
    const Time start = clock_.now();
    const wire::Batch& of = fetched.batch();
    auto part = fetched.trajectories();
    if (!part) fail(of.step, part.failure().message);
    begin_turn();
    if (config_.streams) {
      add_groups(of.step, part.value());
    } else {
      if (!of.last) fail(of.step, "it comes in parts");
      step_.add(build(of.step, part.value()), version_, loss_);
    }
    std::ranges::move(part.value(), std::back_inserter(trajectories_));
    if (of.last) {
      require_judged(of.step, trajectories_);
      Result<MetricList> samples = sample_metrics(trajectories_, batch_options());
      if (!samples) fail(of.step, samples.failure().message);
      step_.batch().metrics = std::move(samples).value();
      MetricList metrics = step_.finish(version_, loss_, share_of(of));
      seconds_ += seconds_of(clock_.now() - start);
      publish_step(of.step, std::move(metrics));
      clear_step();
    } else {
      seconds_ += seconds_of(clock_.now() - start);
    }
  }

  // One after the other, so that it does not matter which of them came together.
  void add_groups(int64_t step, std::span<const Trajectory> part) {
    for (auto begin = part.begin(); begin != part.end();) {
      beat();
      const auto end = std::find_if_not(begin, part.end(), [&](const Trajectory& t) {
        return same_group(begin->lease.member, t.lease.member);
      });
      step_.add(build(step, {begin, end}), version_, loss_);
      begin = end;
    }
  }

  void clear_step() {
    trajectories_.clear();
    step_.clear();
    seconds_ = 0;
  }

  BatchOptions batch_options() const {
    const bool replays = config_.algo.router_replay == RouterReplay::kReplay;
    return {.algo = config_.algo,
            .experts = replays ? config_.model.expert_shape() : ExpertShape{},
            .numerics_class = numerics_class(config_.compute, config_.device),
            .vocab_size = config_.model.num_ids(),
            .max_sequence_tokens = config_.max_sequence_tokens,
            .version = version_,
            .max_staleness = config_.max_staleness};
  }

  TrainBatch build(int64_t step, std::span<const Trajectory> trajectories) const {
    Result<TrainBatch> batch = build_batch(trajectories, batch_options());
    if (!batch) fail(step, batch.failure().message);
    return std::move(batch).value();
  }

  void publish_step(int64_t step, MetricList metrics) {
    const TrainBatch& batch = step_.batch();
    if (without_signal(metrics))
      log_.warning("step={} without signal: in each group all values of {} are equal", step,
                   config_.algo.filter_metric);
    else if (config_.max_staleness && batch.num_groups() == 0)
      log_.warning("step={} without an update: all that has a signal is older than version {}",
                   step, version_ - *config_.max_staleness);
    else if (loss_counts(batch, {0, batch.sequences.size()}).tokens == 0)
      log_.warning("step={} without an update: algo.correction rejected all tokens", step);
    int64_t tokens = 0;
    for (const TrainSequence& s : batch.sequences) tokens += std::ssize(s.tokens);
    metrics.emplace_back("time/train", seconds_);
    metrics.emplace_back("perf/train_tokens",
                         static_cast<double>(tokens * config_.train.ppo_epochs));
    const WeightManifest manifest = manifest_of(step);
    // Of no version yet: a step that loses a rank until here comes again.
    if (ranks_) compare_weights(manifest);
    // Also after a step without an update: every step publishes a version, and the scheduler waits
    // for it.
    version_ = step;
    metrics_ = std::move(metrics);
    if (!leads()) return;
    publish_files(manifest);
    report_published();
    // Others have their weights meanwhile. A run is worth more than its traces.
    if (auto traced = traces_.write(step, trajectories_, batch); !traced)
      log_.warning("step={} is not traced: {}", step, traced.failure().message);
  }

  // A name that no sample knows would turn a filter off without a word. Asked of all samples of the
  // first step; later ones may lack it by chance.
  void require_judged(int64_t step, std::span<const Trajectory> trajectories) const {
    const std::string& metric = config_.algo.filter_metric;
    if (metric == AlgoOptions{}.filter_metric || step != 1 || trajectories.empty()) return;
    if (std::ranges::any_of(trajectories, [](const auto& t) { return t.judged.has_value(); }))
      return;
    std::set<std::string> known;
    for (const Trajectory& trajectory : trajectories)
      for (const auto& [name, value] : trajectory.metrics) known.insert(name);
    throw UserError::at(
        "algo.filter_metric",
        "is {}, and none of the {} samples of step 1 has such a metric, so no group can be judged "
        "by it. They have: {}. Start a new run directory with one of these, with a part of "
        "reward.parts, or without the key.",
        metric, trajectories.size(),
        known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", ")));
  }

  [[noreturn]] static void fail(int64_t step, const std::string& reason) {
    throw UserError("the batch of step {} cannot be trained on: {}", step, reason);
  }

  WeightManifest manifest_of(int64_t version) const {
    WeightManifest manifest =
        make_manifest(trainer_.parameters(), 0, version,
                      numerics_class(config_.compute, config_.device), base_.root, config_.compute);
    manifest.attempt = attempt_;
    // What came before a version that lies there already is not in its checkpoint.
    const auto before = read_manifest(config_.run.weights() / manifest_name(0, version));
    manifest.parent =
        before && before.value().master == manifest.master ? before.value().parent : digest_;
    return manifest;
  }

  void publish_files(const WeightManifest& manifest) {
    Result<std::string> file =
        publish_weights(config_.run.weights(), manifest, trainer_.parameters());
    if (!file)
      throw UserError("weights of version {} were not published: {}", manifest.version,
                      file.failure().message);
    digest_ = manifest.root;
    master_ = manifest.master;
    manifest_ = file.value();
    versions_.published(manifest.version);
  }

  // Of a shared device: from the first thing that it computes to a version that others have.
  void begin_turn() {
    if (config_.colocation == nullptr || std::exchange(has_turn_, true)) return;
    config_.colocation->begin_training();
  }
  void end_turn() {
    if (config_.colocation == nullptr || !std::exchange(has_turn_, false)) return;
    wait(stream_.get());
    config_.colocation->end_training(digest_);
  }

  void report_published() {
    end_turn();
    client_.send(wire::Published{.version = version_,
                                 .digest = digest_,
                                 .manifest = manifest_,
                                 .metrics = metrics_,
                                 .master = master_});
    log_.info("published version={} digest={}", version_, digest_);
  }

  // A checkpoint of the present version, unless there is one.
  void write_checkpoint() {
    if (saved_version_ == version_) return;
    Result<std::filesystem::path> saved =
        checkpoints_.save({.step = version_,
                           .version = version_,
                           .updates = trainer_.optimizer().updates(),
                           .horizon = horizon(),
                           .digest = master_,
                           .reference = reference_,
                           .base = base_.root,
                           .extra = format_metrics_row({.step = version_, .values = metrics_})},
                          written_as(config_.compute), trainer_.parameters(), trainer_.optimizer(),
                          trainer_.critic());
    if (!saved) throw UserError("{}", saved.failure().message);
    saved_version_ = version_;
    saved_path_ = saved.value();
    log_.info("checkpoint version={} path={}", version_, saved_path_.string());
  }

  void save() {
    write_checkpoint();
    client_.send(wire::Durable{.version = version_,
                               .path = saved_path_.string(),
                               .oldest = checkpoints_.oldest().value_or(version_)});
  }

  const TrainerWorkerConfig& config_;
  Log& log_;
  const Clock& clock_;
  wire::WorkerClient client_;
  ThreadPool pool_;
  OwnedStream stream_;
  FrozenBase base_;  // of an adapter
  PolicyTrainer trainer_;
  TrainStep step_;
  PolicyLossConfig loss_;
  VersionKeeper versions_;
  CheckpointFolder checkpoints_;
  StepTraces traces_;

  bool started_ = false, ended_ = false;
  bool has_turn_ = true;        // of a shared device
  int64_t version_ = -1;        // of the weights in hand
  int64_t saved_version_ = -1;  // of the newest checkpoint
  std::filesystem::path saved_path_;
  // Of the next step: parts of its batch whose bodies come, and what of it is computed already.
  std::deque<BatchFetch> fetches_;
  int64_t num_items_ = 0;  // of all parts that came
  int64_t next_request_ = 0;
  std::vector<Trajectory> trajectories_;  // that were added to step_
  double seconds_ = 0;                    // of work on it
  // Where it waits for the other ranks, and when it last said so.
  struct Meeting {
    GlooOptions place;
    Time warned{};
  };
  std::optional<Meeting> meeting_;
  std::unique_ptr<Collective> ranks_;  // null: alone, or they have not met
  // To publish: of this process.
  const std::string attempt_ = fmt::format("{:016x}", unique_number());
  Digest digest_, master_;  // of the weights of version_: as published, as trained
  Digest reference_;        // of the weights of algo.kl; empty: none
  std::string manifest_;
  // Of the step that made version_; kept in the checkpoint, as Published may be lost.
  MetricList metrics_;
};

}  // namespace

bool reference_is_base(const TrainerWorkerConfig& config) {
  if (!config.model.lora) return false;
  const bool is_fresh =
      config.adapter_dir.empty() && config.sft.data.empty() && config.sft.demonstrations == 0;
  return is_fresh || config.algo.kl.reference == KlReference::kBase;
}

PlacedMemory trainer_memory(const TrainerWorkerConfig& config) {
  std::vector<OptimizerKind> optimizers = {config.optim.kind};
  if (!config.sft.data.empty() || config.sft.demonstrations > 0)
    optimizers.push_back(config.sft.optim.kind);
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
  prove_products_of(config.model, config.compute, config.device);
  return TrainerWorker(config, log, clock).run();
}

}  // namespace tailrace
