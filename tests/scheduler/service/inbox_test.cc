// Messages, answers of the store and new sessions in an order that a run only seldom has.
#include "scheduler/service/inbox.h"

#include <semaphore>

#include "scheduler/store/trajectory_store.h"
#include "tests/scheduler/decide/harness.h"
#include "tests/scheduler/store/files.h"

namespace tailrace::scheduler {
namespace {

// A reward worker "r" that is asked for a verdict, and an inbox that hears what the test says. The
// store does one thing at a time: it stands still until finish_one().
struct InboxTest : testing::Test {
  InboxTest() {
    h.add_rollout("w", 2);
    up(/*process=*/1);
    AttemptResult sample = h.result(only<Grant>(publish(h, 0)).at(0), 0.0);
    sample.reward.reset();
    sample.needs_verifier = true;
    inbox_feed(sample);
  }
  ~InboxTest() override { proceed.release(1000); }

  static TrajectoryStore open_store(const std::filesystem::path& folder) {
    return TrajectoryStore::open(folder, 4096).value();
  }
  void inbox_feed(const Event& event) {
    if (std::holds_alternative<Reward>(event)) ++num_verdicts;
    for (const Verify& verify : only<Verify>(h.tell(event))) asked = verify;
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
    done.acquire();
    store.run_answers();
    proceed.release();
  }

  Harness h{small_config(1, 2)};
  ScratchFolder folder;
  RunPaths paths{folder.path()};
  Log log{"test", folder.path() / "log"};
  wire::WorkerServer server{fmt::format("ipc:///tmp/tailrace-test-{}", ::getpid()), {}};
  std::counting_semaphore<> done{0}, proceed{0};
  StoreActor store{open_store(paths.trajectories()), seconds(60), [this] {
                     done.release();
                     proceed.acquire();
                   }};
  RunMetrics metrics{paths, h.policy(), 0, log};
  Inbox inbox{h.state, [this](const Event& event) { inbox_feed(event); }, store, server, metrics,
              log};
  Verify asked;
  uint64_t sequence = 0;
  int num_verdicts = 0;
};

TEST_F(InboxTest, ACopyOfWhatIsAtTheStoreIsDropped) {
  say_verdict();
  say_verdict();
  finish_one();
  EXPECT_TRUE(store.idle());
  EXPECT_EQ(num_verdicts, 1);
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

}  // namespace
}  // namespace tailrace::scheduler
