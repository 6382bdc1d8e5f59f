#include "rollout/worker/worker.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include <unistd.h>

#include "core/base/error.h"
#include "core/base/expert_shape.h"
#include "core/model/model.h"
#include "core/model/placement.h"
#include "core/model/proved_products.h"
#include "core/text/dataset.h"
#include "core/text/tokenizer.h"
#include "core/weights/frozen_base.h"
#include "core/weights/manifest.h"
#include "core/wire/trajectory_codec.h"
#include "kernels/base/backend.h"
#include "kernels/base/pulse.h"
#include "kernels/base/thread_pool.h"
#include "rollout/engine/engine.h"
#include "rollout/episode/prefix.h"
#include "rollout/episode/task_source.h"
#include "rollout/player/player.h"
#include "rollout/worker/progress_meter.h"
#include "rollout/worker/weight_stage.h"
#include "sandbox/registry.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;

constexpr PolicyId kPolicy = 0;                  // the only one so far
constexpr std::chrono::milliseconds kPoll{100};  // without work
constexpr std::chrono::milliseconds kShortPoll{2};
constexpr std::chrono::seconds kTellProgress{5};
// Then a person who looks at the log is told; heartbeats come far more often.
constexpr std::chrono::seconds kWorthAWord{5};
constexpr std::chrono::microseconds kEnvironment{1000};  // while all episodes wait for theirs

std::unique_ptr<text::Tokenizer> tokenizer_for(const RolloutWorkerConfig& config) {
  auto tokenizer = text::load_tokenizer(config.tokenizer_dir);
  text::check_vocabulary(*tokenizer, config.model.vocab_size, config.tokenizer_dir.string());
  return tokenizer;
}

// 0: whoever made the config leaves it open.
int engine_threads(const RolloutOptions& rollout) {
  return std::max(1, static_cast<int>(rollout.threads));
}

// Those of the trainer beside this worker; null: it packs its own.
std::shared_ptr<PackedWeights> shared_weights(const RolloutWorkerConfig& config) {
  if (config.colocation == nullptr) return nullptr;
  auto weights = config.colocation->weights();
  if (weights == nullptr) throw UserError("the trainer that has the device in turn has ended");
  return weights;
}

TaskSource task_source_for(uint64_t seed, const RolloutDataset& dataset,
                           const sandbox::EnvironmentInfo& info) {
  if (!info.needs_dataset) return TaskSource(seed);
  if (dataset.rows.empty() && dataset.held_out_rows.empty())
    throw UserError("the environment {} needs a dataset, and the config names none.", info.name);
  const auto read = [&](const std::filesystem::path& file) {
    if (file.empty()) return std::vector<text::DatasetRow>();
    auto rows = text::read_dataset(file, dataset.columns, dataset.limits);
    if (rows.empty()) throw UserError("{} has no rows.", file.string());
    return rows;
  };
  return TaskSource(seed, read(dataset.rows), read(dataset.held_out_rows));
}

// What the episodes of a domain play, and how.
struct Played {
  EnvironmentCalls::Source source;
  sandbox::EnvironmentInfo info;
  TaskSource tasks;
  EpisodeLimits limits;
  SamplingParams sampling;
};

Played played_for(const RolloutWorkerConfig& config, const RolloutDataset& dataset,
                  const sandbox::EnvironmentRegistry& environments,
                  const chat::PromptFormat& format) {
  auto source = environments.source(dataset.env, dataset.settings);
  const sandbox::EnvironmentInfo info = source->info();
  return {.source = std::move(source),
          .info = info,
          .tasks = task_source_for(config.seed, dataset, info),
          .limits = episode_limits(config.rollout, info),
          .sampling = episode_sampling(config.rollout.sampling, info, config.model, format)};
}

std::vector<Played> all_played(const RolloutWorkerConfig& config,
                               const sandbox::EnvironmentRegistry& environments,
                               const chat::PromptFormat& format) {
  std::vector<Played> all;
  for (const RolloutDataset& dataset : config.datasets)
    all.push_back(played_for(config, dataset, environments, format));
  return all;
}

PlayerOptions player_options(const RolloutWorkerConfig& config, std::span<const Played> all) {
  PlayerOptions options{.runner = runner_settings(config.rollout),
                        .agents_folder = config.run.agents() / config.worker};
  for (const Played& played : all)
    if (const auto agent = played.source->agent())
      options.max_request_bytes = std::max(options.max_request_bytes, agent->max_request_bytes);
  return options;
}

class RolloutWorker {
 public:
  RolloutWorker(const RolloutWorkerConfig& config, const sandbox::EnvironmentRegistry& environments,
                wire::WorkerClient& client, ProgressMeter& meter, Log& log, const Clock& clock,
                std::stop_token stop)
      : config_(config),
        client_(client),
        meter_(meter),
        clock_(clock),
        log_(log),
        stop_(std::move(stop)),
        tokenizer_(tokenizer_for(config)),
        format_(chat::PromptFormat::of(config.chat, config.tokenizer_dir, *tokenizer_)),
        model_(config.model, config.rollout.engine.max_context_tokens,
               Placement::on(config.device, config.compute)),
        pool_(engine_threads(config.rollout)),
        stream_(config.device, &pool_),
        arena_(config.colocation != nullptr
                   ? std::make_optional<ArenaScope>(config.colocation->turn_memory())
                   : std::nullopt),
        engine_(model_, tokenizer_.get(), config.rollout.engine, stream_.get(), clock),
        played_(all_played(config, environments, format_)),
        player_(engine_, format_, player_options(config, played_), clock),
        weights_(config.model, config.compute, stream_.get(),
                 {.fetch = config.fetch_weights ? config.fetch_weights
                                                : weights_in(config.run.weights()),
                  .fetch_takes_long = config.fetch_weights != nullptr,
                  .shared = shared_weights(config),
                  .shared_holds =
                      [&config](const Digest& root) { return config.colocation->holds(root); },
                  .base = config.model.lora ? load_frozen_base(stream_.get(), config.base_dir,
                                                               config.model, config.compute)
                                            : FrozenBase{}}) {
    arena_.reset();
    config.prove_inputs();
  }

  ExitCode run() {
    const ExitCode status = play();
    tell_notes(/*is_end=*/true);
    return status;
  }

 private:
  ExitCode play() {
    while (!ended_) {
      beat();
      const EngineStats stats = engine_.stats();
      meter_.turn(stats.sampled_tokens + stats.prefill_tokens, engine_.idle());
      if (stop_.stop_requested()) return leave();
      // In the trainer's turn nothing is sampled.
      bool busy = player_.num_running() > 0 && (config_.colocation == nullptr || has_turn_);
      // A version that has come is to be told of at once: others are given the work until then. And
      // who has a device in turn gives it back soon.
      const bool is_short = weights_.is_staging() || config_.colocation != nullptr;
      const auto wait = is_short ? kShortPoll : kPoll;
      while (auto message = client_.receive(busy ? 0ms : wait)) {
        std::visit([this](auto& m) { on(m); }, *message);
        if (ended_) return status();
        proceed();    // after each: what was granted before an install runs before it
        busy = true;  // look for more, but do not wait for it
      }
      proceed();
      for (FinishedEpisode& episode : player_.poll(kEnvironment)) report(episode);
      tell_notes(/*is_end=*/false);
      tell_held();
      store(player_.take_turns());
      if (is_forsaken()) return kExitFailed;
    }
    return status();
  }

  // A call that takes long to read holds up other calls of its agent, and long ones of all.
  void tell_held() {
    const auto held = player_.held();
    if (held || is_held_)
      meter_.hold(held ? "the gateway: " + gateway::describe(*held, clock_.now()) : "");
    is_held_ = held.has_value();
    if (const auto line = held_teller_.look(held, clock_.now()))
      log_.warning("gateway is held: {}", *line);
  }

  void tell_notes(bool is_end) {
    for (const std::string& line : player_.take_notes(is_end)) log_.warning("{}", line);
  }

  // The client's goodbye gives back what is held here, and goes out behind all that was sent.
  ExitCode leave() {
    const std::vector<Trajectory> turns = player_.take_turns(/*leaving=*/true);
    log_.info("leaving episodes={} with_turns={}", player_.num_running() + std::ssize(granted_),
              turns.size());
    store(turns);
    return kExitInterrupted;
  }

  // The scheduler has been silent for longer than this worker waits.
  bool is_forsaken() {
    const std::chrono::milliseconds silence = client_.silence();
    const bool told = std::exchange(silent_, silence > kWorthAWord);
    if (silent_ && !told)
      log_.warning("scheduler silent seconds={} patience_seconds={}", silence.count() / 1000,
                   config_.patience.count() / 1000);
    if (silence <= config_.patience) return false;
    log_.error("scheduler silent seconds={}", silence.count() / 1000);
    return true;
  }

  // A message that is not for a rollout worker changes nothing.
  template <class Other>
  void on(const Other&) {}

  // A session begins, of a scheduler that may have been away: which of our work still counts is in
  // the Hold that follows, and nothing is lost until then. Installs are asked for anew.
  void on(const wire::Welcome&) {
    weights_.forget();
    forget_acknowledged();
    resent_.clear();
    for (const auto& [body, number] : unacknowledged_) resent_.insert(body);
  }

  // What is not named is void.
  void on(const wire::Hold& hold) {
    const std::set<BodyId> held(hold.leases.begin(), hold.leases.end());
    for (const BodyId& id : player_.running()) {
      if (!held.contains(id)) drop(id);
    }
    std::erase_if(granted_, [&](const wire::Grant& grant) {
      return !held.contains({grant.lane, grant.lease});
    });
  }

  void on(const wire::Stage& stage) {
    if (samples_policy_of(stage)) weights_.ask({stage.version, stage.digest}, stage.manifest);
  }
  void on(const wire::Switch& change) {
    if (samples_policy_of(change)) weights_.order_switch({change.version, change.digest});
  }

  void on(const wire::Grant& grant) {
    bool known = player_.is_running({grant.lane, grant.lease}) ||
                 std::ranges::any_of(granted_, [&](const wire::Grant& other) {
                   return other.lease == grant.lease && other.lane == grant.lane;
                 });
    // At the start of a session all that is still leased is granted again. What the link sends
    // again is not played again; a result that the scheduler had, and lost with its power, is.
    if (!known && !resent_.contains({grant.lane, grant.lease})) granted_.push_back(grant);
  }

  // False: it does not run. An environment may be long in leaving; a switch does not wait for that.
  bool drop(const BodyId& id) {
    evaluating_.erase(id);
    return player_.abort(id);
  }

  void forget_acknowledged() {
    std::erase_if(unacknowledged_,
                  [&](const auto& entry) { return entry.second <= client_.num_acknowledged(); });
  }

  void on(const wire::Abort& abort) {
    if (drop({abort.lane, abort.lease})) return;
    std::erase_if(granted_, [&](const wire::Grant& grant) {
      return grant.lease == abort.lease && grant.lane == abort.lane;
    });
  }

  // Only the end of the run is success: who starts this worker must start it again otherwise.
  ExitCode status() const { return client_.displaced() ? kExitFailed : kExitDone; }

  void on(const wire::Shutdown& message) {
    log_.info("shutdown version={} reason={}", engine_.version(), message.reason);
    ended_ = true;
  }

  // Of a device that a trainer has in turn. What an evaluation has begun, it ends: the scheduler
  // gives no step to train before.
  bool take_turn() {
    Colocation* const shared = config_.colocation;
    if (shared == nullptr) return true;
    if (has_turn_ && shared->is_wanted() && !weights_.is_staging()) {
      engine_.freeze();
      wait(stream_.get());
      shared->end_sampling();
      has_turn_ = false;
    }
    if (!has_turn_ && shared->try_sample()) {
      has_turn_ = true;
      weights_.overwritten();
    }
    return has_turn_;
  }

  void proceed() {
    if (!take_turn()) return;
    // What was asked for last is staged while the engine goes on under the weights that it has.
    if (const auto staged = weights_.poll(player_.num_running() > 0)) say(*staged);
    tell_progress();
    // It takes the place of what samples between two steps of the engine. An evaluation runs on
    // exactly its version.
    if (const auto switched = weights_.poll_switch(evaluating_.empty())) install(*switched);
    start_granted();
  }

  void say(const WeightStage::Staged& staged) {
    if (staged.failure)
      return refuse(staged.version, staged.failure->message, kPolicy, staged.cause);
    client_.send(
        wire::Staged{kPolicy, staged.version.version, staged.version.root, staged.metrics});
  }

  void install(const WeightStage::Switched& switched) {
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

  void refuse(const WeightVersion& asked, const std::string& reason, PolicyId policy = kPolicy,
              InstallCause cause = InstallCause::kOther) {
    log_.error("install failed version={} reason={}", asked.version, reason);
    client_.send(wire::InstallFailed{policy, asked.version, asked.root, reason, cause});
  }

  // While a version is on its way, so that the time that it may take is that of a link that stands
  // still.
  void tell_progress() {
    const auto progress = weights_.progress();
    if (!progress) return;
    if (std::exchange(told_root_, progress->version.root) != progress->version.root)
      told_bytes_ = 0;
    if (progress->bytes <= told_bytes_ || steady_now() - told_progress_ < kTellProgress) return;
    told_progress_ = steady_now();
    told_bytes_ = progress->bytes;
    client_.send(wire::StageProgress{kPolicy, progress->version.version, progress->version.root,
                                     progress->bytes, progress->total});
  }

  template <class Asked>
  bool samples_policy_of(const Asked& message) {
    if (message.policy == kPolicy) return true;
    refuse({message.version, message.digest},
           fmt::format("this worker samples policy {}, not {}", kPolicy, message.policy),
           message.policy);
    return false;
  }

  void start_granted() {
    std::vector<wire::Grant> waiting;
    for (wire::Grant& grant : granted_) {
      if (engine_.version() < grant.version) {
        waiting.push_back(std::move(grant));  // its weights are on their way
      } else if (grant.lane == Lane::kEval && engine_.version() != grant.version) {
        // Training may go on under newer weights, each token says by which. An evaluation is a
        // number about one version.
        refuse(grant, Outcome::kStale);
      } else if (!plays(grant)) {
        log_.error("refused {}: the config names {} datasets", to_string(grant.lease),
                   played_.size());
        refuse(grant, Outcome::kLost);
      } else {
        start(grant);
      }
    }
    granted_.swap(waiting);
  }

  void start(const wire::Grant& grant) {
    const Played& played = played_of(grant);
    const bool evaluates = grant.lane == Lane::kEval;
    if (evaluates) evaluating_.insert({grant.lane, grant.lease});
    EpisodeSpec spec{.lease = grant.lease,
                     .lane = grant.lane,
                     .task = played.tasks.task(grant.lane, grant.lease.member),
                     .key = member_key(config_.seed, grant.lane, grant.lease.member),
                     .sampling = played.sampling,
                     .limits = played.limits,
                     .numerics_class = numerics_class_,
                     .keeps_sets = config_.keeps_sets && !evaluates,
                     .experts = config_.rollout.engine.keep_choices && !evaluates
                                    ? config_.model.expert_shape()
                                    : ExpertShape{}};
    if (config_.rollout.greedy_member && is_greedy_member(grant.lane, grant.lease.member))
      spec.sampling.temperature = 0;
    // A program cannot be told again what it has heard.
    if (played.source->agent() == nullptr) spec.prefix = usable_prefix(grant, spec);
    player_.start(std::move(spec), played.source);
  }

  // The turns that a grant carries. Those that do not fit cost their time again and nothing else.
  std::optional<Trajectory> usable_prefix(const wire::Grant& grant, const EpisodeSpec& spec) {
    if (grant.prefix.empty()) return std::nullopt;
    const std::string name = fmt::format("{} lane={}", to_string(grant.lease), name_of(grant.lane));
    const auto ignore = [&](const std::string& reason) {
      log_.warning("prefix ignored {} reason=it {}", name, reason);
      return std::nullopt;
    };
    auto decoded = wire::decode_trajectory(grant.prefix);
    if (!decoded) return ignore("cannot be read: " + decoded.failure().message);
    Trajectory& prefix = decoded.value();
    if (auto misfit =
            find_misfit(prefix, spec, played_of(grant).info.name, config_.model.num_ids()))
      return ignore(*misfit);
    if (grant.lane == Lane::kEval &&
        (prefix.min_version() != grant.version || prefix.max_version() != grant.version))
      return ignore("was sampled by another version");
    log_.info("goes on {} turns={} tokens={}", name, prefix.turns, prefix.num_tokens());
    return std::move(prefix);
  }

  // A scheduler with another config than ours could ask for what we do not know.
  bool plays(const wire::Grant& grant) const {
    return static_cast<size_t>(grant.lease.member.domain) < played_.size();
  }
  const Played& played_of(const wire::Grant& grant) const {
    return played_[static_cast<size_t>(grant.lease.member.domain)];
  }

  void refuse(const wire::Grant& grant, Outcome outcome) {
    Trajectory trajectory;
    trajectory.lease = grant.lease;
    trajectory.lane = grant.lane;
    if (plays(grant)) {
      trajectory.env = played_of(grant).info.name;
      trajectory.sampling = played_of(grant).sampling;
    }
    trajectory.outcome = outcome;
    send_result(trajectory);
  }

  void send_result(const Trajectory& trajectory) {
    forget_acknowledged();
    unacknowledged_[{trajectory.lane, trajectory.lease}] =
        client_.send(wire::TrajectoryResult{wire::encode_trajectory(trajectory)});
  }

  // So that another attempt may go on behind them. No result, and nothing waits for it: of a lease
  // that has ended meanwhile nobody wants them.
  void store(const std::vector<Trajectory>& turns) {
    for (const Trajectory& trajectory : turns) {
      check_numbers(trajectory);
      client_.send(wire::TrajectoryResult{wire::encode_trajectory(trajectory), /*goes_on=*/true});
    }
  }

  // The environment's numbers have been checked; what is left is the policy.
  static void check_numbers(const Trajectory& trajectory) {
    if (auto fault = find_fault(trajectory)) {
      throw UserError(
          "weights of version {} give no usable log-probabilities ({}): training has diverged.\n"
          "       Try a smaller optim.lr, or an earlier checkpoint.",
          trajectory.max_version(), *fault);
    }
  }

  void report(FinishedEpisode& episode) {
    Trajectory& trajectory = episode.trajectory;
    evaluating_.erase({trajectory.lane, trajectory.lease});
    if (trajectory.outcome == Outcome::kAborted) return;  // by the scheduler, which knows
    if (!episode.failure.empty()) {
      log_.warning("episode failed {} lane={} env={} seed={} reason={}",
                   to_string(trajectory.lease), name_of(trajectory.lane), trajectory.env,
                   trajectory.seed, episode.failure);
      trajectory.evidence = episode.failure;  // the breaker names it
    }
    check_numbers(trajectory);
    send_result(trajectory);
  }

  void log_stats() {
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

  const RolloutWorkerConfig& config_;
  wire::WorkerClient& client_;
  ProgressMeter& meter_;
  const Clock& clock_;
  Log& log_;
  const std::stop_token stop_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  chat::PromptFormat format_;
  Model model_;
  ThreadPool pool_;
  OwnedStream stream_;
  std::optional<ArenaScope> arena_;  // while the engine is made
  Engine engine_;
  std::vector<Played> played_;  // by domain
  Player player_;
  gateway::HeldTeller held_teller_;
  bool is_held_ = false;
  const std::string numerics_class_ = numerics_class(config_.compute, config_.device);

  std::vector<wire::Grant> granted_;  // not begun
  // Results, by their number among the client's messages; and those that this session began with.
  std::map<BodyId, int64_t> unacknowledged_;
  std::set<BodyId> resent_;
  std::set<BodyId> evaluating_;  // episodes that a switch has to wait for
  EngineStats logged_;
  bool ended_ = false;
  bool has_turn_ = false;  // of a shared device
  bool silent_ = false;    // the scheduler is, and that was told
  Time told_progress_{};
  Digest told_root_;           // of what is staged
  int64_t told_bytes_ = 0;     // of it
  bool told_weights_ = false;  // that it has its first
  WeightStage weights_;        // last: it uses threads of what is above, and is awaited
};

}  // namespace

PlacedMemory rollout_memory(const RolloutWorkerConfig& config) {
  const ModelConfig& model = config.model;
  const EngineOptions& engine = config.rollout.engine;
  PlacedMemory memory = engine_memory(model, engine, engine_threads(config.rollout),
                                      Placement::on(config.device, config.compute));
  auto& items = config.device.kind == DeviceKind::kCpu ? memory.host : memory.device;
  for (MemoryItem& item : items) item.of_turn = true;
  // The next version is packed while the engine still runs on the one before.
  if (!config.shares_device)
    items.insert(items.begin(), {model.lora ? "packed weights, the base and two adapters"
                                            : "packed weights, of two versions",
                                 WeightStage::bytes(model, config.compute, config.device)});
  items.push_back({"rotary positions", Model::bytes(model, engine.max_context_tokens)});
  return memory;
}

ExitCode run_rollout_worker(const RolloutWorkerConfig& config,
                            const sandbox::EnvironmentRegistry& environments, Log& log,
                            const Clock& clock, std::stop_token stop) {
  // Before its memory is taken, and before it says its class.
  prove_products_of(config.model, config.compute, config.device);
  // As many episodes as the engine decodes together: more would only wait in its queue.
  int64_t slots = config.slots > 0 ? config.slots : config.rollout.engine.max_sequences;
  // Before the client, whose thread reads it.
  ProgressMeter meter(bound_pulse());
  wire::WorkerClient client({.role = Role::kRollout,
                             .worker = config.worker,
                             .incarnation = config.incarnation,
                             .pid = static_cast<int32_t>(::getpid()),
                             .slots = slots,
                             .numerics_class = numerics_class(config.compute, config.device),
                             .joined = config.joined,
                             .pool = config.pool,
                             .hardware = hardware(config.device),
                             .cluster = config.cluster,
                             .host = config.host},
                            config.endpoint, config.link, [&meter] {
                              return wire::Heartbeat{meter.value(), meter.held()};
                            });
  try {
    return RolloutWorker(config, environments, client, meter, log, clock, std::move(stop)).run();
  } catch (const UserError& error) {
    log.error("stopped: {}", error.what());
    client.send(wire::WorkerFailed{error.what()});
    return kExitUserError;
  }
}

}  // namespace tailrace
