#include "tests/scheduler/decide/random_run.h"

#include "core/base/error.h"

namespace tailrace::scheduler {

namespace {

// Any point of the policy space that can be run.
Mode random_mode(Rng& rng) {
  constexpr Ratio kAhead[] = {{0, 1}, {1, 2}, {1, 1}, {3, 2}, {2, 1}, {3, 1}, {4, 1}};
  constexpr Ratio kLaunch[] = {{1, 1}, {5, 4}, {3, 2}, {2, 1}};
  while (true) {
    Mode mode;
    if (rng.chance(0.5)) mode.ahead = kAhead[rng.below(std::ssize(kAhead))];
    if (rng.chance(0.4)) mode.launch_members = kLaunch[rng.below(std::ssize(kLaunch))];
    if (rng.chance(0.5)) {
      mode.launch_prompts = kLaunch[1 + rng.below(std::ssize(kLaunch) - 1)];
      mode.tail = rng.chance(0.5) ? TailPolicy::kDiscard : TailPolicy::kKeep;
    }
    mode.on_stale = static_cast<OnStale>(rng.below(3));
    // Often the tightest bound that is legal.
    mode.max_staleness = rng.chance(0.5) ? rng.below(4) : 0;
    if (rng.chance(0.25)) mode.install = InstallWhen::kDrained;
    if (rng.chance(0.4)) mode.hand_over = HandOverBy::kGroups;
    if (rng.chance(0.3)) mode.dispatch = Dispatch::kLeastLoaded;
    if (rng.chance(0.4)) mode.dispatch_order = DispatchOrder::kLongestFirst;
    for (; mode.max_staleness < 6; ++mode.max_staleness) {
      try {
        mode.validate();
        return mode;
      } catch (const UserError&) {
      }
    }
  }
}

}  // namespace

std::string pool_name(int64_t index) { return std::string(1, static_cast<char>('a' + index)); }

Config random_config(Rng& rng, int64_t num_pools) {
  Config config;
  config.datasets.clear();
  const int64_t num_datasets = 1 + rng.below(2);
  // One that takes no part.
  const int64_t idle = num_datasets > 1 && rng.chance(0.2) ? rng.below(num_datasets) : -1;
  const bool by_steps = rng.chance(0.7);
  for (int64_t i = 0; i < num_datasets; ++i) {
    DatasetConfig dataset{.prompts_per_step = i == idle ? 0 : 1 + rng.below(3)};
    if (num_pools > 1 && rng.chance(0.6)) dataset.pool = pool_name(rng.below(num_pools));
    if (!by_steps || rng.chance(0.6)) {
      dataset.prompts_per_epoch = 1 + rng.below(7);
      dataset.epochs = !by_steps || rng.chance(0.7) ? 1 + rng.below(3) : 0;
    }
    config.datasets.push_back(dataset);
  }
  config.steps = by_steps ? 1 + rng.below(6) : 0;
  config.group_size = 1 + rng.below(4);
  config.replace_zero_signal = config.group_size > 1 && rng.chance(0.4);
  if (config.replace_zero_signal) config.max_gen_batches = rng.below(4);
  config.retries = {
      .env_failed = rng.below(3), .verifier_failed = rng.below(3), .lost = 1 + rng.below(6)};
  config.deadlines = {
      .lease = seconds(20), .verify = seconds(10), .install = seconds(15), .reconnect = seconds(5)};
  config.save.interval_steps = 1 + rng.below(4);
  config.keep_weights = 1 + rng.below(3);
  config.keep_sampled = rng.chance(0.7);
  if (rng.chance(0.5)) {
    config.eval = {.prompts = 1 + rng.below(3),
                   .group_size = 1 + rng.below(2),
                   .interval_steps = rng.below(4)};
  }
  config.quarantine = {
      .faults = 1 + rng.below(4), .first = seconds(1), .longest = seconds(8), .limit = 1 << 30};
  config.breaker = {.window = 0, .share = 1};
  if (rng.chance(0.8)) config.mode = random_mode(rng);
  if (rng.chance(0.3)) config.trainer_ranks = static_cast<int32_t>(2 + rng.below(2));
  config.eval.holds_training = rng.chance(0.2);
  if (num_pools > 1 && rng.chance(0.3)) config.eval.pool = pool_name(rng.below(num_pools));
  config.validate();
  return config;
}

RandomEpisodes::RandomEpisodes(uint64_t seed, const Config& law)
    : seed_(seed), rows_(law.datasets[0].prompts_per_epoch) {
  Rng rng(mix({seed, 0x726f7773}));
  if (rng.chance(0.3)) slowness_ = 5;
  // One row of several: with all of them the run would halt.
  if (rng.chance(0.4) && rows_ != 1) {
    broken_row_ = rng.below(3);
    for_verifiers_ = rng.chance(0.5);
  }
}

simulator::Episode RandomEpisodes::draw(Lane lane, const MemberId& member, int32_t) const {
  const auto part = [](int64_t id) { return static_cast<uint64_t>(id); };
  Rng rng(mix({seed_, part(static_cast<int64_t>(lane)), part(member.dataset), part(member.epoch),
               part(member.prompt), part(member.launch), part(member.member)}));
  simulator::Episode episode;
  episode.prompt_tokens = 1 + rng.below(5);
  episode.reset_seconds = rng.chance(0.3) ? rng.uniform() : 0;
  const int64_t turns = 1 + rng.below(4);
  for (int64_t i = 0; i < turns; ++i) {
    episode.turns.push_back({.tokens = rng.below(10),
                             .env_seconds = rng.chance(0.5) ? slowness_ * rng.uniform() : 0,
                             .env_tokens = i + 1 < turns ? rng.below(3) : 0});
  }
  episode.truncated = rng.chance(0.2);
  episode.reward = static_cast<double>(rng.below(2));
  episode.verify_seconds = rng.chance(0.3) ? 0.1 + rng.uniform() : 0;
  // Not each time: a group may be complete before somebody says so.
  const int64_t row = tailrace::row_of(member.prompt, lane == Lane::kTrain ? rows_ : 0);
  if (member.dataset == 0 && row == broken_row_ && rng.chance(0.3)) {
    episode.broken = true;
    episode.verify_seconds = for_verifiers_ ? 0.5 : 0;
  }
  return episode;
}

namespace {

simulator::FaultModel random_faults(Rng& rng) {
  if (rng.chance(0.2)) return {};
  simulator::FaultModel faults;
  const auto mean = [&](double seconds) { return seconds * (0.5 + rng.uniform()); };
  faults.rollout_mean = mean(40);
  faults.reward_mean = mean(60);
  faults.trainer_mean = mean(50);
  faults.rank_mean = mean(40);
  faults.noticed = rng.uniform();
  faults.restart = 3 * rng.uniform();
  faults.unnoticed = 0.5;
  faults.goodbye = 0.5;
  faults.other_machine = 0.5;
  faults.hang_mean = mean(50);
  faults.hang = rng.chance(0.5) ? 8 : 30;  // a lease runs out after 20
  faults.hang_noticed = 2;
  faults.alarm_mean = rng.chance(0.4) ? mean(3) : mean(50);
  faults.failed_mean = mean(150);
  faults.cut_mean = mean(40);
  faults.reconnect = 4;  // an absence lasts 5 at most
  faults.silent = 0.5;
  faults.join_mean = mean(40);
  faults.stop_mean = mean(200);
  faults.scheduler_mean = mean(40);
  faults.power_lost = 0.5;
  faults.damaged = 0.5;
  faults.pause_mean = mean(40);
  faults.clock_mean = mean(40);
  faults.env = 0.04;
  faults.lost = 0.04;
  faults.verifier = 0.15;
  faults.install = 0.05;
  faults.install_silent = 0.05;
  faults.source = rng.chance(0.3) ? 0.5 : 0.05;
  faults.damaged_checkpoint = 0.2;
  faults.other_weights = 0.4;
  faults.until = 150;  // all calms down in the end
  return faults;
}

simulator::Cluster random_cluster(Rng& rng, int64_t num_pools) {
  simulator::Cluster cluster;
  cluster.pools.clear();
  // In each pool somebody, and machines that may come in place of others.
  const int64_t workers = std::max(num_pools, 1 + rng.below(3));
  for (int64_t i = 0; i < workers + num_pools; ++i) {
    cluster.pools.push_back(
        {.name = num_pools == 1 ? "" : pool_name(i % num_pools),
         .workers = i < workers ? 1 : 0,
         .slots = 1 + rng.below(5),
         .hardware = {.decode = {.step = 0.01 + 0.1 * rng.uniform(), .sequence = 0.005},
                      .prefill_tokens_per_s = 500,
                      .kv_tokens = rng.chance(0.2) ? 60 : 0},
         // Sometimes longer than an install may last without progress.
         .transfer = {.payload_bytes = 1000,
                      .fetch = rng.uniform(),
                      .bytes_per_s = rng.chance(0.1) ? 50.0 : 1e6,
                      .switch_over = 0.1 * rng.uniform()},
         .lockstep = rng.chance(0.15)});
  }
  cluster.reward_workers = 1 + rng.below(2);
  cluster.reward_slots = 1 + rng.below(5);
  cluster.trainer = {.step = 0.2,
                     .sample = 0.02,
                     .update = rng.chance(0.5) ? 0.1 : 2 * rng.uniform(),
                     .publish = 0.2,
                     .save = rng.uniform(),
                     .warm_up = 1};
  cluster.trainer.keep_last = 1 + rng.below(3);
  cluster.faults = random_faults(rng);
  cluster.wire = {.delay = 0.01,
                  .spread = (rng.chance(0.3) ? 1.5 : 0.3) * rng.uniform(),
                  .doubled = 0.1,
                  .overtaken = 0.2,
                  .back = (rng.chance(0.3) ? 3 : 0.3) * rng.uniform()};
  return cluster;
}

// In some runs samples last longer than a version does, are moved often, and leave no turns behind
// that would make what is granted in their place as old as they are (law 6.4). Drawn apart, so that
// the other runs are what they were.
simulator::Cluster with_versions_between(simulator::Cluster cluster, uint64_t seed) {
  Rng rng(mix({seed, 0x63726f7373696e67}));
  if (!rng.chance(0.15)) return cluster;
  for (simulator::PoolModel& pool : cluster.pools) {
    pool.workers = 1;
    pool.hardware.decode.step = 0.1;
    pool.store_turns_tokens = 0;
  }
  cluster.trainer.update = 0.1;
  cluster.faults.alarm_mean = 2;
  cluster.faults.until = 150;
  return cluster;
}

}  // namespace

RandomRun::RandomRun(uint64_t seed)
    : rng_(seed),
      num_pools_(1 + rng_.below(3)),
      law_(random_config(rng_, num_pools_)),
      episodes_(seed, law_),
      cluster_(with_versions_between(random_cluster(rng_, num_pools_), seed)),
      world_(law_, cluster_, episodes_, seed),
      checker(world_, mix({seed, 0x636865636b})) {
  world_.new_rules = [this](const State& state) { return new_rules(state); };
}

std::optional<Config> RandomRun::new_rules(const State& state) {
  Config rules = state.config;
  if (state.end && state.end->reason == RunEnd::Reason::kSteps && rng_.chance(0.5)) {
    rules.steps += 1 + rng_.below(3);
    // Other machines.
    for (DatasetConfig& dataset : rules.datasets)
      if (num_pools_ > 1) dataset.pool = pool_name(rng_.below(num_pools_));
    ++checker.seen["more steps"];
  } else if (rng_.chance(0.2)) {
    // A person may want other evaluations, whatever is under way.
    rules.eval.prompts = rng_.below(3);
    rules.eval.interval_steps = rng_.below(4);
    if (num_pools_ > 1) rules.eval.pool = rng_.chance(0.5) ? "" : pool_name(rng_.below(num_pools_));
    ++checker.seen["other evaluations"];
  } else if (rng_.chance(0.2)) {
    DispatchOrder& order = rules.mode.dispatch_order;
    order =
        order == DispatchOrder::kLaunched ? DispatchOrder::kLongestFirst : DispatchOrder::kLaunched;
    ++checker.seen["another order"];
  } else {
    return std::nullopt;
  }
  return rules;
}

bool RandomRun::run() {
  using simulator::World;
  constexpr double kLimit = 5000;  // seconds of the run
  while (world_.now() < kLimit) {
    const World::Stop stop = world_.run(world_.now() + 20);
    if (!checker.failure.empty()) return false;
    if (stop == World::Stop::kStuck) {
      checker.failure = "nothing would ever happen again";
      return false;
    }
    if (stop != World::Stop::kEnded) continue;
    // What is on the wire still comes, and what goes wrong goes wrong.
    world_.linger(1 + 5 * rng_.uniform());
    if (!checker.failure.empty()) return false;
    const State& state = world_.state();
    if (!state.ended) continue;
    // A person may want more of it.
    const bool stopped = state.end->reason == RunEnd::Reason::kStopped;
    const bool more = state.end->reason == RunEnd::Reason::kSteps &&
                      checker.seen["more steps"] < 2 && rng_.chance(0.3);
    if (!stopped && !more) return checker.check_accounts();
    world_.restart();
  }
  checker.failure = "the run did not end";
  return false;
}

}  // namespace tailrace::scheduler
