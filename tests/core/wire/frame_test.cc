#include "core/wire/frame.h"

#include <limits>

#include <gtest/gtest.h>

#include "core/wire/trajectory_codec.h"
#include "tests/core/wire/samples.h"

namespace tailrace::wire {
namespace {

using test::one_of_each;
using test::sample_trajectory;

constexpr Header kHeader{11, 22, 33, Signal::kNone};

TEST(Message, EveryTypeSurvivesTheWire) {
  const auto messages = one_of_each();
  ASSERT_EQ(messages.size(), std::variant_size_v<Message>);
  for (size_t i = 0; i < messages.size(); ++i) {
    ASSERT_EQ(messages[i].index(), i) << "samples in the order of Message";
    const auto frame = encode(kHeader, messages[i]);
    const auto decoded = decode(frame);
    ASSERT_TRUE(decoded) << describe(messages[i]) << ": " << decoded.failure().message;
    EXPECT_EQ(decoded.value().header.session, 11u);
    EXPECT_EQ(decoded.value().header.sequence, 22u);
    EXPECT_EQ(decoded.value().header.ack, 33u);
    EXPECT_EQ(decoded.value().message.index(), i);
    // FlatBuffers are built the same way from the same values: equal bytes mean that no field was
    // lost.
    EXPECT_EQ(encode(kHeader, decoded.value().message), frame) << describe(messages[i]);
    EXPECT_EQ(describe(decoded.value().message), describe(messages[i]));
  }
}

TEST(Message, KeepsEveryFieldOfATrajectory) {
  const Trajectory t = sample_trajectory(100);
  const auto decoded = decode_trajectory(encode_trajectory(t));
  ASSERT_TRUE(decoded) << decoded.failure().message;
  const Trajectory& u = decoded.value();
  EXPECT_EQ(u.lease, t.lease);
  EXPECT_EQ(u.lane, t.lane);
  EXPECT_EQ(u.env, t.env);
  EXPECT_EQ(u.seed, t.seed);
  ASSERT_EQ(u.segments.size(), 2u);
  EXPECT_EQ(u.segments[0].tokens, t.segments[0].tokens);
  EXPECT_EQ(u.segments[0].roles, t.segments[0].roles);
  EXPECT_EQ(u.segments[0].logprobs, t.segments[0].logprobs);
  EXPECT_EQ(u.segments[0].versions, t.segments[0].versions);
  EXPECT_EQ(u.segments[1].parent, 0);
  EXPECT_EQ(u.segments[1].parent_tokens, 50);
  EXPECT_TRUE(u.segments[1].tokens.empty());
  EXPECT_EQ(u.outcome, t.outcome);
  EXPECT_EQ(u.reward, t.reward);
  EXPECT_EQ(u.verifier, t.verifier);
  EXPECT_EQ(u.evidence, t.evidence);
  EXPECT_EQ(u.sampling.temperature, t.sampling.temperature);
  EXPECT_EQ(u.sampling.top_k, t.sampling.top_k);
  EXPECT_EQ(u.sampling.stop_tokens, t.sampling.stop_tokens);
  EXPECT_EQ(u.sampling.stop_strings, t.sampling.stop_strings);
  EXPECT_EQ(u.turns, t.turns);
  EXPECT_EQ(u.env_seconds, t.env_seconds);
  EXPECT_EQ(u.generate_seconds, t.generate_seconds);
  EXPECT_EQ(u.metrics, t.metrics);
}

TEST(Message, AbsentRewardIsNotZero) {
  Trajectory t = sample_trajectory(8);
  t.reward = 0.0;
  EXPECT_EQ(decode_trajectory(encode_trajectory(t)).value().reward, 0.0);
  t.reward.reset();
  EXPECT_EQ(decode_trajectory(encode_trajectory(t)).value().reward, std::nullopt);
}

TEST(Message, TrajectoriesOfABatchCanBeDecodedWhereverTheyLie) {
  const auto bytes = encode_trajectory(sample_trajectory(40));
  for (size_t shift = 0; shift < 8; ++shift) {
    std::vector<std::byte> moved(shift + bytes.size());
    std::copy(bytes.begin(), bytes.end(), moved.begin() + static_cast<int64_t>(shift));
    EXPECT_TRUE(decode_trajectory(std::span(moved).subspan(shift)));
  }
}

TEST(Message, RewritesTheHeaderInPlace) {
  auto frame = encode({}, Grant{test::sample_lease(), Lane::kTrain, 3});
  rewrite_header(frame, {1, 2, 3, Signal::kGoodbye});
  const auto header = decode_header(frame);
  ASSERT_TRUE(header);
  EXPECT_EQ(header->session, 1u);
  EXPECT_EQ(header->sequence, 2u);
  EXPECT_EQ(header->ack, 3u);
  EXPECT_EQ(header->signal, Signal::kGoodbye);
  EXPECT_EQ(describe(decode(frame).value().message), "Grant p1/d2/e3/q4/l5/m6#7 version=3");
}

TEST(Message, RefusesWhatTheVerifierCannotSee) {
  const auto refused = [](const Message& message) {
    const auto frame = encode(kHeader, message);
    EXPECT_TRUE(decode_header(frame)) << describe(message);
    return !decode(frame).ok();
  };
  Trajectory t = sample_trajectory(16);
  t.segments[0].roles.pop_back();
  EXPECT_TRUE(refused(TrajectoryResult{t}));
  t = sample_trajectory(16);
  t.segments[0].versions.push_back(3);
  EXPECT_TRUE(refused(TrajectoryResult{t}));
  t = sample_trajectory(16);
  t.segments[0].versions.pop_back();
  EXPECT_TRUE(refused(TrajectoryResult{t}));
  t = sample_trajectory(16);
  t.segments[0].logprobs[7] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(refused(TrajectoryResult{t}));
  t = sample_trajectory(16);
  t.outcome = static_cast<Outcome>(200);
  EXPECT_TRUE(refused(TrajectoryResult{t}));
  t = sample_trajectory(16);
  t.segments[1].parent = 1;
  EXPECT_TRUE(refused(TrajectoryResult{t}));

  const LeaseId lease = test::sample_lease();
  LeaseId negative = lease;
  negative.member.prompt = -1;
  EXPECT_TRUE(refused(Grant{negative, Lane::kTrain, 0}));
  EXPECT_TRUE(refused(Grant{lease, static_cast<Lane>(2), 0}));
  EXPECT_TRUE(refused(Grant{lease, Lane::kTrain, -1}));
  EXPECT_TRUE(refused(Hello{static_cast<Role>(3), "x", 1, 1, 1, ""}));
  EXPECT_TRUE(refused(Hello{Role::kRollout, "", 1, 1, 1, ""}));
  EXPECT_TRUE(refused(Hello{Role::kRollout, "x", 1, 1, 0, ""}));
  EXPECT_TRUE(refused(Install{0, 1, "d", "../../etc/passwd"}));
  EXPECT_TRUE(refused(Install{0, 1, "d", ".."}));
  EXPECT_TRUE(refused(TrainerWants{0, 0}));
  EXPECT_TRUE(refused(TrainerReady{0, -2, ""}));
  EXPECT_TRUE(
      refused(Verdict{lease, Lane::kTrain, 0, std::numeric_limits<double>::infinity(), {}, ""}));
  EXPECT_FALSE(refused(Verdict{lease, Lane::kTrain, 0, 1.0, {}, ""}));
}

TEST(Message, RefusesGarbage) {
  Rng rng(5);
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::byte> bytes(static_cast<size_t>(rng.below(200)));
    for (auto& byte : bytes) byte = static_cast<std::byte>(rng.below(256));
    EXPECT_FALSE(decode(bytes));
    EXPECT_FALSE(decode_header(bytes));
    EXPECT_FALSE(decode_trajectory(bytes));
  }
}

// Whatever bytes are flipped or cut, decode() answers; what it lets through is sound and can be
// sent on. Memory errors show in the asan build.
TEST(Message, MutatedFramesAreRefusedOrSound) {
  Rng rng(6);
  int64_t accepted = 0, refused = 0;
  for (const Message& message : one_of_each()) {
    const auto frame = encode(kHeader, message);
    for (int i = 0; i < 2000; ++i) {
      auto mutated = frame;
      const int64_t flips = 1 + rng.below(3);
      for (int64_t f = 0; f < flips; ++f) {
        const auto at = static_cast<size_t>(rng.below(static_cast<int64_t>(mutated.size())));
        mutated[at] = static_cast<std::byte>(rng.below(256));
      }
      if (rng.chance(0.1))
        mutated.resize(static_cast<size_t>(rng.below(static_cast<int64_t>(mutated.size()))));
      const auto decoded = decode(mutated);
      ++(decoded ? accepted : refused);
      if (!decoded) continue;
      EXPECT_FALSE(describe(decoded.value().message).empty());
      EXPECT_TRUE(decode(encode(decoded.value().header, decoded.value().message)))
          << describe(decoded.value().message);
      if (const auto* result = std::get_if<TrajectoryResult>(&decoded.value().message)) {
        EXPECT_EQ(find_fault(result->trajectory), std::nullopt);
      }
      if (const auto* batch = std::get_if<Batch>(&decoded.value().message)) {
        for (const auto& bytes : batch->trajectories) (void)decode_trajectory(bytes);
      }
    }
  }
  EXPECT_GT(accepted, 1000);
  EXPECT_GT(refused, 1000);
}

TEST(Message, KnowsWhoSendsWhat) {
  int from_worker = 0;
  for (const Message& message : one_of_each()) from_worker += is_from_worker(message);
  EXPECT_EQ(from_worker, 12);
  EXPECT_TRUE(is_from_worker(WorkerFailed{}));
  EXPECT_FALSE(is_from_worker(Welcome{}));
}

}  // namespace
}  // namespace tailrace::wire
