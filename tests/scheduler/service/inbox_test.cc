// Messages, answers of the store and new sessions in an order that a run only seldom has.
#include "scheduler/service/inbox.h"

#include <fstream>
#include <semaphore>

#include "core/wire/admission.h"
#include "scheduler/state/expects.h"
#include "scheduler/store/trajectory_store.h"
#include "tests/core/wire/rude_peer.h"
#include "tests/scheduler/decide/harness.h"
#include "tests/scheduler/service/fake_workers.h"
#include "tests/scheduler/store/files.h"

namespace tailrace::scheduler {
namespace {

// A reward worker "r" that is asked for a verdict, and an inbox that hears what the test says. The
// store does one thing at a time: it stands still until finish_one().
struct InboxTest : testing::Test {
  InboxTest() {
    h.add_rollout("w", 2);
    up(/*process=*/1);
    const auto grants = only<Grant>(publish(h, 0));
    granted = grants.at(1);
    AttemptResult sample = h.result(grants.at(0), 0.0);
    sample.reward.reset();
    sample.needs_verifier = true;
    inbox_feed(sample);
  }
  ~InboxTest() override { proceed.release(1000); }

  static TrajectoryStore open_store(const std::filesystem::path& folder) {
    return TrajectoryStore::open(folder, 4096).value();
  }
  void inbox_feed(const Event& event) {
    if (const auto* reward = std::get_if<Reward>(&event)) ++num_verdicts, judged = reward->judged;
    if (const auto* result = std::get_if<AttemptResult>(&event))
      ++num_results, judged = result->judged;
    const Actions actions = h.tell(event);
    for (const Verify& verify : only<Verify>(actions)) asked = verify;
    for (const Stage& install : only<Stage>(actions)) {
      if (install.worker == "w")
        inbox_feed(Staged{"w", install.policy, install.version, install.digest});
    }
    for (const Switch& change : only<Switch>(actions)) {
      if (change.worker == "w")
        inbox_feed(Installed{"w", change.policy, change.version, change.digest});
    }
  }

  // "w" is a process that talks to the server; what it says goes to the inbox. False: in vain.
  template <class Condition>
  bool serve_until(const Condition& condition) {
    const auto deadline = std::chrono::steady_clock::now() + seconds(20);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      for (auto& event : server.receive(std::chrono::milliseconds(5))) {
        sequence = std::max(sequence, sequence_of(event));
        inbox.take(std::move(event));
      }
      inbox.acknowledge();  // as if all were committed
    }
    return true;
  }
  static uint64_t sequence_of(const wire::ServerEvent& event) {
    const auto* incoming = std::get_if<wire::Incoming>(&event);
    return incoming == nullptr ? 0 : incoming->sequence;
  }
  void join(uint64_t attempt) {
    w.say_hello(Role::kRollout, "w", /*incarnation=*/0, attempt);
    ASSERT_TRUE(serve_until([&] { return w.is_welcome(); }));
  }
  wire::TrajectoryResult result() const {
    Trajectory trajectory = fakes::make_trajectory(granted.lease, granted.lane, /*version=*/0);
    trajectory.reward = 1.0;
    return {wire::encode_trajectory(trajectory)};
  }
  bool hears(uint64_t count) {
    const uint64_t last = sequence + count;
    return serve_until([&] { return sequence == last; });
  }
  // What comes of it would have come by then.
  uint64_t acknowledged_after_a_while() {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
    EXPECT_TRUE(serve_until([&] { return std::chrono::steady_clock::now() > until; }));
    return w.acknowledged();
  }
  void fetch(int64_t request) {
    inbox.take(wire::Incoming{"t", ++sequence,
                              wire::Fetch{.request = request,
                                          .bodies = {{asked.lane, asked.lease}},
                                          .offset = 0,
                                          .max_bytes = 1}});
    inbox.acknowledge();
  }

  void up(uint64_t process) {
    inbox.take(wire::WorkerUp{.hello = {.role = Role::kReward,
                                        .worker = "r",
                                        .incarnation = process,
                                        .pid = 1,
                                        .slots = 4,
                                        .numerics_class = ""},
                              .session = process});
  }
  void up_with_class(const std::string& numerics_class) {
    inbox.take(wire::WorkerUp{.hello = {.role = Role::kRollout,
                                        .worker = "x",
                                        .incarnation = 1,
                                        .pid = 1,
                                        .slots = 1,
                                        .numerics_class = numerics_class},
                              .session = ++sequence});
  }
  int64_t lines_with(const std::string& text) const {
    std::ifstream file(folder.path() / "log");
    int64_t count = 0;
    for (std::string line; std::getline(file, line);) count += line.find(text) != line.npos;
    return count;
  }
  // The verdict that was asked for last.
  void say_verdict() {
    inbox.take(wire::Incoming{"r", ++sequence,
                              wire::Verdict{.lease = asked.lease,
                                            .lane = asked.lane,
                                            .verify_attempt = asked.verify_attempt,
                                            .reward = 1.0,
                                            .metrics = {{"m", 1.0}},
                                            .failure = ""}});
  }
  // The store's oldest request is done, and its answer heard.
  void finish_one() {
    ASSERT_TRUE(done.try_acquire_for(seconds(20)));
    store.run_answers();
    proceed.release();
  }

  Harness h{small_config(1, 2)};
  ScratchFolder folder;
  RunPaths paths{folder.path()};
  Log log{"test", folder.path() / "log"};
  std::string endpoint = fmt::format("ipc:///tmp/tailrace-test-{}", ::getpid());
  wire::WorkerServer server{endpoint, {}};
  std::counting_semaphore<> done{0}, proceed{0};
  StoreActor store{open_store(paths.trajectories()), seconds(60), [this] {
                     done.release();
                     proceed.acquire();
                   }};
  RunMetrics metrics{paths, h.policy(), 0, {}, {}, log};
  Timeline timeline{paths, h.state, /*rows_per_step=*/0, log};
  Inbox inbox{h.state,       [this](const Event& event) { inbox_feed(event); },
              store,         server,
              metrics,       timeline,
              /*judge=*/"m", log};
  wire::RudePeer w{endpoint};
  Verify asked;
  Grant granted;
  uint64_t sequence = 0;
  int num_verdicts = 0, num_results = 0;
  std::optional<double> judged;  // of the last of either
};

// What groups are judged by stands among what was measured: by a verifier, or by the environment.
TEST_F(InboxTest, TellsWhatGroupsAreJudgedBy) {
  judged.reset();
  say_verdict();
  finish_one();
  EXPECT_EQ(judged, 1.0);
  const auto say = [&](MetricList measured) {
    Trajectory trajectory = fakes::make_trajectory(granted.lease, granted.lane, /*version=*/0);
    trajectory.reward = 1.0;
    trajectory.metrics = std::move(measured);
    inbox.take(wire::Incoming{"w", ++sequence,
                              wire::TrajectoryResult{wire::encode_trajectory(trajectory)}});
    finish_one();
  };
  say({{"other", 2.0}, {"m", 0.25}});
  EXPECT_EQ(num_results, 2);
  EXPECT_EQ(judged, 0.25);
}

// Neither that message nor what its worker said after it: acknowledgements count up to a message.
TEST_F(InboxTest, NothingIsAcknowledgedBeforeItsBodyIsStored) {
  ASSERT_NO_FATAL_FAILURE(join(/*attempt=*/1));
  w.say(wire::Installed{0, 77, "x"});
  w.say(result());
  w.say(wire::Installed{0, 78, "x"});
  ASSERT_TRUE(hears(3));
  EXPECT_EQ(acknowledged_after_a_while(), 1u);
  finish_one();
  EXPECT_EQ(num_results, 2) << "it and the one of the beginning";
  EXPECT_EQ(acknowledged_after_a_while(), 3u);
}

TEST_F(InboxTest, ACopyOfAResultThatIsAtTheStoreIsDropped) {
  ASSERT_NO_FATAL_FAILURE(join(/*attempt=*/1));
  w.say(result());
  w.say(result());
  ASSERT_TRUE(hears(2));
  finish_one();
  EXPECT_TRUE(store.idle()) << "it was put twice";
  EXPECT_EQ(num_results, 2);
  EXPECT_EQ(acknowledged_after_a_while(), 2u);
}

// The disk is slow, the worker was given up meanwhile and came back.
TEST_F(InboxTest, ACopyInANewSessionWaitsForTheSameAnswer) {
  ASSERT_NO_FATAL_FAILURE(join(/*attempt=*/1));
  w.say(result());
  ASSERT_TRUE(hears(1));
  ASSERT_NO_FATAL_FAILURE(join(/*attempt=*/2));
  w.say(result());
  ASSERT_TRUE(hears(1));
  EXPECT_EQ(acknowledged_after_a_while(), 0u);
  finish_one();
  EXPECT_TRUE(store.idle()) << "it was put twice";
  EXPECT_EQ(num_results, 2);
  EXPECT_EQ(acknowledged_after_a_while(), 1u);
}

TEST_F(InboxTest, TheSchedulerHearsWhereAWorkerIs) {
  inbox.take(wire::WorkerUp{.hello = {.role = Role::kRollout,
                                      .worker = "far",
                                      .incarnation = 5,
                                      .pid = 0,
                                      .slots = 4,
                                      .numerics_class = "cpu-test",
                                      .joined = true,
                                      .pool = "large",
                                      .hardware = "cpu",
                                      .cluster = "east",
                                      .host = "gpu-7.east"},
                            .session = 9});
  EXPECT_EQ(h.state.workers.at("far").site, (Site{.pool = "large",
                                                  .hardware = "cpu",
                                                  .cluster = "east",
                                                  .numerics_class = "cpu-test",
                                                  .host = "gpu-7.east"}));
  const std::string said = read_file(folder.path() / "log").value();
  EXPECT_NE(said.find("far has joined: rollout pid=0 slots=4 cpu-test pool=large cluster=east "
                      "host=gpu-7.east\n"),
            std::string::npos)
      << said;
}

TEST_F(InboxTest, SoManyFetchesWaitAndNoMore) {
  for (int64_t i = 0; i <= wire::kMaxFetches; ++i) fetch(i);
  for (int64_t i = 0; i < wire::kMaxFetches; ++i) {
    ASSERT_FALSE(store.idle()) << i;
    finish_one();
  }
  EXPECT_TRUE(store.idle());
  fetch(99);
  EXPECT_FALSE(store.idle()) << "those before are answered";
}

// Who asked in an older session has forgotten that it did.
TEST_F(InboxTest, FetchesOfAnOlderSessionDoNotCount) {
  const auto finish = [&](int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      ASSERT_FALSE(store.idle()) << i;
      finish_one();
    }
  };
  for (int64_t i = 0; i < wire::kMaxFetches; ++i) fetch(i);
  inbox.take(wire::WorkerUp{.hello = {.role = Role::kTrainer,
                                      .worker = "t",
                                      .incarnation = 1,
                                      .pid = 1,
                                      .slots = 1,
                                      .numerics_class = ""},
                            .session = 9});
  for (int64_t i = 0; i < wire::kMaxFetches; ++i) fetch(i);
  finish(wire::kMaxFetches);
  fetch(99);  // the answers were to the session before: as many wait as may
  finish(wire::kMaxFetches);
  EXPECT_TRUE(store.idle());
}

TEST_F(InboxTest, ACopyOfWhatIsAtTheStoreIsDropped) {
  say_verdict();
  say_verdict();
  finish_one();
  EXPECT_TRUE(store.idle());
  EXPECT_EQ(num_verdicts, 1);
}

// The disk took longer than a verdict may: it was asked for again, of the same process.
TEST_F(InboxTest, ANewerVerdictIsTakenWhileAFencedOneIsAtTheStore) {
  say_verdict();
  const int32_t before = asked.verify_attempt;
  for (int i = 0; i < 10 && asked.verify_attempt == before; ++i) {
    h.now += seconds(61);
    inbox_feed(Tick{});
  }
  ASSERT_GT(asked.verify_attempt, before);
  say_verdict();
  say_verdict();  // a copy
  finish_one();
  EXPECT_FALSE(store.idle()) << "the newer one was dropped";
  finish_one();
  EXPECT_TRUE(store.idle());
  EXPECT_FALSE(
      expects_verdict(h.state, {"r", asked.lease, asked.lane, asked.verify_attempt, 1.0, ""}))
      << "its reward counts";
}

// The answer to the session before comes while the store has the same body of this one.
TEST_F(InboxTest, AlsoWhenTheSessionBeforeIsAnsweredMeanwhile) {
  say_verdict();
  const int32_t before = asked.verify_attempt;
  up(/*process=*/2);
  h.now += seconds(1);  // in which another verifier might have come
  inbox_feed(Tick{});
  ASSERT_GT(asked.verify_attempt, before) << "or nothing is asked of the new process";
  say_verdict();
  finish_one();
  EXPECT_FALSE(store.idle());
  say_verdict();
  finish_one();
  EXPECT_TRUE(store.idle()) << "a copy was stored";
  EXPECT_EQ(num_verdicts, 2) << "one of each process";
}

// Whether rule 3 holds is not hidden by a flood of sessions, of which the log tells a part.
TEST_F(InboxTest, AForeignNumericsClassIsToldOfOnce) {
  for (uint64_t i = 1; i <= 3 * wire::kMaxWorkers; ++i) up(i);
  EXPECT_LT(lines_with("r is here"), 3 * wire::kMaxWorkers) << "else this is no flood";
  for (const char* name : {"", "ours", "ours", "foreign", "ours", "foreign"}) up_with_class(name);
  EXPECT_EQ(lines_with("x computes as foreign, others as ours"), 1);
  EXPECT_EQ(lines_with("computes as"), 1);
  for (int i = 0; i < 1000; ++i) up_with_class(fmt::format("made-up-{}", i));
  EXPECT_LT(lines_with("computes as"), 20);
}

}  // namespace
}  // namespace tailrace::scheduler
