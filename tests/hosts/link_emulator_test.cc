// The bounds are those that the emulator promises (never faster than asked); how much slower a
// busy machine makes it is no business of these tests.
#include "tests/hosts/link_emulator.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include "core/base/file_descriptor.h"
#include "tests/hosts/host.h"
#include "tests/hosts/hosts_test_suite.h"
#include "tests/hosts/raw_stream.h"
#include "tests/hosts/recording.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;
using LinkEmulatorTest = HostsTest;
using Milliseconds = std::chrono::duration<double, std::milli>;

// Waits for one byte.
std::optional<char> receive(const FileDescriptor& socket, std::chrono::milliseconds timeout) {
  pollfd readable{socket.get(), POLLIN, 0};
  char byte = 0;
  if (::poll(&readable, 1, static_cast<int>(timeout.count())) != 1) return std::nullopt;
  if (::recv(socket.get(), &byte, 1, 0) != 1) return std::nullopt;
  return byte;
}

void send(const FileDescriptor& socket, std::string_view text) {
  ASSERT_EQ(::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(text.size()));
}

template <class Condition>
bool comes_true(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + 30s;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

// A socket of A whose datagrams go to B, where nobody listens.
FileDescriptor datagrams_to_b(Host& a) {
  FileDescriptor socket;
  a.run_inside([&] { socket = FileDescriptor(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)); });
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_port = htons(9);
  place.sin_addr.s_addr = htonl(0x0a4d0002);
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&place), sizeof place), 0);
  return socket;
}

TEST_F(LinkEmulatorTest, ARoundTripTakesAtLeastTwiceTheDelay) {
  Host a("a"), b("b");
  const LinkEmulator link(a, b, {.rate_mbit = 100, .delay = 20ms});
  const TcpPair pair = connect_hosts(a, b, kAddressB);
  double least = 1e9;
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    send(pair.client, "?");
    ASSERT_EQ(receive(pair.server, 30s), '?');
    send(pair.server, "!");
    ASSERT_EQ(receive(pair.client, 30s), '!');
    least = std::min(least, Milliseconds(std::chrono::steady_clock::now() - begin).count());
  }
  EXPECT_GE(least, 40);
  EXPECT_LT(least, 400);
}

TEST_F(LinkEmulatorTest, AStreamIsAsFastAsTheRateAndNeverFaster) {
  Host a("a"), b("b");
  LinkEmulator link(a, b, {.rate_mbit = 40, .delay = 2ms});
  const RawStream fast = raw_stream(a, b, kAddressB, 4'000'000);
  EXPECT_LE(fast.mbit_per_s, 1.05 * 40);
  EXPECT_GE(fast.mbit_per_s, 0.1 * 40);
  link.set_rate(8);
  const RawStream back = raw_stream(b, a, kAddressA, 1'000'000);
  EXPECT_LE(back.mbit_per_s, 1.05 * 8);
  EXPECT_GE(back.mbit_per_s, 0.1 * 8);
  EXPECT_GE(link.counters(Direction::kAToB).passed_bytes, 4'000'000);
  EXPECT_GE(link.counters(Direction::kBToA).passed_bytes, 1'000'000);
}

TEST_F(LinkEmulatorTest, BothEndsUseTheCongestionControlThatIsAskedFor) {
  for (const std::string name : {"cubic", "reno"}) {
    Host a("a"), b("b");
    const LinkEmulator link(a, b, {.congestion_control = name});
    const TcpPair pair = connect_hosts(a, b, kAddressB);
    for (const FileDescriptor* end : {&pair.client, &pair.server}) {
      char used[16] = {};
      socklen_t size = sizeof used;
      EXPECT_EQ(::getsockopt(end->get(), IPPROTO_TCP, TCP_CONGESTION, used, &size), 0);
      EXPECT_EQ(used, name);
    }
  }
}

TEST_F(LinkEmulatorTest, ACutStopsEverythingAndHealBringsItBack) {
  Host a("a"), b("b");
  LinkEmulator link(a, b, {.rate_mbit = 100, .delay = 1ms});
  const TcpPair pair = connect_hosts(a, b, kAddressB);
  send(pair.client, "1");
  ASSERT_EQ(receive(pair.server, 30s), '1');
  link.cut();
  const LinkCounters before = link.counters(Direction::kAToB);
  send(pair.client, "2");
  send(pair.server, "3");
  // Also what is sent again.
  EXPECT_TRUE(comes_true([&] {
    return link.counters(Direction::kAToB).cut >= before.cut + 2 &&
           link.counters(Direction::kBToA).cut >= 1;
  }));
  EXPECT_EQ(link.counters(Direction::kAToB).passed, before.passed);
  EXPECT_EQ(receive(pair.server, 0ms), std::nullopt);
  EXPECT_EQ(receive(pair.client, 0ms), std::nullopt);
  link.heal();
  EXPECT_EQ(receive(pair.server, 60s), '2');
  EXPECT_EQ(receive(pair.client, 60s), '3');
}

TEST_F(LinkEmulatorTest, ACutLosesWhatIsUnderWay) {
  Host a("a"), b("b");
  Recording recording;
  LinkEmulator link(a, b, {.rate_mbit = 100, .delay = 1h, .recording = &recording});
  send(datagrams_to_b(a), "under way");
  EXPECT_TRUE(comes_true([&] { return recording.contains("under way"); }));
  EXPECT_EQ(link.counters(Direction::kAToB).cut, 0);
  link.cut();
  EXPECT_EQ(link.counters(Direction::kAToB).cut, 1);
  EXPECT_EQ(link.counters(Direction::kAToB).passed, 0);
}

TEST_F(LinkEmulatorTest, LosesAsManyPacketsAsAskedAndTheSameForASeed) {
  constexpr int kPackets = 2000;
  std::array<LinkCounters, 3> counters;
  for (size_t i = 0; i < counters.size(); ++i) {
    Host a("a"), b("b");
    const LinkEmulator link(
        a, b, {.rate_mbit = 1000, .loss_ratio = 0.1, .queue_bytes = 1 << 20, .seed = i / 2});
    const FileDescriptor socket = datagrams_to_b(a);
    // The refusals that come back are errors of later sends: ignored, and nothing was sent then.
    int sent = 0;
    while (sent < kPackets) sent += ::send(socket.get(), "x", 1, 0) == 1;
    EXPECT_TRUE(comes_true([&] {
      counters[i] = link.counters(Direction::kAToB);
      return counters[i].passed + counters[i].lost == kPackets;
    })) << counters[i].passed
        << " " << counters[i].lost << " " << counters[i].dropped;
  }
  EXPECT_EQ(counters[0].lost, counters[1].lost);
  EXPECT_NE(counters[0].lost, counters[2].lost);
  // 200 with a standard deviation of 13.4, of a seed: the same in every run.
  EXPECT_NEAR(static_cast<double>(counters[0].lost), 200, 60);
}

TEST_F(LinkEmulatorTest, AStreamSurvivesLosses) {
  Host a("a"), b("b");
  const LinkEmulator link(a, b, {.rate_mbit = 100, .delay = 1ms, .loss_ratio = 0.02});
  raw_stream(a, b, kAddressB, 1'000'000);
  EXPECT_GT(link.counters(Direction::kAToB).lost, 0);
}

TEST_F(LinkEmulatorTest, AFullQueueDrops) {
  Host a("a"), b("b");
  // A packet of 28 + 1000 bytes takes 8.2 s: one is being sent and two wait.
  const LinkEmulator link(a, b, {.rate_mbit = 0.001, .queue_bytes = 2100});
  const FileDescriptor socket = datagrams_to_b(a);
  for (int i = 0; i < 10; ++i) send(socket, std::string(1000, 'x'));
  EXPECT_TRUE(comes_true([&] { return link.counters(Direction::kAToB).dropped >= 7; }));
  EXPECT_LE(link.counters(Direction::kAToB).dropped, 8);
}

TEST_F(LinkEmulatorTest, TheRecordingHasWhatAPlainStreamCarried) {
  Host a("a"), b("b");
  Recording recording;
  const LinkEmulator link(a, b, {.rate_mbit = 1000, .loss_ratio = 0.05, .recording = &recording});
  const TcpPair pair = connect_hosts(a, b, kAddressB);
  // Longer than a packet, so that it must be put together.
  std::string prompt;
  for (int i = 0; prompt.size() < 20'000; ++i) prompt += std::to_string(i) + " bottles; ";
  send(pair.client, prompt);
  for (size_t i = 0; i < prompt.size(); ++i) ASSERT_EQ(receive(pair.server, 60s), prompt[i]);
  EXPECT_TRUE(recording.contains(prompt));
  EXPECT_FALSE(recording.contains(prompt + "x"));
  EXPECT_GE(recording.bytes(), 20'000);
  send(pair.server, "the other way");
  for (char byte : std::string("the other way")) ASSERT_EQ(receive(pair.client, 60s), byte);
  EXPECT_TRUE(recording.contains("the other way"));
}

}  // namespace
}  // namespace tailrace
