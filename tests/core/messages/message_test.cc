#include "core/messages/message.h"

#include <gtest/gtest.h>

#include "core/base/archive.h"
#include "tests/core/wire/samples.h"

namespace tailrace::wire {
namespace {

// What only a trainer may say nobody else can, and the scheduler's messages nobody.
TEST(Message, HasItsSpeakers) {
  int from_worker = 0;
  for (const Message& message : test::one_of_each()) {
    int speakers = 0;
    for (const Role role : {Role::kRollout, Role::kReward, Role::kTrainer})
      speakers += is_said_by(role, message);
    const bool of_all = std::holds_alternative<Hello>(message) ||
                        std::holds_alternative<Heartbeat>(message) ||
                        std::holds_alternative<WorkerFailed>(message);
    EXPECT_EQ(speakers, of_all ? 3 : is_from_worker(message) ? 1 : 0) << describe(message);
    from_worker += is_from_worker(message);
  }
  EXPECT_EQ(from_worker, 16);
}

TEST(Message, IsDescribedByItsFields) {
  const LeaseId lease{{1, 2, 3, 4, 5, 6}, 7};
  EXPECT_EQ(describe(Grant{lease, Lane::kEval, 3}),
            "Grant lease=p1/d2/e3/q4/l5/m6#7 lane=eval version=3");
  EXPECT_EQ(describe(Verdict{lease, Lane::kTrain, 1, {}, {{"m", 1.0}, {"n", 2.0}}, "no\x1b[2J"}),
            "Verdict lease=p1/d2/e3/q4/l5/m6#7 lane=train verify_attempt=1 metrics=2 "
            "failure=no\\x1b[2J task_broken=false");
  EXPECT_EQ(describe(Hold{}), "Hold");
  EXPECT_LT(describe(WorkerFailed{std::string(100'000, 'x')}).size(), 300u);
}

// The number of a type is its place in Message: a type that is moved is a frame of another build.
TEST(Message, BytesOfOneTypeAreThoseOfItsFields) {
  ArchiveWriter writer;
  writer(Message(Save{1, 8}));
  const std::string bytes = writer.take();
  ASSERT_EQ(bytes.size(), 1 + sizeof(PolicyId) + sizeof(int64_t));
  EXPECT_EQ(static_cast<size_t>(bytes[0]), Message(Save{}).index());
}

TEST(Message, EqualsItselfAndNoOther) {
  for (const Message& message : test::one_of_each()) {
    const Message copy = message;
    EXPECT_TRUE(copy == message) << describe(message);
  }
  EXPECT_FALSE(Save({1, 8}) == Save({1, 9}));
}

std::string fault_of(Message message) {
  Check check;
  std::visit(
      [&](auto& m) {
        m.fields(check);
        if constexpr (requires { m.check(check); }) m.check(check);
      },
      message);
  return check.fault();
}

TEST(Check, SaysWhatIsWrongFirst) {
  const LeaseId lease{{1, 2, 3, 4, 5, 6}, 7}, negative{{0, 0, 0, -1}, 0};
  EXPECT_EQ(fault_of(Grant{lease, Lane::kTrain, 3}), "");
  EXPECT_EQ(fault_of(Grant{lease, Lane::kTrain, -1}), "version is -1");
  EXPECT_NE(fault_of(Abort{negative, Lane::kTrain}), "");
  // Ids and metrics are looked at wherever they stand.
  EXPECT_NE(fault_of(Hold{{{Lane::kTrain, lease}, {Lane::kTrain, negative}}}), "");
  EXPECT_NE(fault_of(Hold{{{Lane::kTrain, lease, -1}}}), "");
  EXPECT_NE(fault_of(Batch{0, 1, 0, true, {{negative, 0, 1, 0}}}), "");
  EXPECT_EQ(fault_of(Staged{0, 1, "d", MetricList(4097, {"m", 0})}), "4097 metrics");
  EXPECT_EQ(fault_of(Staged{0, 1, "d", {{std::string(257, 'm'), 0}}}),
            "a metric's name of 257 characters");
  EXPECT_EQ(fault_of(FormRanks{0, 1, 2, 2}), "rank 2 of 2");
}

}  // namespace
}  // namespace tailrace::wire
