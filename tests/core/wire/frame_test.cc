#include "core/wire/frame.h"

#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "core/base/archive.h"
#include "core/wire/messages_generated.h"
#include "tests/core/wire/samples.h"

namespace tailrace::wire {
namespace {

using test::one_of_each;

std::string body_of(const Message& message) {
  ArchiveWriter writer;
  writer(message);
  return writer.take();
}

std::vector<std::byte> frame_of(std::string_view body) {
  flatbuffers::FlatBufferBuilder builder;
  const auto bytes =
      builder.CreateVector(reinterpret_cast<const uint8_t*>(body.data()), body.size());
  const fbs::Header header(11, 22, 33, 0, 44);
  // The identifier of this build.
  const auto sound = encode({}, Heartbeat{});
  const std::string identifier(reinterpret_cast<const char*>(sound.data()) + 4, 4);
  builder.Finish(fbs::CreateFrame(builder, &header, bytes), identifier.c_str());
  const auto* begin = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  return {begin, begin + builder.GetSize()};
}

constexpr Header kHeader{11, 22, 33, Signal::kNone, 44};

TEST(Frame, EveryTypeSurvivesTheWire) {
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
    EXPECT_EQ(decoded.value().header.received, 44u);
    EXPECT_EQ(decoded.value().message.index(), i);
    EXPECT_TRUE(decoded.value().message == messages[i]) << describe(messages[i]);
  }
}

TEST(Frame, RewritesTheHeaderInPlace) {
  auto frame = encode({}, Grant{test::sample_lease(), Lane::kTrain, 3});
  rewrite_header(frame, {1, 2, 3, Signal::kGoodbye, 4});
  const auto header = decode_header(frame);
  ASSERT_TRUE(header);
  EXPECT_EQ(header->session, 1u);
  EXPECT_EQ(header->sequence, 2u);
  EXPECT_EQ(header->ack, 3u);
  EXPECT_EQ(header->signal, Signal::kGoodbye);
  EXPECT_EQ(header->received, 4u);
  EXPECT_EQ(describe(decode(frame).value().message),
            "Grant lease=p1/d2/e3/q4/l5/m6#7 lane=train version=3");
}

TEST(Frame, RefusesWhatTheVerifierCannotSee) {
  const auto refused = [](const Message& message) {
    const auto frame = encode(kHeader, message);
    EXPECT_TRUE(decode_header(frame)) << describe(message);
    return !decode(frame).ok();
  };
  const LeaseId lease = test::sample_lease();
  LeaseId negative = lease;
  negative.member.prompt = -1;
  EXPECT_TRUE(refused(Grant{negative, Lane::kTrain, 0}));
  EXPECT_TRUE(refused(Grant{lease, static_cast<Lane>(2), 0}));
  EXPECT_TRUE(refused(Grant{lease, Lane::kTrain, -1}));
  // Turns of an attempt that goes on are no body that a trainer asks for or a worker holds.
  EXPECT_FALSE(refused(Fetch{1, {{Lane::kTrain, lease}}, 0, 1}));
  EXPECT_TRUE(refused(Fetch{1, {{Lane::kTrain, lease, 2}}, 0, 1}));
  EXPECT_TRUE(refused(Hold{{{Lane::kTrain, lease, 2}}}));
  EXPECT_FALSE(refused(Durable{0, 1, 0, std::string(4096, 'p')}));
  EXPECT_TRUE(refused(Durable{0, 1, 0, std::string(4097, 'p')})) << "half of a path names another";
  EXPECT_TRUE(refused(Hello{static_cast<Role>(3), "x", 1, 1, 1, ""}));
  EXPECT_TRUE(refused(Hello{Role::kRollout, "", 1, 1, 1, ""}));
  EXPECT_TRUE(refused(Hello{Role::kRollout, "x", 1, 1, 0, ""}));
  for (const Role role : {Role::kRollout, Role::kReward, Role::kTrainer}) {
    Hello ranked{role, "x", 1, 1, 1, ""};
    ranked.rank = 1;
    EXPECT_EQ(refused(ranked), role != Role::kTrainer);
  }
  // Names that go into logs, the journal and metrics.
  for (const std::string& name : {std::string("a b"), std::string("../x"), std::string(65, 'a')}) {
    EXPECT_TRUE(refused(Hello{Role::kRollout, "x", 1, 1, 1, "", false, name}));
    EXPECT_TRUE(refused(Hello{Role::kRollout, "x", 1, 1, 1, "", false, "", name}));
    EXPECT_TRUE(refused(Hello{Role::kRollout, "x", 1, 1, 1, "", false, "", "", name}));
    EXPECT_TRUE(refused(Hello{Role::kRollout, "x", 1, 1, 1, "", false, "", "", "", 0, name}));
  }
  for (const auto& [host, is_one] : {std::pair{"gpu-7.west", true},
                                     {"a_b", true},
                                     {".west", false},
                                     {"gpu:7", false},
                                     {"[::1]", false}}) {
    EXPECT_EQ(is_host_name(host), is_one) << host;
    EXPECT_NE(refused(Hello{Role::kReward, "x", 1, 1, 1, "", true, "", "", "", 0, host}), is_one);
  }
  EXPECT_TRUE(refused(Hello{Role::kRollout, "x", 1, 1, 1, "", false, "gpu-7.west"}));
  EXPECT_FALSE(refused(Hello{Role::kRollout, "x", 1, 1, 1, "", false, std::string(64, 'a')}));
  EXPECT_TRUE(refused(Stage{0, 1, "d", "../../etc/passwd"}));
  EXPECT_TRUE(refused(Stage{0, 1, "d", ".."}));
  EXPECT_TRUE(refused(TrainerWants{0, 0}));
  EXPECT_TRUE(refused(Fetch{1, {{static_cast<Lane>(2), lease}}, 0, 1}));
  EXPECT_TRUE(refused(Fetch{1, {{Lane::kTrain, lease}}, -1, 1}));
  EXPECT_TRUE(refused(Fetch{1, {{Lane::kTrain, lease}}, 0, 0}));
  EXPECT_TRUE(refused(Hold{{{Lane::kTrain, negative}}}));
  EXPECT_TRUE(refused(Batch{0, 1, 0, true, {{lease, 0.0, 0, 0}}}));
  EXPECT_TRUE(
      refused(Batch{0, 1, 0, true, {{lease, std::numeric_limits<double>::quiet_NaN(), 9, 0}}}));
  EXPECT_TRUE(refused(Batch{0, 1, -1, true, {}}));
  EXPECT_FALSE(refused(Batch{0, 1, 0, true, {}, 0.25, 0.5}));
  for (const auto& [begin, end] :
       {std::pair{0.5, 0.25}, {-0.1, 0.5}, {0.5, 1.5}, {0.0, std::nan("")}})
    EXPECT_TRUE(refused(Batch{0, 1, 0, true, {}, begin, end})) << begin << " to " << end;
  EXPECT_FALSE(refused(Batch{0, 1, 0, true, {{lease, 0.0, 9, 0, 0.5}, {lease, 0.0, 9, 0}}}));
  EXPECT_TRUE(
      refused(Batch{0, 1, 0, true, {{lease, 0.0, 9, 0, std::numeric_limits<double>::infinity()}}}));
  EXPECT_TRUE(refused(Save{0, -1}));
  EXPECT_TRUE(refused(TrainerReady{0, -2, ""}));
  EXPECT_TRUE(
      refused(Verdict{lease, Lane::kTrain, 0, std::numeric_limits<double>::infinity(), {}, ""}));
  EXPECT_FALSE(refused(Verdict{lease, Lane::kTrain, 0, 1.0, {}, ""}));
}

TEST(Frame, RefusesGarbage) {
  Rng rng(5);
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::byte> bytes(static_cast<size_t>(rng.below(200)));
    for (auto& byte : bytes) byte = static_cast<std::byte>(rng.below(256));
    EXPECT_FALSE(decode(bytes));
    EXPECT_FALSE(decode_header(bytes));
  }
}

// Whatever bytes are flipped or cut, decode() answers; what it lets through is sound and can be
// sent on. Memory errors show in the asan build.
TEST(Frame, MutatedFramesAreRefusedOrSound) {
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
    }
  }
  EXPECT_GT(accepted, 1000);
  EXPECT_GT(refused, 1000);
}

// Bytes of a message that are too few, too many, of no type or of no such value: each is one line.
TEST(Frame, RefusesABodyThatIsNotItsFields) {
  const auto fault_of = [](size_t keep, std::string_view more, size_t at = 0, int byte = -1) {
    auto body = body_of(Grant{test::sample_lease(), Lane::kTrain, 3});
    body.resize(std::min(keep, body.size()));
    body += more;
    if (byte >= 0) body.at(at) = static_cast<char>(byte);
    const auto frame = frame_of(body);
    EXPECT_TRUE(decode_header(frame));
    const auto decoded = decode(frame);
    return decoded ? "" : decoded.failure().message;
  };
  EXPECT_EQ(fault_of(1000, ""), "");
  EXPECT_EQ(fault_of(1000, "abc"), "Grant: 3 bytes too many");
  for (size_t keep = 1; keep < 50; ++keep)
    EXPECT_EQ(fault_of(keep, ""), "Grant: it ends too early") << keep;
  EXPECT_EQ(fault_of(0, ""), "unknown type of message");
  EXPECT_EQ(fault_of(1000, "", 0, 99), "unknown type of message");
  EXPECT_EQ(fault_of(1000, "", 37, 2), "Grant: a value has no name");  // the lane
}

// A count that is a lie costs no memory.
TEST(Frame, RefusesAListThatIsTooLong) {
  std::string body = body_of(Hold{});
  const auto refused = [&](uint64_t count) {
    std::memcpy(body.data() + 1, &count, sizeof(count));
    return decode(frame_of(body)).failure().message;
  };
  EXPECT_EQ(refused(uint64_t{1} << 60), "Hold: it ends too early");
  body.append(2'000'000, '\0');
  EXPECT_EQ(refused(1'500'000), "Hold: a list is too long");
}

}  // namespace
}  // namespace tailrace::wire
