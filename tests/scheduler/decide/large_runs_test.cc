// Runs of hundreds of workers under the rules that a person gets: one that must go on does, and one
// that must halt names the cause.
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/random.h"
#include "tests/scheduler/decide/checker.h"
#include "tests/scheduler/decide/harness.h"

namespace tailrace::scheduler {
namespace {

// The whole state is walked at so many of the events: it holds thousands of members.
constexpr double kWholeShare = 0.004;
constexpr int64_t kWorkers = 300;

Config law_of(ModeName mode) {
  Config law;
  law.mode = ModeOptions::preset(mode).mode();
  law.datasets = {{.prompts_per_step = 96, .prompts_per_epoch = 1000, .epochs = 0}};
  law.group_size = 8;
  law.steps = 6;
  law.save.interval_steps = 2;
  law.validate();
  return law;
}

simulator::Cluster large_cluster() {
  simulator::Cluster cluster;
  cluster.pools = {{.workers = kWorkers,
                    .slots = 3,
                    .hardware = {.decode = {.step = 0.02}},
                    .transfer = {.fetch = 1, .switch_over = 0.1}}};
  cluster.reward_workers = 20;
  cluster.reward_slots = 8;
  cluster.trainer = {.step = 1, .token = 1e-6, .update = 1, .save = 1};
  cluster.wire = {.delay = 0.01, .spread = 0.02, .doubled = 0.01, .overtaken = 0.02};
  return cluster;
}

simulator::EpisodeModel episodes_with(double verify_seconds) {
  return {.length = {.median = 200, .sigma_prompt = 0.3, .sigma_response = 0.5, .limit = 2000},
          .turns = {simulator::Distribution::Kind::kConstant, 2},
          .env = {simulator::Distribution::Kind::kConstant, 0.5},
          .verify = {simulator::Distribution::Kind::kConstant, verify_seconds}};
}

// The reason of the halt; empty: the run has ended.
std::string halt_of(const Config& law, const simulator::Cluster& cluster, double verify_seconds,
                    bool may_halt) {
  constexpr uint64_t seed = 1;
  const simulator::DrawnEpisodes episodes({episodes_with(verify_seconds)}, seed);
  simulator::World world(law, cluster, episodes, seed);
  Checker checker(world, seed, kWholeShare);
  checker.may_halt = may_halt;
  const auto stop = world.run(20000);
  std::string tail;
  if (!checker.failure.empty())
    for (const std::string& line : checker.log) tail += line + "\n";
  EXPECT_EQ(checker.failure, "") << tail;
  if (stop == simulator::World::Stop::kHalted) return world.state().halted;
  EXPECT_EQ(stop, simulator::World::Stop::kEnded);
  EXPECT_TRUE(checker.check_accounts()) << checker.failure;
  return "";
}

class LargeRuns : public testing::TestWithParam<ModeName> {};

// A third of the attempts fail, many processes die, links break, the scheduler too.
TEST_P(LargeRuns, AreNotHaltedByFaultsThatAreNotEverywhere) {
  simulator::Cluster cluster = large_cluster();
  simulator::FaultModel& faults = cluster.faults;
  faults.rollout_mean = 1500;
  faults.reward_mean = 500;
  faults.trainer_mean = 200;
  faults.goodbye = 0.3;
  faults.unnoticed = 0.2;
  faults.hang_mean = 2000;
  faults.alarm_mean = 2000;
  faults.failed_mean = 5000;
  faults.cut_mean = 1000;
  faults.silent = 0.5;
  faults.scheduler_mean = 100;
  faults.power_lost = 0.5;
  faults.env = 0.3;
  faults.verifier = 0.3;
  faults.install = 0.2;
  faults.install_silent = 0.02;
  faults.broken_task = 0.1;
  EXPECT_EQ(halt_of(law_of(GetParam()), cluster, 0.5, /*may_halt=*/false), "");
}

INSTANTIATE_TEST_SUITE_P(Modes, LargeRuns,
                         testing::Values(ModeName::kSync, ModeName::kTailBatching,
                                         ModeName::kPartial, ModeName::kAsync,
                                         ModeName::kStreaming),
                         [](const auto& one) { return std::string(name_of(one.param)); });

struct Cause {
  std::string name;
  double simulator::FaultModel::*chance = nullptr;
  double share = 1;
  std::string said;  // in the reason
  double verify_seconds = 0;
};

class LargeHalts : public testing::TestWithParam<Cause> {};

TEST_P(LargeHalts, NameWhatFailsEverywhere) {
  const Cause& cause = GetParam();
  for (const ModeName mode : {ModeName::kSync, ModeName::kAsync}) {
    simulator::Cluster cluster = large_cluster();
    cluster.faults.*cause.chance = cause.share;
    const std::string reason =
        halt_of(law_of(mode), cluster, cause.verify_seconds, /*may_halt=*/true);
    EXPECT_NE(reason.find(cause.said), std::string::npos) << "halted: " << reason;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Causes, LargeHalts,
    testing::Values(Cause{"environments", &simulator::FaultModel::env, 1,
                          "attempts ended as env_failed; the last one: on purpose"},
                    Cause{"most_environments", &simulator::FaultModel::env, 0.9,
                          "attempts ended as env_failed; the last one: on purpose"},
                    Cause{"most_verifiers", &simulator::FaultModel::verifier, 0.9,
                          "attempts ended as verifier_failed; the last one: on purpose", 0.5},
                    Cause{"installs", &simulator::FaultModel::install, 1,
                          "in a row, the last time (install)"},
                    Cause{"rows", &simulator::FaultModel::broken_task, 1,
                          "all 1000 rows of dataset number 0 are broken: nobody can play"}),
    [](const auto& one) { return one.param.name; });

// Workers that answer one after the other, in an order that is drawn for each round of answers.
struct Fleet {
  State state;
  int64_t answered = 0;
  Rng rng{1};

  explicit Fleet(int64_t workers) : state(config_for(workers)) {
    tell(WorkerUp{.worker = "t", .role = Role::kTrainer, .incarnation = 1});
    tell(RolledBack{"t", 0, -1, "", "", ""});
    for (int64_t i = 0; i < workers; ++i)
      tell(WorkerUp{.worker = fmt::format("w{}", i), .slots = kSlots});
    for (const Stage& stage : only<Stage>(tell(published(0))))
      for (const Switch& change :
           only<Switch>(tell(Staged{stage.worker, 0, stage.version, stage.digest})))
        tell(Installed{change.worker, 0, change.version, change.digest});
  }

  static constexpr int64_t kSlots = 8;
  static Config config_for(int64_t workers) {
    Config config;
    config.group_size = 8;
    config.datasets = {{.prompts_per_step = 2 * workers}};
    config.steps = 100;
    config.retries.env_failed = 1000;
    // The breaker alone judges here.
    config.quarantine.faults = 1 << 20;
    return config;
  }

  Actions tell(const Event& event) { return decide(state, event, seconds(1)); }

  // All that runs is answered, what `fails` says by a failure; ends where the run halts.
  template <class Fails>
  void answer_all(const Fails& fails) {
    std::vector<std::pair<WorkId, Lease>> leases;
    for (const auto& entry : state.leases.in_order()) leases.push_back(entry);
    for (size_t i = leases.size(); i > 1; --i)
      std::swap(leases[i - 1], leases[static_cast<size_t>(rng.below(static_cast<int64_t>(i)))]);
    for (const auto& [work, lease] : leases) {
      if (!state.halted.empty()) return;
      const bool failed = fails(lease.worker);
      ++answered;
      tell(AttemptResult{.worker = lease.worker,
                         .lease = {work.member, lease.attempt},
                         .lane = work.lane,
                         .outcome = failed ? Outcome::kEnvFailed : Outcome::kFinished,
                         .tokens = failed ? 0 : 5,
                         .min_version = 0,
                         .max_version = 0,
                         .reward = failed ? std::optional<double>() : work.member.member,
                         .reason = failed ? "no route to host" : ""});
    }
    EXPECT_EQ(find_violation(state), std::nullopt);
  }
};

// A window of 64 attempts is of 64 workers at most: of more than 128 it never heard of more than
// half.
TEST(Breaker, HearsOfMoreThanHalfOfAThousandWorkers) {
  for (const int64_t workers : {129, 1000}) {
    Fleet fleet(workers);
    const auto fails = [&](const WorkerId&) { return fleet.rng.chance(0.7); };
    fleet.answer_all(fails);
    EXPECT_NE(fleet.state.halted.find("attempts ended as env_failed; the last one: no route"),
              std::string::npos)
        << workers << ": " << fleet.state.halted;
    EXPECT_GE(fleet.answered, 4 * workers);
    EXPECT_LT(fleet.answered, 5 * workers);
  }
}

// However often they fail: it is not everybody.
TEST(Breaker, LessThanHalfOfAThousandWorkersEndNothing) {
  for (const int64_t workers : {129, 1000}) {
    Fleet fleet(workers);
    const auto is_bad = [&](const WorkerId& id) {
      return std::stoll(id.substr(1)) * 20 < workers * 9;
    };
    for (int round = 0; round < 2; ++round) fleet.answer_all(is_bad);
    EXPECT_EQ(fleet.state.halted, "") << workers;
    EXPECT_EQ(fleet.state.breakers.at({Role::kRollout, {}}).window.size(), 4 * workers);
  }
}

}  // namespace
}  // namespace tailrace::scheduler
