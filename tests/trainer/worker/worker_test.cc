#include "trainer/worker/worker.h"

#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <optional>

#include <gtest/gtest.h>

#include "core/base/file.h"
#include "core/collective/gloo.h"
#include "core/weights/manifest.h"
#include "core/weights/proved_weights.h"
#include "core/wire/server.h"
#include "core/wire/trajectory_codec.h"
#include "core/wire/worker_client.h"
#include "tests/trainer/fixtures.h"
#include "tests/trainer/worker/fake_scheduler.h"
#include "tests/trainer/worker/stages.h"
#include "trainer/policy_trainer.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

TEST_F(TrainerWorkerTest, RunsAllStepsFromWarmUpToTheLastCheckpoint) {
  FakeScheduler scheduler(endpoint_);
  scheduler.on_message = [](auto&, const wire::Message& m) { return is_durable(m, 4); };
  TrainerWorkerConfig config = this->config();
  config.stages = {testing::sft_stage(write_rows(), 20)};
  EXPECT_EQ(serve(config, scheduler), 0);

  auto ready = scheduler.all<wire::TrainerReady>();
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].version, -1);
  auto progress = scheduler.all<wire::Progress>();
  ASSERT_FALSE(progress.empty());
  EXPECT_EQ(progress.back().done, 10);
  EXPECT_EQ(progress.back().total, 10);
  auto published = scheduler.all<wire::Published>();
  ASSERT_EQ(published.size(), 5u);
  for (size_t v = 0; v < 5; ++v) EXPECT_EQ(published[v].version, static_cast<int64_t>(v));
  EXPECT_GT(testing::metric(published[1].metrics, "policy/grad_norm"), 0);
  std::vector<int64_t> durable;
  for (const wire::Durable& d : scheduler.all<wire::Durable>()) durable.push_back(d.version);
  EXPECT_EQ(durable, (std::vector<int64_t>{0, 2, 4}));
  // What it published can be proved.
  EXPECT_TRUE(prove_weights(config.run.weights() / published[4].manifest, published[4].digest,
                            ParameterLayout(config.model)));
}

// A rank does not know the version until it has met the others: its batch waits.
TEST_F(TrainerWorkerTest, RanksTrainTheWeightsOfOne) {
  std::map<int64_t, Digest> alone;
  for (const size_t ranks : {1, 2}) {
    FakeScheduler scheduler(endpoint_ + std::to_string(ranks));
    scheduler.ranks = ranks;
    scheduler.on_message = [](auto&, const wire::Message& m) { return is_durable(m, 4); };
    TrainerWorkerConfig config = this->config(ranks == 1 ? "one" : "two");
    config.endpoint = endpoint_ + std::to_string(ranks);
    config.train.gradient_slots = 2;
    config.train.ranks = static_cast<int64_t>(ranks);
    std::future<ExitCode> other;
    if (ranks == 2) {
      TrainerWorkerConfig second = config;
      second.worker = "trainer-1";
      second.rank = 1;
      other = std::async(std::launch::async, [this, second] {
        Log log("trainer-1", dir_.path() / "log1");
        SteadyClock clock;
        return run_trainer_worker(second, log, clock);
      });
    }
    EXPECT_EQ(serve(config, scheduler), 0);
    if (other.valid()) {
      EXPECT_EQ(other.get(), kExitDone);
    }
    ASSERT_EQ(scheduler.digests.size(), 5u);
    if (ranks == 1) alone = scheduler.digests;
    EXPECT_EQ(scheduler.digests, alone);
  }
}

// Rank 1 as far as the end of the first step, whose samples have no signal: it goes before it has
// compared its weights.
void leave_before_the_comparison(const TrainerWorkerConfig& config) {
  wire::WorkerClient client({.role = Role::kTrainer,
                             .worker = config.worker,
                             .pid = 1,
                             .slots = 1,
                             .numerics_class = numerics_class(),
                             .rank = 1},
                            config.endpoint, config.link);
  std::optional<wire::FormRanks> told;
  while (!told) {
    const auto message = client.receive(10s);
    ASSERT_TRUE(message);
    if (const auto* form = std::get_if<wire::FormRanks>(&*message)) told = *form;
  }
  const GlooOptions place{
      .folder = config.run.ranks() / fmt::format("{:016x}", told->formation), .rank = 1, .size = 2};
  arrive(place);
  while (missing_rank(place)) std::this_thread::sleep_for(5ms);
  const std::unique_ptr<Collective> ranks = join_ranks(place);
  PolicyTrainer trainer({}, config.model, config.train, config.max_sequence_tokens);
  trainer.reset_optimizer(config.optim);
  const std::string own_class = numerics_class();
  (void)ranks->gather(std::as_bytes(std::span(own_class)));
  int64_t version = -1;
  ranks->broadcast(std::as_writable_bytes(std::span(&version, 1)));
  (void)ranks->gather({});
  trainer.join(ranks.get());
  TrainBatch nothing;
  (void)trainer.policy_step(nothing, version, {});
}

// Nothing has changed: rank 0 waits, and the step comes again.
TEST_F(TrainerWorkerTest, ARankThatGoesBeforeTheComparisonCostsNoStep) {
  FakeScheduler scheduler(endpoint_);
  scheduler.ranks = 2;
  scheduler.reward = 1;
  scheduler.on_message = [](auto&, const wire::Message& m) { return is_durable(m, 4); };
  TrainerWorkerConfig config = this->config();
  config.train.gradient_slots = 2;
  config.train.ranks = 2;
  TrainerWorkerConfig second = config;
  second.worker = "trainer-1";
  second.rank = 1;
  auto other = std::async(std::launch::async, [this, second] {
    leave_before_the_comparison(second);
    Log log("trainer-1", dir_.path() / "log1");
    SteadyClock clock;
    return run_trainer_worker(second, log, clock);
  });
  EXPECT_EQ(serve(config, scheduler), kExitDone);
  EXPECT_EQ(other.get(), kExitDone);
  EXPECT_EQ(scheduler.digests.size(), 5u);
  EXPECT_NE(read_file(dir_.path() / "log").value().find("waits for all ranks"), std::string::npos);
}

// Rank 0 is in the middle of a step whose batch rank 1 has not got, and never will: its session is
// over. The deadline of a rank is beyond that of the test.
TEST_F(TrainerWorkerTest, ASchedulerThatGoesBetweenTwoRanksCostsNoStep) {
  TrainerWorkerConfig config = this->config();
  config.train.gradient_slots = 2;
  config.train.ranks = 2;
  config.train.rank_seconds = 3600;
  TrainerWorkerConfig second = config;
  second.worker = "trainer-1";
  second.rank = 1;
  auto other = std::async(std::launch::async, [this, second] {
    Log log("trainer-1", dir_.path() / "log1");
    SteadyClock clock;
    return run_trainer_worker(second, log, clock);
  });
  auto leader = std::async(std::launch::async, [this, config] {
    Log log("trainer-0", dir_.path() / "log");
    SteadyClock clock;
    return run_trainer_worker(config, log, clock);
  });
  {
    FakeScheduler first(endpoint_);
    first.ranks = 2;
    first.dies_at = 2;
    first.run();
  }
  FakeScheduler scheduler(endpoint_);
  scheduler.ranks = 2;
  scheduler.formation = 0xbeef;
  scheduler.on_message = [](auto&, const wire::Message& m) { return is_durable(m, 4); };
  scheduler.run();
  EXPECT_EQ(leader.get(), kExitDone);
  EXPECT_EQ(other.get(), kExitDone);
  EXPECT_NE(read_file(dir_.path() / "log").value().find("waits for all ranks"), std::string::npos);
}

// It said that it is here, and died; the word of the next meeting is here already. The deadline of
// a rank is beyond that of the test.
TEST_F(TrainerWorkerTest, WhoIsDeadIsNotWaitedForWhereOthersMeet) {
  FakeScheduler scheduler(endpoint_);
  scheduler.ranks = 2;
  scheduler.formation_before = 0xdead;
  scheduler.on_message = [](auto&, const wire::Message& m) { return is_published(m, 1); };
  TrainerWorkerConfig config = this->config();
  config.train.gradient_slots = 2;
  config.train.ranks = 2;
  config.train.rank_seconds = 3600;
  arrive({.folder = config.run.ranks() / fmt::format("{:016x}", 0xdead), .rank = 1, .size = 2});
  TrainerWorkerConfig second = config;
  second.worker = "trainer-1";
  second.rank = 1;
  auto other = std::async(std::launch::async, [this, second] {
    Log log("trainer-1", dir_.path() / "log1");
    SteadyClock clock;
    return run_trainer_worker(second, log, clock);
  });
  EXPECT_EQ(serve(config, scheduler), kExitDone);
  EXPECT_EQ(other.get(), kExitDone);
}

TEST_F(TrainerWorkerTest, JudgesTokensByItsOwnNumericsClass) {
  for (const bool own : {true, false}) {
    FakeScheduler scheduler(endpoint_);
    scheduler.numerics_class = own ? numerics_class() : "cpu-other";
    scheduler.on_message = [](auto&, const wire::Message& m) { return is_published(m, 1); };
    EXPECT_EQ(serve(config(own ? "own" : "other"), scheduler), 0);
    const MetricList metrics = scheduler.all<wire::Published>().back().metrics;
    EXPECT_EQ(testing::metric(metrics, "mismatch/foreign_class_frac"), own ? 0 : 1);
    // What was recorded is of no policy, and only another class gives reason to doubt it.
    EXPECT_EQ(testing::metric(metrics, "mismatch/kl") > 0, !own);
  }
}

// The fake's batches are of version 0 in every step.
TEST_F(TrainerWorkerTest, AStepWithoutATokenYoungEnoughPublishesTheSameWeights) {
  FakeScheduler scheduler(endpoint_);
  scheduler.on_message = [](auto&, const wire::Message& m) { return is_durable(m, 4); };
  TrainerWorkerConfig config = this->config();
  config.max_staleness = 1;
  EXPECT_EQ(serve(config, scheduler), 0);
  const auto published = scheduler.all<wire::Published>();
  ASSERT_EQ(published.size(), 5u);
  for (size_t v = 1; v < 5; ++v) {
    // Step v starts from version v - 1.
    const bool trained = v - 1 <= 1;
    EXPECT_EQ(testing::metric(published[v].metrics, "policy/updates"), trained) << v;
    EXPECT_EQ(testing::metric(published[v].metrics, "staleness/masked_frac"), !trained) << v;
    EXPECT_EQ(published[v].digest != published[v - 1].digest, trained) << v;
  }
  const std::string log = read_file(dir_.path() / "log").value();
  EXPECT_EQ(log.find("step=2 without"), std::string::npos) << log;
  const char* said = "step=3 without an update: all that has a signal is older than version 1";
  EXPECT_NE(log.find(said), std::string::npos) << log;
}

// What comes together is a matter of chance; what is learned is not.
TEST_F(TrainerWorkerTest, TheSameWeightsComeOutWhateverPartsABatchComesIn) {
  std::optional<Digest> expected;
  int run = 0;
  for (const std::vector<size_t>& parts : std::vector<std::vector<size_t>>{
           {}, {1}, {1, 1}, {2}, {1, 1, 1}, {3}}) {  // the last two end with an empty part
    FakeScheduler scheduler(endpoint_ + std::to_string(run));
    scheduler.parts = parts;
    scheduler.on_message = [](auto&, const wire::Message& m) { return is_durable(m, 4); };
    TrainerWorkerConfig config = this->config(("run" + std::to_string(run)).c_str());
    config.endpoint = endpoint_ + std::to_string(run++);
    config.streams = true;
    ASSERT_EQ(serve(config, scheduler), 0);
    const auto published = scheduler.all<wire::Published>();
    ASSERT_EQ(published.size(), 5u);
    EXPECT_EQ(testing::metric(published[4].metrics, "policy/updates"), 1);
    EXPECT_GT(testing::metric(published[4].metrics, "reward/std"), 0);
    if (!expected) expected = published[4].digest;
    EXPECT_EQ(published[4].digest, *expected) << run;
  }
}

// A list that begins anew between two parts: nothing counts twice.
TEST_F(TrainerWorkerTest, AListThatBeginsAnewCountsOnce) {
  std::map<int, Digest> digests;
  for (const int repeats : {0, 1}) {
    const std::string endpoint = endpoint_ + std::to_string(repeats);
    FakeScheduler scheduler(endpoint);
    scheduler.parts = {1};
    scheduler.repeats = repeats;
    scheduler.on_message = [](auto&, const wire::Message& m) { return is_published(m, 2); };
    TrainerWorkerConfig config = this->config(("run" + std::to_string(repeats)).c_str());
    config.endpoint = endpoint;
    config.streams = true;
    ASSERT_EQ(serve(config, scheduler), 0);
    digests[repeats] = scheduler.digests.at(2);
  }
  EXPECT_EQ(digests.at(1), digests.at(0));
}

// With a warm-up, with a reference, by groups; and again when it comes back to its checkpoint.
TEST_F(TrainerWorkerTest, TakesTheMemoryThatItSays) {
  for (const bool streams : {false, true}) {
    TrainerWorkerConfig config = this->config(streams ? "streams" : "whole");
    config.stages = {testing::sft_stage(write_rows())};
    config.streams = streams;
    config.train.gradient_slots = 3;
    config.algo.kl.coef = 0.1;
    config.algo.kl.target = KlTarget::kReference;
    for (const int64_t until : {2, 4}) {
      config.endpoint = fmt::format("{}{}{}", endpoint_, streams, until);
      FakeScheduler scheduler(config.endpoint);
      if (streams) scheduler.parts = {1};
      scheduler.on_message = [&](auto&, const wire::Message& m) { return is_durable(m, until); };
      const int64_t before = Buffer::total_bytes();
      Buffer::begin_peak();
      ASSERT_EQ(serve(config, scheduler), 0);
      EXPECT_EQ(Buffer::peak_bytes() - before, total_bytes(trainer_memory(config).host))
          << "streams " << streams << " until " << until;
    }
  }
}

TEST_F(TrainerWorkerTest, WithoutANumberOfStepsItTrainsUntilShutDown) {
  FakeScheduler scheduler(endpoint_);
  scheduler.on_message = [](auto&, const wire::Message& m) { return is_durable(m, 6); };
  TrainerWorkerConfig config = this->config();
  config.steps = 0;
  EXPECT_EQ(serve(config, scheduler), 0);
  EXPECT_EQ(scheduler.all<wire::Published>().size(), 7u);
  EXPECT_NE(scheduler.digests.at(6), scheduler.digests.at(5)) << "the rate fell to nothing";
}

// Linear to 0, with an update a step: the first has the whole rate, and the last of N an N-th of
// it.
TEST_F(TrainerWorkerTest, AScheduleEndsBehindTheLastStep) {
  int socket = 0;
  const auto rates = [&](TrainerWorkerConfig config, int64_t steps, int64_t until) {
    config.endpoint = fmt::format("{}{}", endpoint_, ++socket);
    config.steps = steps;
    config.optim.schedule = LrSchedule::kLinear;
    config.optim.min_lr_ratio = 0;
    FakeScheduler scheduler(config.endpoint);
    scheduler.steps = steps;
    if (config.streams) scheduler.parts = {1};
    scheduler.on_message = [=](auto&, const wire::Message& m) { return is_durable(m, until); };
    scheduler.save_interval = 1;
    EXPECT_EQ(serve(config, scheduler), 0);
    std::vector<double> found;
    for (const wire::Published& published : scheduler.all<wire::Published>()) {
      for (const auto& [name, value] : published.metrics)
        if (name == "policy/lr") found.push_back(value / config.optim.lr);
    }
    return found;
  };
  EXPECT_EQ(rates(config("one"), 1, 1), (std::vector<double>{1}));
  EXPECT_EQ(rates(config("four"), 4, 4), (std::vector<double>{1, 0.75, 0.5, 0.25}));
  EXPECT_EQ(rates(config("twice"), 4, 2), (std::vector<double>{1, 0.75}));
  EXPECT_EQ(rates(config("twice"), 4, 4), (std::vector<double>{0.5, 0.25}));
  // By the new length from there on.
  EXPECT_EQ(rates(config("longer"), 4, 2), (std::vector<double>{1, 0.75}));
  EXPECT_EQ(rates(config("longer"), 8, 4), (std::vector<double>{0.75, 0.625}));
  TrainerWorkerConfig streams = config("streams");
  streams.streams = true;
  EXPECT_EQ(rates(streams, 4, 4), (std::vector<double>{1, 0.75, 0.5, 0.25}));
  // Over the steps that move the policy, where a critic learns alone first.
  TrainerWorkerConfig critic = config("critic");
  critic.critic = CriticOptions{.warmup_steps = 2};
  critic.algo.advantage = AdvantageKind::kGae;
  critic.algo.filter_zero_signal = ZeroSignalFilter::kNone;
  EXPECT_EQ(rates(critic, 4, 4), (std::vector<double>{1, 0.5}));
  // From the policy's first update on, also where the data ends before the steps that were planned,
  // and where the run goes on behind it.
  TrainerWorkerConfig shorter = critic;
  shorter.schedule_steps = 8;
  shorter.run = config("shorter").run;
  EXPECT_EQ(rates(shorter, 4, 4), (std::vector<double>{1, 0.5}));
  shorter.run = config("shorter_twice").run;
  EXPECT_EQ(rates(shorter, 4, 3), (std::vector<double>{1}));
  EXPECT_EQ(rates(shorter, 4, 4), (std::vector<double>{0.5}));
}

TEST_F(TrainerWorkerTest, ComesBackWithItsCheckpointAndGivesTheSameWeights) {
  FakeScheduler straight(endpoint_);
  straight.on_message = [](auto&, const wire::Message& m) { return is_durable(m, 4); };
  ASSERT_EQ(serve(config("straight"), straight), 0);

  // Ends after version 3; the checkpoint is of version 2.
  TrainerWorkerConfig config = this->config("broken");
  config.endpoint = "ipc://" + (dir_.path() / "t.sock").string();
  {
    FakeScheduler first(config.endpoint);
    first.on_message = [](auto&, const wire::Message& m) { return is_published(m, 3); };
    ASSERT_EQ(serve(config, first), 0);
  }
  config.endpoint = "ipc://" + (dir_.path() / "u.sock").string();
  FakeScheduler second(config.endpoint);
  second.on_message = [](auto&, const wire::Message& m) { return is_durable(m, 4); };
  ASSERT_EQ(serve(config, second), 0);
  auto ready = second.all<wire::TrainerReady>();
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].version, 2);
  EXPECT_EQ(ready[0].digest, straight.digests.at(2));
  EXPECT_TRUE(fs::exists(config.run.weights() / ready[0].manifest));
  EXPECT_EQ(second.digests.at(3), straight.digests.at(3));
  EXPECT_EQ(second.digests.at(4), straight.digests.at(4));
}

TEST_F(TrainerWorkerTest, SavesTheVersionThatItIsAskedForAndNoOther) {
  FakeScheduler scheduler(endpoint_);
  scheduler.save_interval = 100;
  scheduler.on_message = [](FakeScheduler& s, const wire::Message& m) {
    if (is_published(m, 1)) s.send(wire::Save{.version = 1});
    if (is_published(m, 2)) s.send(wire::Save{.version = 1});  // too late: it has gone on
    if (is_published(m, 3)) s.send(wire::Save{.version = 3});
    return is_durable(m, 3);
  };
  EXPECT_EQ(serve(config(), scheduler), 0);
  EXPECT_TRUE(fs::exists(config().run.checkpoints() / "step_000001"));
  EXPECT_FALSE(fs::exists(config().run.checkpoints() / "step_000002"));
  EXPECT_TRUE(fs::exists(config().run.checkpoints() / "step_000003"));
}

TEST_F(TrainerWorkerTest, KeepsTheReferencePolicyThroughARestart) {
  TrainerWorkerConfig config = this->config();
  config.algo.kl.coef = 0.1;
  auto kl_at = [&](const char* socket, int64_t stop) {
    config.endpoint = "ipc://" + (dir_.path() / socket).string() + ".sock";
    FakeScheduler scheduler(config.endpoint);
    scheduler.on_message = [&](auto&, const wire::Message& m) { return is_durable(m, stop); };
    EXPECT_EQ(serve(config, scheduler), 0);
    return testing::metric(scheduler.all<wire::Published>().back().metrics, "policy/kl_ref");
  };
  kl_at("a", 2);
  EXPECT_GT(kl_at("b", 4), 0);
}

TEST_F(TrainerWorkerTest, WhatAPersonMustMendIsSaidToTheSchedulerAndEndsWithStatusTwo) {
  auto failure = [&](const char* socket, TrainerWorkerConfig config) {
    config.endpoint = "ipc://" + (dir_.path() / socket).string() + ".sock";
    FakeScheduler scheduler(config.endpoint);
    scheduler.on_message = [](auto&, const wire::Message& m) {
      return std::holds_alternative<wire::WorkerFailed>(m);
    };
    EXPECT_EQ(serve(config, scheduler), 2);
    auto failed = scheduler.all<wire::WorkerFailed>();
    return failed.empty() ? std::string() : failed[0].reason;
  };
  TrainerWorkerConfig bad_row = config("a");
  bad_row.stages = {testing::sft_stage(write_rows("{\"input_ids\": [77, 1]}\n"))};
  EXPECT_NE(failure("a", bad_row).find("rows.jsonl:41"), std::string::npos);
  TrainerWorkerConfig no_model = config("b");
  no_model.model_dir = dir_.path() / "missing";
  EXPECT_NE(failure("b", no_model).find("missing"), std::string::npos);
  TrainerWorkerConfig no_room = config("c");
  fs::create_directories(no_room.run.root);
  std::ofstream(no_room.run.weights()) << "a file where a folder must be";
  EXPECT_NE(failure("c", no_room).find("version 0"), std::string::npos);
}

TEST_F(TrainerWorkerTest, ASilentSchedulerIsGivenUp) {
  TrainerWorkerConfig config = this->config();
  config.patience = 300ms;
  config.link.linger = 10ms;
  Log log("trainer-0", dir_.path() / "log");
  SteadyClock clock;
  EXPECT_EQ(run_trainer_worker(config, log, clock), kExitFailed);
}

}  // namespace
}  // namespace tailrace
