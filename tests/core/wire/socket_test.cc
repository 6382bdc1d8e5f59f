// Both ends over real sockets, with killed and stopped processes.
#include "core/wire/socket.h"

#include <sys/resource.h>
#include <zmq.h>

#include "core/base/error.h"
#include "core/wire/wakeup.h"
#include "tests/core/wire/wire_fixture.h"

#if defined(__SANITIZE_THREAD__)
// Workers to be killed are forked, and start a thread of their own.
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }
#endif

namespace tailrace::wire {
namespace {

std::vector<int64_t> range(int64_t first, int64_t last) {
  std::vector<int64_t> numbers;
  for (int64_t i = first; i <= last; ++i) numbers.push_back(i);
  return numbers;
}

// ZeroMQ ends the process that has no file left.
TEST(Socket, IsRefusedWhereTooFewFilesAreLeft) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer opens a pipe to look at an object, and finds no file left for it";
#endif
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  for (const rlim_t limit : {3, 4, 8, 12}) {
    few.rlim_cur = limit;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    try {
      Socket socket(Socket::Kind::kDealer);
      ADD_FAILURE() << limit;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find("ulimit -n"), std::string::npos) << error.what();
    }
    if (limit == 3) {
      EXPECT_THROW(Wakeup(), UserError);
    }
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  }
}

TEST_F(WireTest, CarriesMessagesBothWaysInOrder) {
  start_server();
  auto client = make_client();
  ASSERT_TRUE(welcome(*client));
  ASSERT_EQ(ups_.size(), 1u);
  EXPECT_EQ(ups_[0].hello.worker, "rollout-0");
  for (int i = 1; i <= 100; ++i) {
    client->send(TrainerWants{0, i});
    send(Save{0, i});
  }
  ASSERT_TRUE(serve_until([&] { return incoming_.size() == 100; }));
  EXPECT_EQ(incoming_steps(), range(1, 100));
  for (int i = 1; i <= 100; ++i) {
    Save save;
    ASSERT_TRUE(receive(*client, save));
    ASSERT_EQ(save.version, i);
  }
  server_->flush(std::chrono::milliseconds(kPatience));
  EXPECT_EQ(server_->counters().received, 100);
  EXPECT_EQ(server_->counters().sent, 100);
  EXPECT_EQ(server_->counters().malformed, 0);
  client.reset();
  ASSERT_TRUE(serve_until([&] { return !downs_.empty(); }));
  EXPECT_EQ(downs_[0].reason, "said goodbye");
}

TEST_F(WireTest, WhoEndsByAnExceptionSaysNoGoodbye) {
  start_server();
  try {
    auto client = make_client();
    ASSERT_TRUE(welcome(*client));
    throw std::runtime_error("a bug");
  } catch (const std::runtime_error&) {
  }
  ASSERT_TRUE(serve_until([&] { return !downs_.empty(); }));
  EXPECT_TRUE(downs_[0].silent) << downs_[0].reason;
}

TEST_F(WireTest, CountsTheSameAtBothEnds) {
  start_server();
  auto client = make_client();
  ASSERT_TRUE(welcome(*client));
  for (int i = 1; i <= 100; ++i) client->send(TrainerWants{0, i});
  ASSERT_TRUE(serve_until([&] { return incoming_.size() == 100; }));
  ASSERT_TRUE(serve_until([&] { return client->counters().sent == 100; }));
  EXPECT_EQ(server_->counters().received, 100);
}

TEST_F(WireTest, CarriesALargePayload) {
  start_server();
  auto client = make_client();
  ASSERT_TRUE(welcome(*client));
  Payload payload{1, std::vector<std::byte>(20 << 20)};
  for (size_t i = 0; i < payload.bytes.size(); ++i)
    payload.bytes[i] = static_cast<std::byte>(i % 251);
  send(payload);
  Payload received;
  ASSERT_TRUE(receive(*client, received));
  EXPECT_EQ(received.bytes, payload.bytes);
}

TEST_F(WireTest, HeartbeatsSayHowAWorkerGetsOn) {
  start_server();
  std::atomic<uint64_t> progress = 0;
  WorkerClient client(Hello{Role::kRollout, "rollout-0", 0, ::getpid(), 4, "test"}, endpoint_,
                      options_, [&] {
                        const uint64_t now = progress;
                        return Heartbeat{now, now == 5 ? "a call\n" + std::string(900, 'x') : ""};
                      });
  ASSERT_TRUE(welcome(client));
  const uint64_t session = ups_.back().session;
  const auto said = [&] { return server_->progress("rollout-0", session); };
  EXPECT_EQ(said(), std::nullopt) << "0 says nothing";
  progress = 5;
  ASSERT_TRUE(serve_until([&] { return said() == 5; }));
  // For a person: what acts on a terminal does not come through, and it is a line.
  const std::vector<std::string> held = server_->held();
  ASSERT_EQ(held.size(), 1u);
  EXPECT_TRUE(held[0].starts_with("rollout-0: a call")) << held[0];
  EXPECT_EQ(held[0].find('\n'), std::string::npos);
  EXPECT_LT(held[0].size(), 500u);
  progress = 9;
  ASSERT_TRUE(serve_until([&] { return said() == 9; }));
  EXPECT_TRUE(server_->held().empty());
  // A message of it is a sign as well.
  client.send(TrainerWants{0, 1});
  ASSERT_TRUE(serve_until([&] { return said() == 10; }));
  EXPECT_EQ(server_->progress("rollout-0", session + 1), std::nullopt);
  EXPECT_EQ(server_->progress("rollout-1", session), std::nullopt);
}

TEST_F(WireTest, StartsInAnyOrder) {
  auto client = make_client();
  client->send(TrainerWants{0, 1});
  EXPECT_EQ(client->receive(200ms), std::nullopt);
  start_server();
  ASSERT_TRUE(welcome(*client));
  ASSERT_TRUE(serve_until([&] { return !incoming_.empty(); }));
}

TEST_F(WireTest, SendsAgainWhatARestartedServerHadNotAcknowledged) {
  start_server();
  auto client = make_client();
  ASSERT_TRUE(welcome(*client));
  for (int i = 1; i <= 10; ++i) client->send(TrainerWants{0, i});
  acknowledge_ = false;
  ASSERT_TRUE(serve_until([&] { return incoming_.size() == 10; }));
  server_->acknowledge("rollout-0", incoming_[3].sequence);
  ASSERT_TRUE(serve_until([&] { return client->receive(0ms) == std::nullopt; }));
  server_->receive(100ms);  // the acknowledgement goes out
  server_.reset();
  client->send(TrainerWants{0, 11});
  incoming_.clear();
  acknowledge_ = true;
  start_server();
  ASSERT_TRUE(welcome(*client));  // the worker hears that its work is void
  ASSERT_TRUE(serve_until([&] { return incoming_.size() >= 7; }));
  EXPECT_EQ(incoming_steps(), range(5, 11));
  // And the new session works in both directions.
  send(Save{0, 3});
  Save save;
  ASSERT_TRUE(receive(*client, save));
}

TEST_F(WireTest, DropsWhatItHadForASessionThatEnded) {
  start_server();
  auto client = make_client();
  ASSERT_TRUE(welcome(*client));
  client.reset();
  send(Save{0, 1});
  const uint64_t ended = ups_[0].session;
  auto second = make_client();
  ASSERT_TRUE(welcome(*second));
  EXPECT_FALSE(server_->send("rollout-0", ended, Save{0, 1})) << "meant for the one before";
  send(Save{0, 2});
  Save save;
  ASSERT_TRUE(receive(*second, save));
  EXPECT_EQ(save.version, 2);
}

TEST_F(WireTest, ALateAcknowledgementDoesNotCountForTheNextSession) {
  start_server();
  acknowledge_ = false;
  auto first = make_client();
  ASSERT_TRUE(welcome(*first));
  for (int i = 1; i <= 5; ++i) first->send(TrainerWants{0, i});
  ASSERT_TRUE(serve_until([&] { return incoming_.size() == 5; }));
  auto second = make_client();
  ASSERT_TRUE(welcome(*second));
  second->send(TrainerWants{0, 6});
  ASSERT_TRUE(serve_until([&] { return incoming_.size() == 6; }));
  server_->acknowledge("rollout-0", incoming_[4].sequence);
  server_->receive(200ms);
  // Had it counted, the second worker's message would be gone for a server that restarts now.
  server_.reset();
  incoming_.clear();
  first.reset();
  start_server();
  ASSERT_TRUE(serve_until([&] { return !incoming_.empty(); }));
  EXPECT_EQ(incoming_steps(), range(6, 6));
}

// A worker in a process of its own, to be killed and stopped: sends TrainerWants 1, 2, ... as fast
// as the server acknowledges, and ends when told to.
pid_t fork_worker(const std::string& endpoint, const LinkOptions& options, int64_t first,
                  int64_t last) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  {
    WorkerClient client(Hello{Role::kRollout, "rollout-0", 0, ::getpid(), 4, "test"}, endpoint,
                        options);
    for (int64_t i = first; i <= last; ++i) client.send(TrainerWants{0, i});
    while (true) {
      auto message = client.receive(100ms);
      if (message && std::holds_alternative<Shutdown>(*message)) break;
    }
  }
  ::_exit(0);
}

TEST_F(WireTest, NoticesAKilledWorkerAndServesItsSuccessor) {
  const pid_t pid = fork_worker(endpoint_, options_, 1, 5);
  start_server();
  ASSERT_TRUE(serve_until([&] { return incoming_.size() == 5; }));
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  ASSERT_TRUE(serve_until([&] { return !downs_.empty(); }));
  EXPECT_NE(downs_[0].reason.find("silent"), std::string::npos) << downs_[0].reason;
  auto client = make_client();
  ASSERT_TRUE(welcome(*client));
  client->send(TrainerWants{0, 6});
  ASSERT_TRUE(serve_until([&] { return incoming_.size() == 6; }));
  EXPECT_EQ(ups_.size(), 2u);
}

TEST_F(WireTest, AStoppedWorkerIsGivenUpAndComesBackWithANewSession) {
  const pid_t pid = fork_worker(endpoint_, options_, 1, 5);
  start_server();
  ASSERT_TRUE(serve_until([&] { return incoming_.size() == 5; }));
  ::kill(pid, SIGSTOP);
  ASSERT_TRUE(serve_until([&] { return !downs_.empty(); }));
  ::kill(pid, SIGCONT);
  ASSERT_TRUE(serve_until([&] { return ups_.size() == 2; }));
  send(Shutdown{"test"});
  server_->flush(std::chrono::milliseconds(kPatience));
  int status = 1;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(incoming_steps(), range(1, 5));
}

TEST_F(WireTest, LosesNothingWhenTheServerProcessIsKilledInTheMiddle) {
  // The child acknowledges what it reads, says so through a pipe, and is killed at some point.
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::close(pipe_ends[0]);
    WorkerServer server(endpoint_, options_);
    while (true) {
      for (auto& event : server.receive(100ms)) {
        auto* incoming = std::get_if<Incoming>(&event);
        if (incoming == nullptr) continue;
        const int64_t step = std::get<TrainerWants>(incoming->message).step;
        // Handed to the parent, which stands for a disk, and only then acknowledged.
        if (::write(pipe_ends[1], &step, sizeof step) != sizeof step) ::_exit(1);
        server.acknowledge(incoming->worker, incoming->sequence);
      }
    }
  }
  ::close(pipe_ends[1]);
  auto client = make_client();
  constexpr int64_t kMessages = 3000;
  std::set<int64_t> safe;
  int64_t step = 0;
  for (int64_t i = 1; i <= kMessages; ++i) {
    client->send(TrainerWants{0, i});
    if (i == kMessages / 2) {
      ASSERT_EQ(::read(pipe_ends[0], &step, sizeof step), static_cast<ssize_t>(sizeof step));
      safe.insert(step);
      ::kill(pid, SIGKILL);
    }
  }
  ::waitpid(pid, nullptr, 0);
  while (::read(pipe_ends[0], &step, sizeof step) == static_cast<ssize_t>(sizeof step))
    safe.insert(step);
  ::close(pipe_ends[0]);
  start_server();
  ASSERT_TRUE(serve_until([&] {
    auto steps = incoming_steps();
    return !steps.empty() && steps.back() == kMessages;
  }));
  for (int64_t s : incoming_steps()) safe.insert(s);
  EXPECT_EQ(safe.size(), static_cast<size_t>(kMessages));
}

TEST_F(WireTest, ANameBelongsToItsNewestProcess) {
  start_server();
  auto first = make_client("rollout-0", 1);
  ASSERT_TRUE(welcome(*first));
  auto second = make_client("rollout-0", 2);
  ASSERT_TRUE(welcome(*second));
  EXPECT_TRUE(downs_.empty()) << "the new session says that the old one is over";
  Shutdown shutdown;
  ASSERT_TRUE(receive(*first, shutdown));
  EXPECT_NE(shutdown.reason.find("rollout-0"), std::string::npos);
  second->send(TrainerWants{0, 1});
  ASSERT_TRUE(serve_until([&] { return !incoming_.empty(); }));
  EXPECT_EQ(ups_.size(), 2u) << "the old one must not come back";
  server_->receive(300ms);
  send(Save{0, 4});
  Save save;
  ASSERT_TRUE(receive(*second, save));
}

// A Hello that is said twice is answered twice. The second answer must not pass for an
// acknowledgement of what the session has sent.
TEST_F(WireTest, AWelcomeThatComesAgainAcknowledgesNothing) {
  void* context = zmq_ctx_new();
  void* router = zmq_socket(context, ZMQ_ROUTER);
  const int patience = 20'000;
  zmq_setsockopt(router, ZMQ_RCVTIMEO, &patience, sizeof patience);
  ASSERT_EQ(zmq_bind(router, endpoint_.c_str()), 0);
  auto client = make_client();
  char routing[256];
  std::vector<std::byte> buffer(4096);
  int routing_size = 0;
  const auto next_header = [&] {
    routing_size = zmq_recv(router, routing, sizeof routing, 0);
    const int size = zmq_recv(router, buffer.data(), buffer.size(), 0);
    EXPECT_GT(size, 0);
    return decode_header(std::span(buffer).first(static_cast<size_t>(size))).value();
  };
  const auto answer = [&](const Header& header, const Message& message) {
    auto frame = encode(header, message);
    zmq_send(router, routing, static_cast<size_t>(routing_size), ZMQ_SNDMORE);
    zmq_send(router, frame.data(), frame.size(), 0);
  };
  const Header hello = next_header();
  const Header welcome{7, 0, hello.sequence, Signal::kWelcome};
  answer(welcome, Welcome{7});
  client->send(TrainerWants{0, 1});
  while (next_header().sequence != 1) {
  }
  answer(welcome, Welcome{7});
  answer({7, 0, 0}, Heartbeat{});
  // Not acknowledged: it is sent again.
  while (next_header().sequence != 1) {
  }
  while (client->receive(0ms)) {
  }
  EXPECT_EQ(client->num_acknowledged(), 0);
  answer({7, 0, 1}, Heartbeat{});
  client.reset();
  const int linger = 0;
  zmq_setsockopt(router, ZMQ_LINGER, &linger, sizeof linger);
  zmq_close(router);
  zmq_ctx_term(context);
}

TEST_F(WireTest, GarbageIsCountedAndHarmless) {
  start_server();
  void* context = zmq_ctx_new();
  void* socket = zmq_socket(context, ZMQ_DEALER);
  ASSERT_EQ(zmq_connect(socket, endpoint_.c_str()), 0);
  zmq_send(socket, "", 0, 0);
  zmq_send(socket, "garbage", 7, 0);
  zmq_send(socket, "two", 3, ZMQ_SNDMORE);
  zmq_send(socket, "parts", 5, 0);
  auto frame = encode({}, Welcome{3});  // a well-formed message that no worker may send
  zmq_send(socket, frame.data(), frame.size(), 0);
  rewrite_header(frame, {12345, 1, 0});  // of a session that nobody has: answered, not counted
  zmq_send(socket, frame.data(), frame.size(), 0);
  ASSERT_TRUE(serve_until([&] { return server_->counters().malformed == 4; }));
  EXPECT_FALSE(server_->last_malformed().empty());
  EXPECT_TRUE(ups_.empty());
  const int linger = 0;
  zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
  zmq_close(socket);
  zmq_ctx_term(context);

  auto client = make_client();
  ASSERT_TRUE(welcome(*client));
  client->send(TrainerWants{0, 1});
  ASSERT_TRUE(serve_until([&] { return incoming_.size() == 1; }));
}

// It says Hello and shows life, and acknowledges nothing: what waits for it must not grow for ever.
TEST_F(WireTest, AWorkerThatTakesNothingLosesItsSession) {
  start_server();
  void* context = zmq_ctx_new();
  void* socket = zmq_socket(context, ZMQ_DEALER);
  ASSERT_EQ(zmq_connect(socket, endpoint_.c_str()), 0);
  const auto say = [&](const Header& header, const Message& message) {
    const auto frame = encode(header, message);
    zmq_send(socket, frame.data(), frame.size(), 0);
  };
  say({0, 1, 0}, Hello{Role::kTrainer, "trainer-0", 1, 1, 4, "test"});
  ASSERT_TRUE(serve_until([&] { return !ups_.empty(); }));
  const Payload payload{1, std::vector<std::byte>(4 << 20)};
  int sent = 0;
  while (sent < 200 && downs_.empty()) {
    say({ups_[0].session, 0, 0}, Heartbeat{});
    sent += server_->send("trainer-0", ups_[0].session, payload);
    turn();
  }
  ASSERT_EQ(downs_.size(), 1u);
  EXPECT_LT(sent, 70) << "256 MiB";
  EXPECT_NE(downs_[0].reason.find("it takes nothing"), std::string::npos) << downs_[0].reason;
  const int linger = 0;
  zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
  zmq_close(socket);
  zmq_ctx_term(context);
}

// Nobody looks at what it says, and it has no session. Its own queue holds one frame, the system's
// less than one.
TEST_F(WireTest, WhatWaitsOfAConnectionIsBounded) {
  start_server();
  void* context = zmq_ctx_new();
  void* socket = zmq_socket(context, ZMQ_DEALER);
  const int one = 1, patience = 1000, linger = 0;
  zmq_setsockopt(socket, ZMQ_SNDHWM, &one, sizeof one);
  zmq_setsockopt(socket, ZMQ_SNDTIMEO, &patience, sizeof patience);
  zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
  ASSERT_EQ(zmq_connect(socket, endpoint_.c_str()), 0);
  const std::vector<std::byte> frame(static_cast<size_t>(kPieceBytes));
  int sent = 0;
  while (sent < 200 && zmq_send(socket, frame.data(), frame.size(), 0) > 0) ++sent;
  EXPECT_GE(sent, 32);
  EXPECT_LE(sent, 36) << "128 MiB, and what is on its way";
  ASSERT_TRUE(serve_until([&] { return server_->counters().malformed == sent; }));
  // A larger frame ends the connection, unread; it comes back by itself.
  const std::vector<std::byte> large(static_cast<size_t>(kMaxFrameBytes) + 1);
  zmq_send(socket, large.data(), large.size(), 0);
  std::this_thread::sleep_for(100ms);
  server_->receive(0ms);
  zmq_send(socket, frame.data(), frame.size(), 0);
  ASSERT_TRUE(serve_until([&] { return server_->counters().malformed > sent; }));
  server_->receive(100ms);
  EXPECT_EQ(server_->counters().malformed, sent + 1);
  zmq_close(socket);
  zmq_ctx_term(context);
}

TEST_F(WireTest, AMalformedMessageDoesNotBlockThoseBehindIt) {
  start_server();
  auto client = make_client();
  ASSERT_TRUE(welcome(*client));
  client->send(TrainerWants{0, 1});
  client->send(TrainerWants{0, -5});  // refused by decode()
  client->send(TrainerWants{0, 2});
  ASSERT_TRUE(serve_until([&] { return incoming_.size() == 2; }));
  EXPECT_EQ(incoming_steps(), range(1, 2));
  EXPECT_EQ(server_->counters().malformed, 1);
  EXPECT_NE(server_->last_malformed().find("step is -5"), std::string::npos)
      << server_->last_malformed();
  client.reset();  // would linger if something stayed unacknowledged
  ASSERT_TRUE(serve_until([&] { return !downs_.empty(); }));
  EXPECT_EQ(downs_[0].reason, "said goodbye");
}

// A peer that has a session must not guess its neighbour's.
TEST_F(WireTest, SessionsHaveNumbersThatNobodyCanGuess) {
  start_server();
  auto first = make_client("rollout-0"), second = make_client("rollout-1");
  ASSERT_TRUE(welcome(*first));
  ASSERT_TRUE(welcome(*second));
  ASSERT_EQ(ups_.size(), 2u);
  const uint64_t apart = ups_[0].session - ups_[1].session;
  EXPECT_GT(std::min(apart, -apart), uint64_t{1} << 32);
}

TEST_F(WireTest, TheSenderLearnsWhatIsSafe) {
  start_server();
  auto client = make_client();
  ASSERT_TRUE(welcome(*client));
  acknowledge_ = false;
  for (int i = 1; i <= 5; ++i) EXPECT_EQ(client->send(TrainerWants{0, i}), i);
  ASSERT_TRUE(serve_until([&] { return incoming_.size() == 5; }));
  EXPECT_EQ(client->receive(0ms), std::nullopt);
  EXPECT_EQ(client->num_acknowledged(), 0);
  server_->acknowledge("rollout-0", incoming_[2].sequence);
  ASSERT_TRUE(
      serve_until([&] { return !client->receive(0ms) && client->num_acknowledged() == 3; }));
  server_.reset();
  // What a new server acknowledges at once is not yet so at its Welcome: these two are sent again.
  acknowledge_ = true;
  incoming_.clear();
  start_server();
  ASSERT_TRUE(serve_until([&] { return incoming_.size() == 2; }));
  for (int i = 0; i < 20; ++i) server_->receive(5ms);
  ASSERT_TRUE(client->receive(0ms));
  EXPECT_EQ(client->num_acknowledged(), 3);
  ASSERT_TRUE(
      serve_until([&] { return !client->receive(0ms) && client->num_acknowledged() == 5; }));
}

TEST_F(WireTest, AnotherThreadEndsTheWait) {
  start_server();
  std::jthread other([&] {
    std::this_thread::sleep_for(50ms);
    server_->wake();
  });
  EXPECT_TRUE(server_->receive(std::chrono::milliseconds(kPatience)).empty());
  server_->wake();  // nobody waits: the next one does not either
  EXPECT_TRUE(server_->receive(std::chrono::milliseconds(kPatience)).empty());
}

TEST_F(WireTest, SilenceGrowsWithoutAServerAndTheClientStillEnds) {
  options_.linger = 100ms;
  auto client = make_client();
  client->send(TrainerWants{0, 1});
  EXPECT_EQ(client->receive(150ms), std::nullopt);
  EXPECT_GE(client->silence(), 100ms);
  client.reset();
}

// It looks again now and then; it used half a core for that.
TEST_F(WireTest, AClientWithoutAServerSleeps) {
  auto client = make_client();
  client->send(TrainerWants{0, 1});
  const auto cpu_seconds = [] {
    timespec time{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double before = cpu_seconds();
  EXPECT_EQ(client->receive(1000ms), std::nullopt);
  EXPECT_LT(cpu_seconds() - before, 0.2);
}

}  // namespace
}  // namespace tailrace::wire
