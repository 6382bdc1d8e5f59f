#include "core/wire/trajectory_codec.h"

#include <functional>
#include <limits>

#include <gtest/gtest.h>

#include "core/wire/messages_generated.h"
#include "tests/core/wire/samples.h"

namespace tailrace::wire {
namespace {

using test::sample_trajectory;

TEST(TrajectoryCodec, KeepsEveryField) {
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
  EXPECT_EQ(u.numerics_classes, t.numerics_classes);
  EXPECT_EQ(u.segments[0].classes, t.segments[0].classes);
  EXPECT_EQ(u.segments[0].log_masses, t.segments[0].log_masses);
  EXPECT_EQ(u.segments[0].kept_counts, t.segments[0].kept_counts);
  EXPECT_EQ(u.segments[0].kept_ids, t.segments[0].kept_ids);
  EXPECT_EQ(u.segments[0].teacher_logprobs, t.segments[0].teacher_logprobs);
  EXPECT_EQ(u.segments[0].teacher_top_ids, t.segments[0].teacher_top_ids);
  EXPECT_EQ(u.segments[0].teacher_top_logprobs, t.segments[0].teacher_top_logprobs);
  EXPECT_EQ(u.segments[0].teacher_top_ids.size(), 24u);
  EXPECT_EQ(u.segments[0].choices, t.segments[0].choices);
  EXPECT_EQ(u.segments[0].choices.size(), 99u * 4);
  EXPECT_EQ(u.experts, t.experts);
  EXPECT_EQ(u.segments[0].turn_begins, t.segments[0].turn_begins);
  EXPECT_EQ(u.segments[0].turn_numbers, t.segments[0].turn_numbers);
  EXPECT_EQ(u.segments[0].turn_numbers.size(), 12u);
  EXPECT_EQ(u.turn_rewards, t.turn_rewards);
  EXPECT_EQ(u.turn_anchors, t.turn_anchors);
  EXPECT_EQ(u.turn_anchors.size(), 13u);
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
  EXPECT_EQ(u.env_waits, t.env_waits);
  EXPECT_EQ(u.metrics, t.metrics);
}

TEST(TrajectoryCodec, AbsentRewardIsNotZero) {
  Trajectory t = sample_trajectory(8);
  t.reward = 0.0;
  EXPECT_EQ(decode_trajectory(encode_trajectory(t)).value().reward, 0.0);
  t.reward.reset();
  EXPECT_EQ(decode_trajectory(encode_trajectory(t)).value().reward, std::nullopt);
}

// FlatBuffers lets offsets be shared: a small body may name one long text a million times.
TEST(TrajectoryCodec, RefusesWhatGrowsWhenItIsRead) {
  const auto refused = [](const std::function<void(Trajectory&)>& change) {
    Trajectory t = sample_trajectory(8);
    change(t);
    const auto bytes = encode_trajectory(t);
    return !read_trajectory_header(bytes) && !decode_trajectory(bytes);
  };
  EXPECT_FALSE(refused([](Trajectory&) {}));
  EXPECT_TRUE(refused([](Trajectory& t) { t.sampling.stop_strings.assign(2000, "a"); }));
  EXPECT_TRUE(
      refused([](Trajectory& t) { t.sampling.stop_strings.assign(20, std::string(100000, 'a')); }));
  EXPECT_TRUE(refused([](Trajectory& t) { t.metrics.assign(5000, {"m", 1.0}); }));
  EXPECT_TRUE(refused([](Trajectory& t) { t.metrics = {{std::string(300, 'm'), 1.0}}; }));
}

// The same of segments: one without tokens, or of one, is four bytes of a message.
TEST(TrajectoryCodec, RefusesMoreSegmentsThanAnEpisodeHas) {
  Trajectory t = sample_trajectory(8);
  t.segments.resize(kMaxSegments);
  ASSERT_TRUE(decode_trajectory(encode_trajectory(t)));
  t.segments.emplace_back();
  EXPECT_EQ(decode_trajectory(encode_trajectory(t)).failure().message,
            "4097 segments, at most 4096 are taken");
  EXPECT_TRUE(find_fault(t));
}

TEST(TrajectoryCodec, DecodesBytesWhereverTheyLie) {
  const auto bytes = encode_trajectory(sample_trajectory(40));
  for (size_t shift = 0; shift < 8; ++shift) {
    std::vector<std::byte> moved(shift + bytes.size());
    std::copy(bytes.begin(), bytes.end(), moved.begin() + static_cast<int64_t>(shift));
    EXPECT_TRUE(decode_trajectory(std::span(moved).subspan(shift)));
  }
}

TEST(TrajectoryCodec, RefusesWhatTheVerifierCannotSee) {
  const auto refused = [](auto&& spoil) {
    Trajectory t = sample_trajectory(16);
    spoil(t);
    return !decode_trajectory(encode_trajectory(t)).ok();
  };
  EXPECT_FALSE(refused([](Trajectory&) {}));
  EXPECT_TRUE(refused([](Trajectory& t) { t.segments[0].roles.pop_back(); }));
  EXPECT_TRUE(refused([](Trajectory& t) { t.segments[0].versions.push_back(3); }));
  EXPECT_TRUE(refused([](Trajectory& t) { t.segments[0].versions.pop_back(); }));
  EXPECT_TRUE(refused([](Trajectory& t) { t.segments[0].classes.push_back(0); }));
  EXPECT_TRUE(refused([](Trajectory& t) { t.segments[0].classes.pop_back(); }));
  EXPECT_TRUE(refused([](Trajectory& t) {
    t.numerics_classes.pop_back();
    t.segments[0].classes[7] = 1;
  }));
  EXPECT_TRUE(refused([](Trajectory& t) { t.numerics_classes.resize(100, "x"); }));
  EXPECT_TRUE(refused([](Trajectory& t) { t.numerics_classes[0] = std::string(300, 'x'); }));
  EXPECT_TRUE(refused([](Trajectory& t) { t.segments[0].log_masses[7] = 1; }));
  EXPECT_TRUE(refused([](Trajectory& t) { t.segments[0].log_masses.push_back(0); }));
  EXPECT_TRUE(refused([](Trajectory& t) { t.segments[0].kept_counts.push_back(0); }));
  EXPECT_TRUE(refused([](Trajectory& t) { t.segments[0].kept_counts[7] = 1 << 30; }));
  EXPECT_TRUE(refused([](Trajectory& t) { t.segments[0].kept_ids.pop_back(); }));
  EXPECT_TRUE(refused([](Trajectory& t) { t.segments[0].teacher_logprobs.pop_back(); }));
  EXPECT_TRUE(refused([](Trajectory& t) { t.segments[0].teacher_logprobs.resize(1000); }));
  EXPECT_TRUE(refused([](Trajectory& t) { t.segments[0].teacher_top_ids.pop_back(); }));
  EXPECT_TRUE(refused([](Trajectory& t) { t.segments[0].choices.pop_back(); }));
  EXPECT_TRUE(refused([](Trajectory& t) { t.segments[0].choices.resize(68, 1); }));
  EXPECT_TRUE(refused([](Trajectory& t) { t.experts = {}; }));
  EXPECT_TRUE(refused([](Trajectory& t) { t.experts.experts = 4; }));
  EXPECT_TRUE(refused([](Trajectory& t) { t.segments[0].turn_begins.pop_back(); }));
  EXPECT_TRUE(refused([](Trajectory& t) { t.segments[0].turn_begins.assign(1000, 7); }));
  EXPECT_TRUE(refused([](Trajectory& t) { t.segments[0].turn_numbers.assign(1000, 7); }));
  EXPECT_TRUE(refused([](Trajectory& t) { t.segments[0].turn_numbers.pop_back(); }));
  EXPECT_TRUE(refused([](Trajectory& t) { t.turn_rewards.push_back(0); }));
  EXPECT_TRUE(refused([](Trajectory& t) { t.turn_anchors.pop_back(); }));
  EXPECT_TRUE(refused(
      [](Trajectory& t) { t.segments[0].logprobs[7] = std::numeric_limits<float>::quiet_NaN(); }));
  EXPECT_TRUE(refused([](Trajectory& t) { t.outcome = static_cast<Outcome>(200); }));
  EXPECT_TRUE(refused([](Trajectory& t) { t.segments[1].parent = 1; }));
}

TEST(TrajectoryCodec, TheHeaderSaysWhatTheTokensSay) {
  const Trajectory t = sample_trajectory(100);
  const auto read = read_trajectory_header(encode_trajectory(t));
  ASSERT_TRUE(read) << read.failure().message;
  const TrajectoryHeader& header = read.value();
  EXPECT_EQ(header.lease, t.lease);
  EXPECT_EQ(header.outcome, t.outcome);
  EXPECT_EQ(header.evidence, t.evidence);
  EXPECT_EQ(header.metrics, t.metrics);
  EXPECT_EQ(header.num_tokens, 100);
  EXPECT_EQ(header.num_sampled, 12);
  EXPECT_EQ(header.min_version, 3);
  EXPECT_EQ(header.max_version, 8);
}

// The scheduler decides by the header, the trainer learns from the tokens: they must agree.
TEST(TrajectoryCodec, ALyingHeaderIsFoundOutWithTheTokens) {
  auto bytes = encode_trajectory(sample_trajectory(100));
  auto* table = flatbuffers::GetMutableRoot<fbs::Trajectory>(bytes.data());
  ASSERT_TRUE(table->mutate_min_version(4));
  ASSERT_TRUE(read_trajectory_header(bytes));
  const auto decoded = decode_trajectory(bytes);
  ASSERT_FALSE(decoded);
  EXPECT_NE(decoded.failure().message.find("header"), std::string::npos)
      << decoded.failure().message;
}

TEST(TrajectoryCodec, RefusesAnImpossibleHeader) {
  const auto refused = [](auto&& spoil) {
    auto bytes = encode_trajectory(sample_trajectory(100));
    EXPECT_TRUE(spoil(*flatbuffers::GetMutableRoot<fbs::Trajectory>(bytes.data())));
    return !read_trajectory_header(bytes).ok();
  };
  EXPECT_TRUE(refused([](fbs::Trajectory& t) { return t.mutate_num_sampled(101); }));
  EXPECT_TRUE(refused([](fbs::Trajectory& t) { return t.mutate_num_tokens(-1); }));
  EXPECT_TRUE(refused([](fbs::Trajectory& t) { return t.mutate_min_version(9); }));
  EXPECT_TRUE(refused([](fbs::Trajectory& t) { return t.mutate_outcome(99); }));
}

TEST(TrajectoryCodec, RefusesGarbage) {
  Rng rng(5);
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::byte> bytes(static_cast<size_t>(rng.below(200)));
    for (auto& byte : bytes) byte = static_cast<std::byte>(rng.below(256));
    EXPECT_FALSE(decode_trajectory(bytes));
    EXPECT_FALSE(read_trajectory_header(bytes));
  }
}

// Whatever bytes are flipped or cut, both readers answer, and what the whole one lets through is
// sound. Memory errors show in the asan build.
TEST(TrajectoryCodec, MutatedBytesAreRefusedOrSound) {
  Rng rng(6);
  const auto bytes = encode_trajectory(sample_trajectory(40));
  int64_t accepted = 0, refused = 0;
  for (int i = 0; i < 8000; ++i) {
    auto mutated = bytes;
    const int64_t flips = 1 + rng.below(3);
    for (int64_t f = 0; f < flips; ++f) {
      const auto at = static_cast<size_t>(rng.below(static_cast<int64_t>(mutated.size())));
      mutated[at] = static_cast<std::byte>(rng.below(256));
    }
    if (rng.chance(0.1))
      mutated.resize(static_cast<size_t>(rng.below(static_cast<int64_t>(mutated.size()))));
    const auto decoded = decode_trajectory(mutated);
    const auto header = read_trajectory_header(mutated);
    ++(decoded ? accepted : refused);
    if (!decoded) continue;
    EXPECT_TRUE(header) << "whole, but not its header";
    EXPECT_EQ(find_fault(decoded.value()), std::nullopt);
    EXPECT_TRUE(decode_trajectory(encode_trajectory(decoded.value())));
  }
  EXPECT_GT(accepted, 500);
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace tailrace::wire
