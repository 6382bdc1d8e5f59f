#include "rollout/worker/worker.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include <unistd.h>

#include "core/base/error.h"
#include "core/model/model.h"
#include "core/model/placement.h"
#include "core/model/proved_products.h"
#include "core/text/tokenizer.h"
#include "core/wire/trajectory_codec.h"
#include "kernels/base/backend.h"
#include "kernels/base/pulse.h"
#include "kernels/base/thread_pool.h"
#include "rollout/engine/engine.h"
#include "rollout/player/player.h"
#include "rollout/worker/played_datasets.h"
#include "rollout/worker/progress_meter.h"
#include "rollout/worker/teacher.h"
#include "rollout/worker/weight_installs.h"
#include "sandbox/registry.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kPoll{100};  // without work
constexpr std::chrono::milliseconds kShortPoll{2};
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
        played_(config, environments, format_, log),
        player_(engine_, format_, played_.player_options(), clock),
        weights_(config, engine_, stream_.get(), client, log) {
    arena_.reset();
    if (config.teacher)
      teacher_.emplace(*config.teacher, config.compute, stream_.get(),
                       config.rollout.engine.max_context_tokens);
    if (config.remote_teacher) remote_teacher_.emplace(*config.remote_teacher);
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
      bool busy = player_.num_running() > 0 && weights_.has_turn();
      // A version that has come is to be told of at once: others are given the work until then. And
      // who has a device in turn gives it back soon.
      const bool is_short = weights_.is_staging() || config_.colocation != nullptr ||
                            (remote_teacher_ && !remote_teacher_->idle());
      const auto wait = is_short ? kShortPoll : kPoll;
      while (auto message = client_.receive(busy ? 0ms : wait)) {
        std::visit([this](auto& m) { on(m); }, *message);
        if (ended_) return status();
        proceed();    // after each: what was granted before an install runs before it
        busy = true;  // look for more, but do not wait for it
      }
      proceed();
      for (FinishedEpisode& episode : player_.poll(kEnvironment)) report(episode);
      report_scored();
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

  // Episodes that are not named are void.
  void on(const wire::Hold& hold) {
    const std::set<BodyId> held(hold.leases.begin(), hold.leases.end());
    for (const BodyId& id : player_.running()) {
      if (!held.contains(id)) drop(id);
    }
    if (remote_teacher_)
      for (const BodyId& id : remote_teacher_->held())
        if (!held.contains(id)) drop(id);
    std::erase_if(granted_, [&](const wire::Grant& grant) {
      return !held.contains({grant.lane, grant.lease});
    });
  }

  void on(const wire::Stage& stage) { weights_.on(stage); }
  void on(const wire::Switch& change) { weights_.on(change); }

  void on(const wire::Grant& grant) {
    bool known = player_.is_running({grant.lane, grant.lease}) ||
                 (remote_teacher_ && remote_teacher_->holds({grant.lane, grant.lease})) ||
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
    if (remote_teacher_ && remote_teacher_->drop(id)) return true;
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

  void proceed() {
    // Without the turn the device is the trainer's: neither weights nor episodes may begin there.
    if (!weights_.take_turn()) return;
    // An evaluation runs on exactly its version.
    weights_.proceed(player_.num_running() > 0, evaluating_.empty());
    start_granted();
  }

  void start_granted() {
    std::vector<wire::Grant> waiting;
    for (wire::Grant& grant : granted_) {
      if (engine_.version() < grant.version) {
        waiting.push_back(std::move(grant));  // its weights are on their way
      } else if (grant.lane == Lane::kEval && engine_.version() != grant.version) {
        // Training may go on under newer weights, each token says by which. An evaluation is a
        // number about one version.
        send_result(played_.refused(grant, Outcome::kStale));
      } else if (!played_.know(grant)) {
        log_.error("refused {}: the config names {} datasets", to_string(grant.lease),
                   config_.datasets.size());
        send_result(played_.refused(grant, Outcome::kLost));
      } else {
        if (grant.lane == Lane::kEval) evaluating_.insert({grant.lane, grant.lease});
        player_.start(played_.spec(grant), played_.source(grant));
      }
    }
    granted_.swap(waiting);
  }

  void send_result(const Trajectory& trajectory) {
    forget_acknowledged();
    unacknowledged_[{trajectory.lane, trajectory.lease}] =
        client_.send(wire::TrajectoryResult{wire::encode_trajectory(trajectory)});
  }

  // Stores turns for another attempt to go on behind. No result, and nothing waits for it: nobody
  // wants the turns of a lease that has ended meanwhile.
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
    if (trajectory.lane == Lane::kTrain && has_sample(trajectory.outcome)) {
      if (teacher_) teacher_->score(trajectory);
      if (remote_teacher_) return remote_teacher_->submit(std::move(trajectory));
    }
    send_result(trajectory);
  }

  // A sample without its scores is a failed attempt: another one may find the teacher there.
  void report_scored() {
    if (!remote_teacher_) return;
    for (auto& [trajectory, failure] : remote_teacher_->take()) {
      if (!failure.empty()) {
        log_.warning("not scored {} reason={}", to_string(trajectory.lease), failure);
        trajectory.outcome = Outcome::kEnvFailed;
        trajectory.evidence = failure;  // the breaker names it
      }
      send_result(trajectory);
    }
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
  std::optional<Teacher> teacher_;
  std::optional<RemoteTeacher> remote_teacher_;
  PlayedDatasets played_;
  Player player_;
  gateway::HeldTeller held_teller_;
  bool is_held_ = false;

  std::vector<wire::Grant> granted_;  // not begun
  // Results, by their number among the client's messages; and those that this session began with.
  std::map<BodyId, int64_t> unacknowledged_;
  std::set<BodyId> resent_;
  std::set<BodyId> evaluating_;  // episodes that a switch has to wait for
  bool ended_ = false;
  bool silent_ = false;     // the scheduler is, and that was told
  WeightInstalls weights_;  // last: it uses threads of what is above, and is awaited
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
                                 WeightStage::bytes(model, config.compute.weights, config.device)});
  items.push_back({"rotary positions", Model::bytes(model, engine.max_context_tokens)});
  if (config.teacher)
    for (MemoryItem& item :
         Teacher::memory(*config.teacher, config.compute, config.device,
                         engine_threads(config.rollout), engine.max_context_tokens))
      items.push_back(std::move(item));
  return memory;
}

ExitCode run_rollout_worker(const RolloutWorkerConfig& config,
                            const sandbox::EnvironmentRegistry& environments, Log& log,
                            const Clock& clock, std::stop_token stop) {
  // Before its memory is taken, and before it says its class.
  prove_products_of(config.model, config.compute.weights, config.device);
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
