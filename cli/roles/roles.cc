#include "cli/roles/roles.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <latch>
#include <memory>
#include <new>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "cli/config/device_choice.h"
#include "cli/config/pools.h"
#include "cli/inputs/agents.h"
#include "cli/inputs/fitted_prompts.h"
#include "cli/inputs/inputs.h"
#include "cli/inputs/length.h"
#include "cli/inputs/programs.h"
#include "cli/inputs/prompts.h"
#include "cli/inputs/rewards.h"
#include "cli/inputs/threads.h"
#include "cli/prepare/device_plan.h"
#include "cli/prepare/placed_run.h"
#include "cli/prepare/setup.h"
#include "cli/prepare/worker_configs.h"
#include "cli/roles/endpoint.h"
#include "cli/roles/gate_role.h"
#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/expert_shape.h"
#include "core/base/machine.h"
#include "core/base/progress.h"
#include "core/model/model_config.h"
#include "core/model/proved_products.h"
#include "core/run/call_board.h"
#include "core/run/lock_file.h"
#include "core/run/memory_need.h"
#include "core/text/tokenizer.h"
#include "core/weights/manifest.h"
#include "kernels/base/backend.h"
#include "kernels/base/memory.h"
#include "reward/verifier.h"
#include "reward/worker/worker.h"
#include "rollout/episode/episode.h"
#include "rollout/worker/worker.h"
#include "sandbox/registry.h"
#include "scheduler/service/service.h"
#include "trainer/worker/worker.h"

namespace tailrace {
namespace {

// The most turns of the environments of all datasets.
int64_t max_turns(const ResolvedRun& run, const Registries& registries) {
  int64_t most = 0;
  for (const RunDataset& dataset : run.datasets) {
    const auto source = registries.environments.source(dataset.env, dataset.settings);
    most = std::max<int64_t>(most, episode_limits(run.options.rollout, source->info()).max_turns);
  }
  return most;
}

// For the samples that people read. A role that cannot do without its tokenizer says what is wrong
// with it; the scheduler goes on, and its rows have ids alone.
TokenText text_of_tokens(const RunPaths& run, Log& log) {
  try {
    std::shared_ptr<const text::Tokenizer> tokenizer = text::load_tokenizer(run.tokenizer());
    return [tokenizer](std::span<const TokenId> ids) {
      // A model may have more rows than its tokenizer has tokens.
      const bool is_known = std::ranges::all_of(
          ids, [&](TokenId id) { return id >= 0 && id < tokenizer->vocab_size(); });
      return is_known ? tokenizer->decode(ids, /*keep_special=*/true) : std::string();
    };
  } catch (const UserError& error) {
    log.warning("{} will have no text: {}", run.samples().string(), error.what());
    return {};
  }
}

// Counts of the prompts that env.too_long has dropped and cut, which each row of a step bears: its
// rewards are of the others. The log names them.
MetricList prompt_facts(const RunPaths& run, Log& log) {
  constexpr size_t kListed = 1000;
  const std::vector<PromptFit> fits = read_prompt_fits(run);
  if (fits.empty()) return {};
  double dropped = 0, cut = 0;
  for (const PromptFit& fit : fits) {
    log.info("{}", describe(fit, kListed));
    dropped += static_cast<double>(fit.dropped.size());
    cut += static_cast<double>(fit.cut.size());
  }
  return {{"rollout/too_long_dropped", dropped}, {"rollout/too_long_cut", cut}};
}

PlacedRun placed_run(const RoleContext& context) {
  return place(context.resolved, context.registries.environments, context.run);
}

WorkerSeat seat_of(const RoleName& name, const RoleContext& context) {
  return {.worker = name.text(),
          .run = context.run,
          .endpoint = context.endpoint,
          .colocation = context.colocation,
          .rank = name.index,
          .joined = context.joined,
          .cluster = context.cluster,
          .host = context.host};
}

ExitCode run_scheduler(const RoleContext& context, StatusPage& page, Log& log,
                       std::stop_token stop) {
  const ResolvedRun& run = context.resolved;
  const RunOptions& o = run.options;
  scheduler::ServiceOptions options;
  // First: it reads the datasets, and is seen to make progress meanwhile.
  options.config = scheduler_config(run);
  const PlacedRun placed = placed_run(context);
  const ModelConfig& model = placed.model;
  options.config = on_this_machine(std::move(options.config), placed);
  options.endpoint = context.endpoint.address;
  options.paths = context.run;
  options.datasets = dataset_names(run.datasets);
  options.facts = prompt_facts(context.run, log);
  options.text = text_of_tokens(context.run, log);
  options.judge = judge_of(o);
  options.storage = o.scheduler.storage;
  options.no_progress = o.scheduler.no_progress;
  // Law 6.7: the service proves each body by these before it is a sample.
  options.bodies = {.vocab_size = model.num_ids(),
                    .max_context_tokens = o.rollout.engine.max_context_tokens,
                    // In a tree no more nodes branch than there are leaves.
                    .max_segments = 2 * max_turns(run, context.registries),
                    .needs_sets = o.algo.sampling_mask == SamplingMask::kKeep,
                    .experts = o.algo.router_replay == RouterReplay::kReplay ? model.expert_shape()
                                                                             : ExpertShape{},
                    .sampling = o.rollout.sampling_in(Lane::kTrain).params(),
                    .eval_sampling = o.rollout.sampling_in(Lane::kEval).params(),
                    .greedy_member = o.rollout.greedy_member};
  options.on_begun = [root = context.run.root, endpoint = context.endpoint.address] {
    mark_begun(root, endpoint);
  };
  options.on_waits = [&page](const Waits& waits) { page.set_waits(waits); };
  const SteadyClock clock;
  scheduler::Service service(std::move(options), clock, log);
  // Behind the service, so that it is gone before what it calls.
  const std::stop_callback on_stop(stop, [&service] { service.request_stop(); });
  const scheduler::ServiceResult result = service.run();
  // As a UserError: the supervisor does not start it again.
  if (result.end == scheduler::ServiceResult::End::kFailed) throw UserError("{}", result.message);
  return result.end == scheduler::ServiceResult::End::kStopped ? kExitInterrupted : kExitDone;
}

// Only a device that others use too is checked; the CPU, and one that does not say, pass.
void require_device_memory(const MemoryNeed& need, const RoleContext& context, Device device) {
  if (context.forced) return;
  const int64_t free = free_bytes(device);
  if (free < 0 || need.bytes <= free) return;
  throw UserError(
      "{} needs {} of the memory of {} and {} are free: {} (--dry-run shows what each "
      "takes).",
      need.process, format_bytes(need.bytes), describe(device), format_bytes(free), need.cure);
}

// Plays a role if the memory that it will take is free, or a person forces it. Where it is not
// given all the same (ulimit -v) the message is as clear.
template <class Play>
auto within_memory(const MemoryNeed& need, const RoleContext& context, const Play& play) {
  if (!context.forced) require_memory(need, memory_facts());
  try {
    return play();
  } catch (const OutOfDeviceMemory& error) {
    throw UserError("{}: {}: {} (--dry-run shows what each takes).", need.process, error.what(),
                    need.cure);
  } catch (const std::bad_alloc&) {
    refuse_without_memory(need, memory_facts());
  }
}

// Bytes of the host, without what lies in the memory of a colocation.
int64_t own_bytes(std::vector<MemoryItem> host, const Colocation* colocation) {
  if (colocation != nullptr) std::erase_if(host, [](auto& item) { return item.of_turn; });
  return total_bytes(host);
}

// Says that a role has ended, however.
class Leaving {
 public:
  explicit Leaving(Colocation* colocation) : colocation_(colocation) {}
  ~Leaving() {
    if (colocation_ != nullptr) colocation_->leave();
  }
  Leaving(const Leaving&) = delete;

 private:
  Colocation* colocation_;
};

constexpr std::string_view kTrainerCure =
    "lower train.microbatch_tokens, rollout.max_context_tokens or train.gradient_slots, or take a "
    "smaller model";
constexpr std::string_view kRolloutCure =
    "lower rollout.workers, rollout.kv_cache_mb, rollout.max_batch_tokens or "
    "rollout.max_context_tokens, or take a smaller model";

// Whoever starts a worker on another machine should hear that it computes otherwise than the
// trainer, and not only whoever reads the log of the scheduler.
FetchWeights warn_of_another_class(FetchWeights fetch, std::string own, Log& log) {
  return [fetch = std::move(fetch), own = std::move(own), &log,
          told = false](const WeightFetch& wanted) mutable -> Result<FetchedWeights> {
    auto file = fetch(wanted);
    if (!file || told) return file;
    const auto read = read_manifest(file.value().manifest);
    if (!read) return read.failure();
    told = true;
    if (read.value().numerics_class != own)
      log.warning(
          "this machine computes as {}, the trainer as {}: sampled and trained log-probabilities "
          "will not be equal bit for bit",
          own, read.value().numerics_class);
    return file;
  };
}

ExitCode run_rollout(const RoleName& name, const RoleContext& context, Log& log,
                     std::stop_token stop) {
  const ResolvedRun& run = context.resolved;
  const PoolSection pool = context.joined ? pool_to_join(run.pools, context.pool)
                                          : pool_of_worker(run.launched_pools, name.index);
  // However this role ends, the other one must not wait for its turn for ever.
  const Leaving leaving(context.joined ? nullptr : context.colocation);
  const PlacedRun placed = placed_run(context);
  WorkerSeat seat = seat_of(name, context);
  if (context.remote != nullptr) {
    // Each file was proved as it came.
    prove_products_of(placed.model, placed.compute.weights, placed.rollout.device);
    seat.incarnation = context.remote->incarnation;
    seat.fetch_weights = warn_of_another_class(
        context.remote->fetch_weights, numerics_class(placed.compute, placed.rollout.device), log);
    seat.patience = context.remote->patience;
  } else {
    // Also of one that is started again, hours after its launch.
    seat.prove_inputs = [&context] { prove_inputs(context.run, context.resolved); };
  }
  const RolloutWorkerConfig config = rollout_config(placed, pool, seat);
  require_environment_programs(run.datasets);
  require_agents(run.datasets);
  const SteadyClock clock;
  // Workers of a launch take no stop: the scheduler has them end.
  if (!context.joined) stop = {};
  const PlacedMemory memory = rollout_memory(config);
  MemoryNeed need{.process = "a rollout worker", .cure = kRolloutCure};
  need.bytes = total_bytes(memory.device);
  if (!config.shares_device) require_device_memory(need, context, config.device);
  need.bytes = own_bytes(memory.host, config.colocation);
  return within_memory(need, context, [&] {
    return run_rollout_worker(config, context.registries.environments, log, clock, stop);
  });
}

ExitCode run_reward(const RoleName& name, const RoleContext& context, Log& log,
                    std::stop_token stop) {
  const ResolvedRun& run = context.resolved;
  const RunOptions& o = run.options;
  const SteadyClock clock;
  RewardWorkerOptions options;
  options.worker = name.text();
  options.joined = context.joined;
  options.cluster = context.cluster;
  options.host = context.host;
  if (context.remote != nullptr) {
    if (o.reward.has_model())
      throw UserError::at("reward.model",
                          "is a folder of the machine that launched the run, and reward workers of "
                          "others do not have it. Start more there: reward.workers.");
    options.incarnation = context.remote->incarnation;
    options.patience = context.remote->patience;
  } else if (o.reward.has_commands() || !o.reward.model.empty()) {
    // A program is read whenever a process of it starts, and a reward model at the first score.
    prove_inputs(context.run, run);
  }
  require_programs(run);
  options.endpoint = context.endpoint;
  options.threads = std::max<int>(options.threads, static_cast<int>(run.rewards.at_once));
  options.deadline = worker_deadline(o.scheduler.deadlines.verify);
  options.start = run.rewards.start;
  RewardWorker worker(context.registries.verifiers, clock, std::move(options));
  // As above: it is gone before the worker that it calls.
  const std::stop_callback on_stop(stop, [&worker] { worker.request_stop(); });
  const RewardWorker::Ending ending = worker.run();
  log.info("ended: {}", ending.reason);
  return ending.clean ? kExitDone : kExitFailed;
}

ExitCode run_trainer(const RoleName& name, const RoleContext& context, Log& log) {
  const ResolvedRun& run = context.resolved;
  const RunOptions& o = run.options;
  const Leaving leaving(context.colocation);
  WorkerSeat seat = seat_of(name, context);
  // The inputs are proved to be those that the run began with, and give the same each time.
  if (o.optim.schedule != LrSchedule::kConstant) seat.most_steps = most_steps(run);
  const TrainerWorkerConfig config = trainer_config(placed_run(context), seat);
  const SteadyClock clock;
  const PlacedMemory memory = trainer_memory(config);
  const std::string process = name.index == 0 ? "the trainer" : name.text();
  MemoryNeed need{.process = process, .cure = kTrainerCure};
  need.bytes = total_bytes(memory.device);
  if (config.colocation == nullptr) require_device_memory(need, context, config.device);
  need.bytes = own_bytes(memory.host, config.colocation);
  const ExitCode status =
      within_memory(need, context, [&] { return run_trainer_worker(config, log, clock); });
  if (config.colocation != nullptr && config.device.kind != DeviceKind::kCpu) {
    const int64_t planned = config.colocation->planned_bytes(), held = Buffer::device_peak_bytes();
    log.info("device memory planned={} held={}", planned, held);
    if (held > planned)
      log.warning("the GPU held {} more than was planned", format_bytes(held - planned));
  }
  return status;
}

}  // namespace

std::unique_ptr<Colocation> make_colocation(const RoleContext& context) {
  const ResolvedRun& run = context.resolved;
  const RunOptions& o = run.options;
  if (!o.run.colocate) return nullptr;
  const PlacedRun placed = placed_run(context);
  const Device device = plan_devices(placed).trainer;
  const bool on_cpu = device.kind == DeviceKind::kCpu;
  PlacedMemory trains = trainer_memory(trainer_config(placed, {})),
               samples = rollout_memory(
                   rollout_config(placed, pool_of_worker(run.launched_pools, 0), {}));
  auto& trainer = on_cpu ? trains.host : trains.device;
  auto& rollout_worker = on_cpu ? samples.host : samples.device;
  const std::vector<MemoryItem> in_turn = share_turns(trainer, rollout_worker);
  MemoryNeed need{.process = "trainer and rollout worker",
                  .cure =
                      "lower rollout.kv_cache_mb, rollout.max_batch_tokens or "
                      "train.microbatch_tokens, or take a smaller model"};
  need.bytes = total_bytes(trainer) + total_bytes(rollout_worker) + total_bytes(in_turn);
  const auto make = [&] {
    return std::make_unique<Colocation>(device, total_bytes(in_turn), need.bytes);
  };
  if (on_cpu) return within_memory(need, context, make);
  require_device_memory(need, context, device);
  return make();
}

void check_open_files(const ResolvedRun& run, bool in_process, int64_t left) {
  const auto num_roles = std::ssize(roles_of(run));
  // Measured at their most, and a few beyond. In one process each role has a status page, a log, a
  // lock, a socket with its threads, and both ends of its connection; else the most are in the
  // supervisor, which has a few of each, and in the scheduler, which has a connection of each.
  const int64_t needed = in_process ? 24 + 12 * num_roles : 28 + 4 * num_roles;
  if (needed <= left) return;
  const uint64_t limit = std::bit_ceil(static_cast<uint64_t>(needed) + 64);  // some are open
  throw UserError(
      "the run needs about {} open files{}, and {} are left of their limit. Raise it (ulimit -n "
      "{}; of a container: --ulimit nofile={}), or {}.",
      needed, in_process ? " in one process" : "", left, limit, limit,
      in_process ? "launch without --in-process" : "lower rollout.workers and reward.workers");
}

constexpr int64_t kMostTriedThreads = 4096;

void check_threads(const ResolvedRun& run) {
  const RunOptions& options = run.options;
  // Measured at their most, and a few beyond: of each role its own, and those of its connection; of
  // workers also those that call verifiers and environments.
  const ThreadPlan& compute = run.threads;
  const int64_t needed = 16 + compute.trainer * compute.ranks + (options.train.ranks - 1) * 8 +
                         run.rollout_workers * (4 + compute.worker + options.rollout.env_threads) +
                         options.reward.workers * (5 + run.rewards.at_once);
  // The machine's are others' too.
  const int64_t tried = std::min(needed, kMostTriedThreads);
  // All of them live at the same time, as the threads of the run will.
  std::latch all_tried(1);
  std::vector<std::jthread> threads;
  threads.reserve(static_cast<size_t>(tried));
  const auto let_go = [&] {
    all_tried.count_down();
    threads.clear();
  };
  try {
    while (std::ssize(threads) < tried) {
      threads.emplace_back([&] {
        // The allocator reserves address space for a thread at its first call, more than its stack.
        void* volatile memory = std::malloc(64);
        std::free(memory);
        all_tried.wait();
      });
    }
  } catch (const std::system_error& error) {
    const auto started = std::ssize(threads);
    let_go();
    throw UserError(
        "the run needs about {} threads in one process, and {} could be started ({}). Raise the "
        "limit of processes (ulimit -u; of a container: --pids-limit) or of memory (ulimit -v), or "
        "launch without --in-process.",
        needed, started, error.what());
  } catch (...) {
    let_go();
    throw;
  }
  let_go();
}

namespace {

Pulse& pulse_of(RoleKind kind, const RoleContext& context, StatusPage& page) {
  if (kind == RoleKind::kTrainer && context.trainer_pulse != nullptr) return *context.trainer_pulse;
  if (kind == RoleKind::kRollout && context.rollout_pulse != nullptr) return *context.rollout_pulse;
  return page.pulse();
}

}  // namespace

ExitCode play_role(const HeldRole& role, const RoleContext& context, StatusPage& page, Log& log,
                   std::stop_token stop) {
  const PulseScope pulse(pulse_of(role.name.kind, context, page));
  const CallBoardScope calls(page.calls());
  const SteadyClock clock;
  const ProgressScope progress([&](const std::string& line) { log.info("{}", line); }, clock);
  switch (role.name.kind) {
    case RoleKind::kScheduler:
      return run_scheduler(context, page, log, stop);
    case RoleKind::kGate:
      return run_gate(context.run, context.resolved, context.endpoint.address, log, stop);
    case RoleKind::kTrainer:
      // It takes no stop: the scheduler has it end.
      return run_trainer(role.name, context, log);
    case RoleKind::kRollout:
      return run_rollout(role.name, context, log, stop);
    case RoleKind::kReward:
      return run_reward(role.name, context, log, stop);
  }
  return kExitFailed;  // not reached
}

ExitCode run_role(const RoleName& name, const RoleContext& context, StatusPage& page, Log& log,
                  std::stop_token stop) {
  const HeldRole role = hold_role(name, context.run);
  // Only now: one that a worker has joined as is played already, which says more.
  const int number = num_launched(name.kind, context.resolved);
  if (name.index >= number)
    throw UserError("--index {}: of the role {} the run has {}, from 0 on.", name.index,
                    name_of(name.kind), number);
  return play_role(role, context, page, log, stop);
}

}  // namespace tailrace
