// Bodies that are larger than a message may be: who reads their tokens, and how they reach the
// trainer.
#include "core/wire/trajectory_codec.h"
#include "tests/scheduler/service/allocation_watch.h"
#include "tests/scheduler/service/script.h"
#include "tests/scheduler/service/test_run.h"

namespace tailrace::scheduler {
namespace {

using fakes::FakeReward;
using fakes::FakeRollout;
using std::chrono::milliseconds;

constexpr int64_t kPiece = int64_t{4} << 20;  // core/wire/README.md
constexpr int kTokens = 600'011;              // about 5.5 MB, and a size that nothing else has
constexpr size_t kMark = kTokens * sizeof(TokenId);

struct LargeBodies : testing::Test {
  LargeBodies() : run(1), log("scheduler", run.folder.path() / "log") {
    run.options.config.eval.prompts = 0;
    run.options.num_samples = 0;
    service = run.make_service(log);
    w0.num_tokens = w1.num_tokens = kTokens;
    loop = std::thread([this] {
      allocations_of(kMark);  // from now on
      result = run_to_its_end(*service);
      marks_of_scheduler = allocations_of(0);
    });
    w0.start();
    w1.start();
    r0.start();
  }
  ~LargeBodies() override {
    service->request_stop();
    if (loop.joinable()) loop.join();
  }

  wire::Batch first_batch() {
    trainer.expect<wire::Welcome>();
    trainer.say(wire::TrainerReady{.version = -1, .digest = ""});
    trainer.say(wire::Published{0, 0, "zero", "m", {}});
    trainer.say(wire::Durable{0, 0, 0, "c"});
    trainer.say(wire::TrainerWants{0, 1});
    auto batch = trainer.expect<wire::Batch>();
    for (const wire::Batch::Item& item : batch.items) {
      ids.push_back({Lane::kTrain, item.lease});
      total += item.bytes;
    }
    return batch;
  }
  void end_the_run() {
    trainer.say(wire::Published{0, 1, "one", "m", {}});
    trainer.expect<wire::Save>();
    trainer.say(wire::Durable{0, 1, 1, "c"});
    loop.join();
    EXPECT_EQ(result.end, ServiceResult::End::kDone) << result.message;
    EXPECT_EQ(result.version, 1);
  }

  TestRun run;
  Log log;
  std::unique_ptr<Service> service;
  ServiceResult result;
  int64_t marks_of_scheduler = -1;
  std::thread loop;
  FakeRollout w0{"rollout-0", run.options.endpoint}, w1{"rollout-1", run.options.endpoint};
  FakeReward r0{"reward-0", run.options.endpoint};
  Script trainer{Role::kTrainer, "trainer-0", run.options.endpoint};
  std::vector<BodyId> ids;
  int64_t total = 0;
};

TEST_F(LargeBodies, ReachTheTrainerInPiecesAndAreNotDecodedByTheScheduler) {
  const wire::Batch batch = first_batch();
  ASSERT_EQ(batch.items.size(), 4u);
  EXPECT_GT(batch.items[0].bytes, kPiece) << "or one message would do";
  std::vector<std::byte> all;
  while (std::ssize(all) < total) {
    // Asks for all the rest; gets what a message may hold.
    const auto piece = trainer.fetch(ids, std::ssize(all), total);
    ASSERT_FALSE(HasFailure());
    ASSERT_EQ(std::ssize(piece), std::min(kPiece, total - std::ssize(all)));
    all.insert(all.end(), piece.begin(), piece.end());
  }
  std::span<const std::byte> rest = all;
  allocations_of(kMark);
  for (const wire::Batch::Item& item : batch.items) {
    const auto body = rest.first(static_cast<size_t>(item.bytes));
    rest = rest.subspan(body.size());
    EXPECT_EQ(wire::checksum_of(body), item.checksum);
    const auto trajectory = wire::decode_trajectory(body);
    ASSERT_TRUE(trajectory) << trajectory.failure().message;
    EXPECT_EQ(trajectory.value().lease, item.lease);
    EXPECT_EQ(trajectory.value().num_tokens(), kTokens);
  }
  EXPECT_GE(allocations_of(0), 4) << "decoding leaves no mark, so none proves nothing";
  end_the_run();
  EXPECT_EQ(marks_of_scheduler, 0);
}

TEST_F(LargeBodies, AnyPieceCanBeAskedForTwiceAndInAnyOrder) {
  first_batch();
  const int64_t middle = total / 2;
  const auto late = trainer.fetch(ids, middle, 1000);
  const auto early = trainer.fetch(ids, 10, 1000);
  ASSERT_EQ(late.size(), 1000u);
  EXPECT_EQ(trainer.fetch(ids, middle, 1000), late);
  EXPECT_EQ(trainer.fetch(ids, 10, 1000), early);
  EXPECT_NE(early, late);
  EXPECT_TRUE(trainer.fetch(ids, total, 1000).empty()) << "behind the end there is nothing";
  EXPECT_EQ(trainer.fetch(ids, total - 5, 1000).size(), 5u);
  end_the_run();
}

TEST_F(LargeBodies, AllPiecesThatMayBeAskedForAtOnceAreAnswered) {
  first_batch();
  std::vector<int64_t> asked;
  for (int64_t i = 0; i < wire::kMaxFetches; ++i) asked.push_back(trainer.ask(ids, 100 * i, 100));
  for (const int64_t request : asked) {
    const auto payload = trainer.expect<wire::Payload>();
    EXPECT_EQ(payload.request, request);
    EXPECT_EQ(payload.bytes.size(), 100u);
  }
  end_the_run();
}

// The trainer says what is wrong with the answer (BatchFetch); nobody waits for ever, and a wrong
// question costs the run nothing.
TEST_F(LargeBodies, ABodyThatTheRunDoesNotHaveIsAnsweredWithNothing) {
  const int64_t bytes = first_batch().items.at(0).bytes;
  BodyId other_attempt = ids[0], other_prompt = ids[0];
  other_attempt.lease.attempt = 99;
  other_prompt.lease.member.prompt = 1000;
  for (const BodyId& wrong : {other_attempt, other_prompt, BodyId{Lane::kEval, ids[0].lease}})
    EXPECT_TRUE(trainer.fetch({wrong}, 0, 1000).empty());
  EXPECT_TRUE(trainer.fetch({ids[0], other_prompt}, bytes - 10, 1000).empty()) << "all or nothing";
  EXPECT_FALSE(trainer.fetch(ids, 0, 1000).empty());
  end_the_run();
}

}  // namespace
}  // namespace tailrace::scheduler
