// Sockets under CURVE on a port of this machine: who gets in, and what becomes of the others.
#include <atomic>
#include <mutex>
#include <set>
#include <thread>

#include <gtest/gtest.h>
#include <poll.h>
#include <zmq.h>

#include "core/base/random.h"
#include "core/wire/doorkeeper.h"
#include "core/wire/socket.h"
#include "tests/core/wire/keyed_host.h"

namespace tailrace::wire {
namespace {

using Contact = Socket::Contact;
using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;

// Nothing here waits this long unless it hangs.
constexpr auto kLongest = 20s;

template <class Done>
bool wait_until(const Done& done) {
  const auto deadline = std::chrono::steady_clock::now() + kLongest;
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
  }
  return true;
}

std::span<const std::byte> bytes_in(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// Answers each frame with itself.
class SecureServer {
 public:
  explicit SecureServer(KeyedHost& host)
      : doorkeeper_(context_, host.keys(), bell_), socket_(Socket::Kind::kRouter, context_) {
    socket_.watch();
    socket_.bind(host.address(), read_secret_key(host.keys().server()), doorkeeper_);
  }

  void turn() {
    socket_.wait(2ms, false, bell_.descriptor());
    (void)bell_.silence();
    while (const auto received = socket_.receive()) {
      users_.emplace(received->user);
      frames_.emplace_back(reinterpret_cast<const char*>(received->frame.data()),
                           received->frame.size());
      socket_.send(received->peer, received->frame);
    }
    look();
  }
  void look() {
    while (const auto contact = socket_.contact()) contacts_.insert(*contact);
    for (auto& refusal : doorkeeper_.refusals()) refusals_.push_back(std::move(refusal));
  }

  SocketContext context_;
  Wakeup bell_;
  Doorkeeper doorkeeper_;
  Socket socket_;
  std::set<std::string> users_;
  std::vector<std::string> frames_;
  std::multiset<Contact> contacts_;
  std::vector<Doorkeeper::Refusal> refusals_;
};

class SecureSocket : public testing::Test {
 protected:
  void start() { server_ = std::make_unique<SecureServer>(host_); }

  // The first thing that a client learns.
  std::optional<Contact> contact_of(const Endpoint& endpoint) {
    Socket client(Socket::Kind::kDealer);
    client.watch();
    client.connect(endpoint);
    std::optional<Contact> contact;
    wait_until([&] {
      if (server_) server_->turn();
      // Whoever was not let in has nobody to send to.
      if (client.send("", bytes_in("let me in"))) sent_ = true;
      return (contact = client.contact()).has_value();
    });
    return contact;
  }
  // Whether somebody with this key is served.
  testing::AssertionResult is_served(const Endpoint& endpoint, const std::string& text) {
    Socket client(Socket::Kind::kDealer);
    client.connect(endpoint);
    bool sent = false, answered = false;
    if (!wait_until([&] {
          sent = sent || client.send("", bytes_in(text));
          server_->turn();
          if (const auto received = client.receive())
            answered = std::ranges::equal(received->frame, bytes_in(text));
          return answered;
        }))
      return testing::AssertionFailure() << text << ": sent " << sent;
    return testing::AssertionSuccess();
  }

  KeyedHost host_;
  std::unique_ptr<SecureServer> server_;
  bool sent_ = false;
};

TEST_F(SecureSocket, AnAllowedKeyGetsThroughAndHasItsName) {
  host_.allow("east");
  start();
  EXPECT_EQ(contact_of(host_.endpoint("east")), Contact::kReady);
  ASSERT_TRUE(is_served(host_.endpoint("east"), "hello"));
  EXPECT_EQ(server_->users_, std::set<std::string>{"east"});
  EXPECT_TRUE(server_->refusals_.empty());
  ASSERT_TRUE(wait_until([&] {
    server_->turn();
    return server_->contacts_.contains(Contact::kClosed);
  }));
  EXPECT_TRUE(server_->contacts_.contains(Contact::kReady));
}

TEST_F(SecureSocket, AStrangerIsToldSoAndReportedAndNoFrameComesIn) {
  start();
  const Endpoint stranger = host_.endpoint("nobody");
  EXPECT_EQ(contact_of(stranger), Contact::kNotAllowed);
  ASSERT_TRUE(wait_until([&] {
    server_->turn();
    return !server_->refusals_.empty();
  }));
  EXPECT_EQ(server_->refusals_[0].address, "127.0.0.1");
  EXPECT_EQ(server_->refusals_[0].public_key, stranger.keys->own.public_key);
  EXPECT_TRUE(server_->frames_.empty());
  EXPECT_FALSE(sent_);
}

TEST_F(SecureSocket, OneThatMeansAnotherServerIsToldSo) {
  host_.allow("east");
  start();
  Endpoint endpoint = host_.endpoint("east");
  endpoint.keys->server = new_key_pair().public_key;
  EXPECT_EQ(contact_of(endpoint), Contact::kWrongServer);
  ASSERT_TRUE(wait_until([&] {
    server_->turn();
    return server_->contacts_.contains(Contact::kWrongServer);
  }));
  EXPECT_TRUE(server_->frames_.empty());
}

TEST_F(SecureSocket, WhoFindsNobodyIsToldSo) {
  EXPECT_EQ(contact_of(host_.endpoint("east")), Contact::kNobody);
}

// As an old program, or one of somebody else.
TEST_F(SecureSocket, WithoutEncryptionNobodyGetsIn) {
  host_.allow("east");
  start();
  void* context = zmq_ctx_new();
  void* client = zmq_socket(context, ZMQ_DEALER);
  const int linger = 0;
  zmq_setsockopt(client, ZMQ_LINGER, &linger, sizeof linger);
  ASSERT_EQ(zmq_connect(client, host_.address().c_str()), 0);
  zmq_send(client, "hello", 5, ZMQ_DONTWAIT);
  EXPECT_TRUE(wait_until([&] {
    server_->turn();
    return server_->contacts_.contains(Contact::kNotEncrypted);
  }));
  EXPECT_TRUE(server_->frames_.empty());
  zmq_close(client);
  zmq_ctx_term(context);
  EXPECT_TRUE(is_served(host_.endpoint("east"), "hello"));
}

TEST_F(SecureSocket, AServerWithoutEncryptionIsNone) {
  host_.allow("east");
  void* context = zmq_ctx_new();
  void* router = zmq_socket(context, ZMQ_ROUTER);
  ASSERT_EQ(zmq_bind(router, host_.address().c_str()), 0);
  // Who of the two hangs up first is chance, and an end without a word means another key.
  const auto contact = contact_of(host_.endpoint("east"));
  EXPECT_TRUE(contact == Contact::kNotEncrypted || contact == Contact::kWrongServer);
  zmq_close(router);
  zmq_ctx_term(context);
}

TEST_F(SecureSocket, GarbageHarmsNobody) {
  host_.allow("east");
  start();
  Rng rng(7);
  // How a connection of ZeroMQ begins, and one under CURVE.
  std::string greeting("\xff\0\0\0\0\0\0\0\1\x7f\3\0", 12);
  std::string curve = greeting + std::string("CURVE\0", 6) + std::string(46, '\0');
  std::vector<FileDescriptor> open;
  for (int i = 0; i < 200; ++i) {
    FileDescriptor peer = connect_plainly(host_.port());
    ASSERT_TRUE(peer.is_open()) << i;
    std::string text = i % 4 == 0 ? "" : i % 4 == 1 ? greeting : i % 4 == 2 ? curve : "GET / HTTP";
    for (int64_t n = rng.below(600); n > 0; --n) text += static_cast<char>(rng.below(256));
    // The server may have hung up.
    (void)::send(peer.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    // Some stay, and say no more.
    if (i % 5 == 0) open.push_back(std::move(peer));
    if (i % 20 == 0) server_->turn();
  }
  EXPECT_TRUE(is_served(host_.endpoint("east"), "after garbage"));
  EXPECT_EQ(server_->frames_, std::vector<std::string>{"after garbage"});
  EXPECT_GT(server_->contacts_.count(Contact::kNotEncrypted) +
                server_->contacts_.count(Contact::kWrongServer),
            0u);
}

// What nobody has asked for yet must not hold up the thread that everybody's bytes pass through.
TEST_F(SecureSocket, EventsThatNobodyTakesHoldNothingUp) {
  host_.allow("east");
  start();
  for (int i = 0; i < 2500; ++i) {
    const FileDescriptor peer = connect_plainly(host_.port());
    (void)::send(peer.get(), "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL | MSG_DONTWAIT);
    // In step with the server, whose backlog is short: it hangs up.
    pollfd end{peer.get(), POLLIN, 0};
    char bytes[256];
    while (::poll(&end, 1, 5000) > 0 && ::recv(peer.get(), bytes, sizeof bytes, 0) > 0) {
    }
    ASSERT_NE(end.revents, 0) << i;
  }
  Socket client(Socket::Kind::kDealer);
  client.connect(host_.endpoint("east"));
  EXPECT_TRUE(wait_until([&] {
    client.send("", bytes_in("hello"));
    server_->socket_.wait(2ms);
    return server_->socket_.receive().has_value();
  }));
  server_->look();
  EXPECT_GT(server_->contacts_.size(), 2000u);
}

TEST_F(SecureSocket, AKeyThatIsRemovedOrAddedCountsAtOnce) {
  host_.allow("east");
  start();
  const Endpoint east = host_.endpoint("east");
  EXPECT_EQ(contact_of(east), Contact::kReady);
  host_.forbid("east");
  EXPECT_EQ(contact_of(east), Contact::kNotAllowed);
  host_.allow("west");
  EXPECT_EQ(contact_of(host_.endpoint("west")), Contact::kReady);
  ASSERT_TRUE(is_served(host_.endpoint("west"), "hello"));
  EXPECT_EQ(contact_of(east), Contact::kNotAllowed);
}

// Carries the bytes of one connection, and keeps a copy of them.
class Tap {
 public:
  explicit Tap(int to) : port_(free_port()), to_(to), listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    const sockaddr_in address = loopback(port_);
    TR_CHECK(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) ==
             0);
    TR_CHECK(::listen(listener_.get(), 4) == 0);
    thread_ = std::jthread([this](std::stop_token stop) { run(stop); });
  }
  int port() const { return port_; }
  std::string recorded() {
    std::lock_guard lock(mu_);
    return recorded_;
  }

 private:
  void run(const std::stop_token& stop) {
    pollfd waits{listener_.get(), POLLIN, 0};
    while (!stop.stop_requested() && ::poll(&waits, 1, 20) <= 0) {
    }
    if (stop.stop_requested()) return;
    const FileDescriptor near(::accept(listener_.get(), nullptr, nullptr));
    const FileDescriptor far = connect_plainly(to_);
    pollfd ends[2] = {{near.get(), POLLIN, 0}, {far.get(), POLLIN, 0}};
    while (!stop.stop_requested()) {
      ::poll(ends, 2, 20);
      for (int i = 0; i < 2; ++i) {
        if (ends[i].revents == 0) continue;
        char bytes[4096];
        const ssize_t count = ::recv(ends[i].fd, bytes, sizeof bytes, 0);
        if (count <= 0) return;
        {
          std::lock_guard lock(mu_);
          recorded_.append(bytes, static_cast<size_t>(count));
        }
        (void)::send(ends[1 - i].fd, bytes, static_cast<size_t>(count), MSG_NOSIGNAL);
      }
    }
  }

  const int port_, to_;
  FileDescriptor listener_;
  std::mutex mu_;
  std::string recorded_;
  std::jthread thread_;
};

TEST_F(SecureSocket, NothingIsReadableOnTheWire) {
  host_.allow("east");
  start();
  Tap tap(host_.port());
  Endpoint endpoint = host_.endpoint("east");
  endpoint.address = fmt::format("tcp://127.0.0.1:{}", tap.port());
  std::string secret;
  for (int i = 0; i < 500; ++i) secret += "attack at dawn; ";
  ASSERT_TRUE(is_served(endpoint, secret));
  const std::string recorded = tap.recorded();
  EXPECT_GT(recorded.size(), 2 * secret.size()) << "there and back";
  EXPECT_NE(recorded.find("CURVE"), std::string::npos);
  for (const char* text : {"attack", "dawn", "east", "let me"})
    EXPECT_EQ(recorded.find(text), std::string::npos) << text;
}

}  // namespace
}  // namespace tailrace::wire
