// Messages that go in pieces, over real sockets: many at once, and over a link that takes its time.
#include <cstring>

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "core/wire/pieces.h"
#include "core/wire/socket.h"
#include "tests/core/wire/rude_peer.h"
#include "tests/core/wire/wire_fixture.h"

namespace tailrace::wire {
namespace {

TrajectoryResult result_of(int64_t bytes) {
  TrajectoryResult result{std::vector<std::byte>(static_cast<size_t>(bytes))};
  for (size_t i = 0; i < result.body.size(); ++i)
    result.body[i] = static_cast<std::byte>(i * i % 251);
  return result;
}

// Stands between one client and the server; what the client says passes at a pace.
class SlowLink {
 public:
  SlowLink(const std::string& at, const std::string& to, int64_t bytes_per_second)
      : pace_(bytes_per_second), listener_(open(at, ::bind)) {
    ::listen(listener_, 1);
    thread_ = std::jthread([this, to] {
      const int client = ::accept(listener_, nullptr, nullptr);
      const int server = open(to, ::connect);
      carry(client, server);
      ::close(client);
      ::close(server);
    });
  }
  ~SlowLink() {
    over_ = true;
    ::shutdown(listener_, SHUT_RDWR);  // nobody may have come
    thread_.join();
    ::close(listener_);
  }

 private:
  template <class Use>
  static int open(const std::string& path, Use use) {
    const int descriptor = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    use(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address);
    return descriptor;
  }
  void carry(int client, int server) {
    const auto begin = std::chrono::steady_clock::now();
    int64_t carried = 0;
    while (!over_) {
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
      const bool may = static_cast<double>(carried) < elapsed.count() * static_cast<double>(pace_);
      pollfd ends[2] = {{client, static_cast<short>(may ? POLLIN : 0), 0}, {server, POLLIN, 0}};
      ::poll(ends, 2, 10);
      if (ends[0].revents != 0) carried += pass(client, server);
      if (ends[1].revents != 0) pass(server, client);
    }
  }
  static int64_t pass(int from, int to) {
    std::vector<char> bytes(64 << 10);
    const ssize_t count = ::read(from, bytes.data(), bytes.size());
    for (ssize_t done = 0; done < count;) {
      const ssize_t written =
          ::send(to, bytes.data() + done, static_cast<size_t>(count - done), MSG_NOSIGNAL);
      if (written <= 0) break;
      done += written;
    }
    return std::max<ssize_t>(count, 0);
  }

  int64_t pace_;
  std::atomic<bool> over_ = false;
  int listener_;
  std::jthread thread_;
};

// A body takes three seconds, who is silent for one is lost.
TEST_F(WireTest, WhoSendsALargeBodyOverASlowLinkIsNotSilent) {
  start_server();
  const std::string server = (folder_ / "s").string(), slow = (folder_ / "slow").string();
  SlowLink link(slow, server, 8 << 20);
  endpoint_ = "ipc://" + slow;
  auto client = make_client();
  ASSERT_TRUE(welcome(*client));
  const TrajectoryResult result = result_of(24 << 20);
  client->send(result);
  ASSERT_TRUE(serve_until([&] { return !incoming_.empty() || !downs_.empty(); }));
  ASSERT_TRUE(downs_.empty()) << downs_[0].reason;
  EXPECT_EQ(std::get<TrajectoryResult>(incoming_[0].message).body, result.body);
  ASSERT_TRUE(serve_until([&] { return !client->receive(0ms) && client->num_acknowledged() > 0; }));
  EXPECT_EQ(server_->counters().duplicates, 0);
}

// A sanitizer makes a byte many times as dear.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kManyBytes = 2 << 20;
#else
constexpr size_t kManyBytes = 16 << 20;
#endif

// Many large messages at once take longer than the time after which a message is sent again.
TEST_F(WireTest, WhatIsOnItsWayIsNotSentAgain) {
  constexpr int kPeers = 8, kEach = 4;
  start_server();
  std::vector<std::unique_ptr<WorkerClient>> clients;
  for (int i = 0; i < kPeers; ++i) {
    clients.push_back(make_client(fmt::format("rollout-{}", i)));
    ASSERT_TRUE(welcome(*clients.back()));
  }
  const TrajectoryResult result{std::vector<std::byte>(kManyBytes)};
  for (auto& client : clients) {
    for (int i = 0; i < kEach; ++i) client->send(result);
  }
  size_t count = 0;
  EXPECT_TRUE(serve_until([&] {
    count += incoming_.size();
    incoming_.clear();  // much memory
    return count == kPeers * kEach;
  }));
  EXPECT_TRUE(downs_.empty());
  EXPECT_LT(server_->counters().duplicates, 16) << "a last piece, which is small, now and then";
}

// Until its owner has it whole none of its pieces is acknowledged: a scheduler that is restarted
// gets all of them.
TEST_F(WireTest, ALargeMessageIsAcknowledgedAsAWhole) {
  start_server();
  auto client = make_client();
  ASSERT_TRUE(welcome(*client));
  acknowledge_ = false;
  const TrajectoryResult result = result_of(10 << 20);
  client->send(TrainerWants{0, 1});
  const int64_t last = client->send(result);
  EXPECT_EQ(last, 4) << "three pieces";
  ASSERT_TRUE(serve_until([&] { return incoming_.size() == 2; }));
  server_->acknowledge("rollout-0", incoming_[0].sequence);
  const auto acknowledged = [&] {
    (void)client->receive(0ms);
    return client->num_acknowledged();
  };
  ASSERT_TRUE(serve_until([&] { return acknowledged() == 1; }));
  server_->receive(300ms);
  EXPECT_EQ(acknowledged(), 1);
  server_.reset();
  incoming_.clear();
  start_server();
  ASSERT_TRUE(welcome(*client));
  ASSERT_TRUE(serve_until([&] { return !incoming_.empty(); }));
  EXPECT_EQ(std::get<TrajectoryResult>(incoming_[0].message).body, result.body);
  server_->acknowledge("rollout-0", incoming_[0].sequence);
  ASSERT_TRUE(serve_until([&] { return acknowledged() == last; }));
}

// A peer that leaves a piece out: what it began is void, and so far acknowledged; what it says then
// is heard.
TEST_F(WireTest, AMessageThatIsNotWholeDoesNotBlockThoseBehindIt) {
  start_server();
  RudePeer peer(endpoint_);
  peer.say_hello(Role::kRollout, "rollout-0", 1);
  ASSERT_TRUE(serve_until([&] { return peer.is_welcome(); }));
  const auto pieces = encode_frames(result_of(10 << 20));
  peer.say_next(encode({}, TrainerWants{0, 1}));
  for (const size_t i : {0u, 2u, 0u, 1u}) peer.say_next(pieces[i]);
  peer.say_next(encode({}, TrainerWants{0, 2}));  // void as well: it stands among pieces
  ASSERT_TRUE(serve_until([&] { return peer.acknowledged() == 6; }));
  EXPECT_EQ(server_->counters().malformed, 2);
  peer.say_next(encode({}, TrainerWants{0, 3}));
  ASSERT_TRUE(serve_until([&] { return incoming_.size() == 2; }));
  EXPECT_EQ(incoming_steps(), (std::vector<int64_t>{1, 3}));
}

// The scheduler is restarted while it gives a large message: what came of it is void.
TEST_F(WireTest, ASessionBeginsWithAWholeMessage) {
  Socket server(Socket::Kind::kRouter);
  server.bind(endpoint_);
  auto client = make_client();
  std::string peer;
  Header hello;
  const auto await_hello = [&](uint64_t attempt) {
    for (; hello.session != 0 || hello.sequence != attempt; server.wait(10ms)) {
      while (const auto received = server.receive()) {
        peer = received->peer;
        hello = decode_header(received->frame).value();
      }
    }
  };
  const auto begin = [&](uint64_t session) {
    server.send(peer, encode({}, Welcome{session}), {session, 0, hello.sequence, Signal::kWelcome});
  };
  const Payload payload{1, std::vector<std::byte>(10 << 20)};
  const auto pieces = encode_frames(payload);
  await_hello(1);
  begin(7);
  server.send(peer, pieces[0], {7, 1, 0});
  server.send(peer, encode({}, Heartbeat{}), {7, 0, 0, Signal::kSayHello});
  await_hello(2);
  begin(8);
  for (size_t i = 0; i < pieces.size(); ++i) server.send(peer, pieces[i], {8, i + 1, 0});
  std::optional<Message> message;
  do message = client->receive(std::chrono::milliseconds(kPatience));
  while (message && !std::holds_alternative<Payload>(*message));
  ASSERT_TRUE(message);
  EXPECT_EQ(std::get<Payload>(*message).bytes, payload.bytes);
}

}  // namespace
}  // namespace tailrace::wire
