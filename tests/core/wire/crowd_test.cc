// A server with more to take than it takes at once: who is silent then, and who only waits.
#include <deque>

#include "tests/core/wire/rude_peer.h"
#include "tests/core/wire/wire_fixture.h"

namespace tailrace::wire {
namespace {

class CrowdTest : public WireTest {
 protected:
  // Peers with a session each. They say nothing by themselves, so they are lost soon.
  void join(int count) {
    for (int i = 0; i < count; ++i)
      peers_.emplace_back(endpoint_).say_hello(Role::kRollout, fmt::format("rollout-{}", i), 1);
    ASSERT_TRUE(serve_until([&] {
      return std::ranges::all_of(peers_, [](RudePeer& peer) { return peer.is_welcome(); });
    }));
    ASSERT_EQ(std::ssize(ups_), count);
    ASSERT_TRUE(downs_.empty());
  }

  std::deque<RudePeer> peers_;
};

// As after waits for the disk: the server has not looked for longer than a worker may be silent,
// and what waits is more than it takes at once.
TEST_F(CrowdTest, NobodyIsSilentWhoseFramesWait) {
  constexpr int kPeers = 40;
  start_server();
  ASSERT_NO_FATAL_FAILURE(join(kPeers));
  const auto all_say = [&] {
    for (RudePeer& peer : peers_) peer.say(TrajectoryResult{std::vector<std::byte>(4'190'000)});
    std::this_thread::sleep_for(options_.timeout + 500ms);
  };
  all_say();
  turn();  // takes 64 MiB: a part of those who have something
  all_say();
  ASSERT_TRUE(serve_until([&] { return !downs_.empty() || incoming_.size() == 2 * kPeers; }));
  EXPECT_EQ(incoming_.size(), size_t{2 * kPeers});
}

// More waits than is taken at once, and its own is not among it.
TEST_F(CrowdTest, WhoIsSilentIsMissedInAFlood) {
  start_server();
  ASSERT_NO_FATAL_FAILURE(join(1));
  // Of no session: they are refused, and counted.
  constexpr int kFrames = 64;
  const auto frame = encode({}, Payload{1, std::vector<std::byte>(4'190'000)});
  RudePeer floods[2] = {RudePeer(endpoint_), RudePeer(endpoint_)};
  for (int i = 0; i < kFrames; ++i) floods[i % 2].say({}, frame);
  std::this_thread::sleep_for(options_.timeout + 1s);
  int64_t refused = 0;
  ASSERT_TRUE(serve_until([&] {
    refused = server_->counters().malformed;
    return !downs_.empty();
  }));
  // Each turn takes 16 of them or a few more.
  EXPECT_LT(refused, kFrames - 10);
}

}  // namespace
}  // namespace tailrace::wire
