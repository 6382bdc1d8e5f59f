// A gate on loopback, with real keys, a real scheduler's end, and workers that mean well or not.
#include "core/gate/gate.h"

#include <atomic>

#include <sys/resource.h>

#include "core/base/file.h"
#include "core/base/machine.h"
#include "tests/core/gate/gate_fixture.h"
#include "tests/core/wire/samples.h"

namespace tailrace {
namespace {

using wire::Greeting;
using wire::GreetingAnswer;
using wire::Header;
using wire::Hello;
using wire::LogLine;
using wire::LogLines;
using wire::LogTaken;

std::vector<std::byte> pattern(size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i % 251);
  return bytes;
}

LogLines numbered_lines(uint64_t incarnation, uint64_t first, int count) {
  LogLines message{incarnation, first, {}};
  for (int i = 0; i < count; ++i)
    message.lines.push_back(
        {LogLevel::kWarning, fmt::format("{}", first + static_cast<uint64_t>(i))});
  return message;
}

TEST_F(GateTest, AWorkerComesUpByTheNameThatItWasGiven) {
  start_gate();
  const auto run = join();
  EXPECT_EQ(run->welcome().name, "rollout-0");
  EXPECT_EQ(run->welcome().run, "quickstart");
  const auto client = client_of(*run);
  ASSERT_TRUE(next<wire::Welcome>(*client));
  ASSERT_EQ(ups_.size(), 1u);
  EXPECT_EQ(ups_[0].hello.worker, "rollout-0");
  EXPECT_EQ(ups_[0].hello.host, "far.example");
  EXPECT_TRUE(ups_[0].hello.joined);
  const auto other = join("west");
  EXPECT_EQ(other->welcome().name, "rollout-1");
  EXPECT_EQ(counters().strayed, 0);
  EXPECT_EQ(counters().malformed, 0);
}

// The connection to the scheduler takes nothing when it is new: the Hello would be said again, here
// after a minute.
TEST_F(GateTest, TheFirstFrameOfAConnectionIsNotLost) {
  link_.resend = 60s;
  start_gate();
  const auto run = join();
  const auto client = client_of(*run);
  ASSERT_TRUE(next<wire::Welcome>(*client));
}

TEST_F(GateTest, MessagesPassInOrderBothWaysLargeOnesToo) {
  start_gate();
  const auto run = join();
  const auto client = client_of(*run);
  ASSERT_TRUE(next<wire::Welcome>(*client));
  for (int i = 1; i <= 50; ++i) {
    client->send(wire::TrainerWants{0, i});
    ASSERT_TRUE(scheduler_->send("rollout-0", ups_[0].session, wire::Save{0, i}));
  }
  const auto body = pattern(20 << 20);
  client->send(wire::TrajectoryResult{body, true});
  ASSERT_TRUE(scheduler_->send("rollout-0", ups_[0].session, wire::Payload{1, body}));
  std::vector<int64_t> saved;
  bool arrived = false;
  ASSERT_TRUE(serve_until([&] {
    while (const auto message = client->receive(0ms)) {
      if (const auto* save = std::get_if<wire::Save>(&*message)) saved.push_back(save->version);
      if (const auto* payload = std::get_if<wire::Payload>(&*message))
        arrived = payload->bytes == body;
    }
    return arrived && incoming_.size() == 51;
  }));
  for (int i = 1; i <= 50; ++i) {
    EXPECT_EQ(saved[static_cast<size_t>(i - 1)], i);
    EXPECT_EQ(std::get<wire::TrainerWants>(incoming_[static_cast<size_t>(i - 1)].message).step, i);
  }
  EXPECT_EQ(std::get<wire::TrajectoryResult>(incoming_[50].message).body, body);
}

TEST_F(GateTest, AHelloThatIsNotItsSendersGoesNoFurther) {
  start_gate();
  SecurePeer east(host_.endpoint("east")), west(host_.endpoint("west"));
  ASSERT_EQ(east.greet(greeting_of(7)).name, "rollout-0");
  ASSERT_EQ(west.greet(greeting_of(8)).name, "rollout-1");
  const Hello right{.role = Role::kRollout,
                    .worker = "rollout-0",
                    .incarnation = 7,
                    .numerics_class = {},
                    .joined = true,
                    .host = "far.example"};
  int64_t wrong = 0;
  const auto say = [&](SecurePeer& peer, auto change) {
    Hello hello = right;
    change(hello);
    peer.say(Header{0, 1, 0}, hello);
    ++wrong;
  };
  say(east, [](Hello& h) { h.worker = "rollout-1"; });
  say(east, [](Hello& h) { h.worker = "trainer-0"; });
  say(east, [](Hello& h) { h.role = Role::kTrainer; });
  say(east, [](Hello& h) { h.role = Role::kReward; });
  say(east, [](Hello& h) { h.joined = false; });
  say(east, [](Hello& h) { h.host = ""; });       // as one that launch has started
  say(east, [](Hello& h) { h.pool = "large"; });  // which it was not given
  say(east, [](Hello& h) { h.cluster = "home"; });
  say(east, [](Hello& h) { h.incarnation = 8; });
  say(east, [](Hello& h) { h.incarnation = 9; });
  say(west, [](Hello&) {});
  ASSERT_TRUE(eventually([&] { return counters().strayed >= wrong; }));
  EXPECT_TRUE(ups_.empty());
  east.say(Header{0, 1, 0}, right);
  ASSERT_TRUE(serve_until([&] {
    if (ups_.empty()) east.say(Header{0, 1, 0}, right);
    return !ups_.empty();
  }));
  EXPECT_EQ(ups_[0].hello.worker, "rollout-0");
  EXPECT_EQ(ups_.size(), 1u);
  EXPECT_EQ(counters().malformed, 0);
}

TEST_F(GateTest, AnotherKeyCannotGreetForAProcess) {
  start_gate();
  SecurePeer east(host_.endpoint("east")), west(host_.endpoint("west"));
  ASSERT_EQ(east.greet(greeting_of(7)).kind, GreetingAnswer::Kind::kWelcome);
  const auto answer = west.greet(greeting_of(7));
  EXPECT_EQ(answer.kind, GreetingAnswer::Kind::kRefused);
  EXPECT_NE(answer.reason.find("another key"), std::string::npos) << answer.reason;
  EXPECT_EQ(east.greet(greeting_of(7)).name, "rollout-0") << "the same again";
}

TEST_F(GateTest, NothingPassesOfWhoHasNotGreeted) {
  start_gate();
  const auto run = join("west");
  const auto client = client_of(*run);
  ASSERT_TRUE(next<wire::Welcome>(*client));
  SecurePeer east(host_.endpoint("east"));
  east.say(Header{0, 1, 0}, hello_of(*run));
  east.say(Header{ups_[0].session, 1, 0}, wire::TrainerWants{0, 1});
  east.say(Header{ups_[0].session, 0, 0, wire::Signal::kGoodbye}, wire::Heartbeat{});
  east.say(wire::AskFile{run->incarnation(), "x"});
  east.say(wire::AskChunk{run->incarnation(), std::string(32, '0'), 0});
  east.say(numbered_lines(run->incarnation(), 1, 3));
  east.say(wire::Leave{run->incarnation()});
  ASSERT_TRUE(eventually([&] { return counters().strayed >= 7; }));
  EXPECT_TRUE(lines().empty());
  // The worker whose session and process were named goes on.
  client->send(wire::TrainerWants{0, 5});
  ASSERT_TRUE(serve_until([&] { return !incoming_.empty(); }));
  EXPECT_EQ(std::get<wire::TrainerWants>(incoming_[0].message).step, 5);
  EXPECT_TRUE(downs_.empty());
}

TEST_F(GateTest, HostileFramesOfAnAllowedKeyHarmNobody) {
  std::ofstream(files() / "x") << std::string(1000, 'x');
  share("x", {files() / "x"});
  start_gate();
  SecurePeer east(host_.endpoint("east"));
  east.greet(greeting_of(7));
  const Header hello{0, 1, 0};
  std::vector<std::vector<std::byte>> valid = {
      wire::encode(greeting_of(7)),
      wire::encode(hello, Hello{.worker = "rollout-0", .numerics_class = {}}),
      wire::encode(wire::AskFile{7, "x"}),
      wire::encode(wire::AskChunk{7, std::string(32, '0'), 1'000'000}),
      wire::encode(numbered_lines(7, 1, 20))};
  for (const wire::Message& message : wire::test::one_of_each())
    valid.push_back(wire::encode(Header{5, 1, 0}, message));
  Rng rng(3);
  for (int i = 0; i < 200; ++i) {
    std::vector<std::byte> frame = valid[static_cast<size_t>(i) % valid.size()];
    if (i % 4 == 0) frame.assign(static_cast<size_t>(rng.below(300)), std::byte{0});
    for (int64_t n = i % 4 == 1 ? 0 : rng.below(8); n > 0 && !frame.empty(); --n)
      frame[static_cast<size_t>(rng.below(std::min<int64_t>(std::ssize(frame), 120)))] =
          static_cast<std::byte>(rng.below(256));
    east.say(frame);
  }
  // Greetings with lies.
  Greeting lie = greeting_of(0);
  east.say(wire::encode(lie));
  lie = greeting_of(11);
  lie.host = "../../etc";
  east.say(wire::encode(lie));
  lie = greeting_of(12);
  lie.role = Role::kTrainer;
  east.say(wire::encode(lie));
  // What a worker does not say.
  east.say(wire::LogTaken{5});
  east.say(wire::Chunk{std::string(32, '0'), 0, pattern(100)});
  // Lines by the thousand.
  for (uint64_t first = 100; first < 5000; first += 200) east.say(numbered_lines(7, first, 200));
  EXPECT_TRUE(is_served("west"));
  EXPECT_GT(counters().malformed, 0);
  EXPECT_GT(counters().strayed, 0);
  EXPECT_LT(lines().size(), 600u);
  // And it is served as well, once it behaves.
  EXPECT_TRUE(is_served("east"));
  const std::string log = read_file(host_.folder() / "log").value();
  EXPECT_LT(std::ranges::count(log, '\n'), 100) << log;
  EXPECT_NE(log.find("by the key of east"), std::string::npos) << log;
}

TEST_F(GateTest, StrangersHarmNobody) {
  start_gate();
  const auto run = join();
  const auto client = client_of(*run);
  Rng rng(5);
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 200; ++i) {
    FileDescriptor peer = wire::connect_plainly(host_.port());
    ASSERT_TRUE(peer.is_open()) << i;
    // A browser, and a program of ZeroMQ without keys.
    std::string text = "GET / HTTP/1.1\r\n\r\n";
    if (i % 2 == 0)
      text = std::string("\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL", 16) + std::string(48, '\0');
    for (int64_t n = rng.below(300); n > 0; --n) text += static_cast<char>(rng.below(256));
    // The gate may have hung up.
    (void)::send(peer.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (i % 10 == 0) silent.push_back(std::move(peer));
  }
  client->send(wire::TrainerWants{0, 1});
  ASSERT_TRUE(serve_until([&] { return acknowledged(*client) == 1; }));
  EXPECT_TRUE(is_served("west"));
  ASSERT_TRUE(eventually([&] { return counters().not_shaken > 20; }));
  const std::string log = read_file(host_.folder() / "log").value();
  EXPECT_LT(std::ranges::count(log, '\n'), 40) << log;
}

TEST_F(GateTest, AnotherBuildIsRefusedByName) {
  start_gate();
  SecurePeer east(host_.endpoint("east"));
  Greeting greeting = greeting_of(7);
  greeting.build = "0123abcd";
  greeting.version = "9.9";
  const auto answer = east.greet(greeting);
  EXPECT_EQ(answer.kind, GreetingAnswer::Kind::kRefused);
  for (const std::string& part : {build_id(), std::string(version()), std::string("9.9 0123abcd")})
    EXPECT_NE(answer.reason.find(part), std::string::npos) << answer.reason;
  EXPECT_TRUE(names_.empty());
}

// ---- what a person is told who joins

class JoinTest : public GateTest {
 protected:
  std::string refusal_of(const wire::Endpoint& endpoint, std::chrono::milliseconds patience = 10s) {
    try {
      RemoteRun run({.gate = endpoint, .greeting = {}, .patience = patience, .greet_again = 100ms});
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }
  void expect_part(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
    EXPECT_NE(text.find(host_.address()), std::string::npos) << text;
  }
};

TEST_F(JoinTest, WhereNobodyListens) {
  expect_part(refusal_of(host_.endpoint("east")), "nobody listens there");
}

TEST_F(JoinTest, WithAKeyThatIsNotAllowed) {
  start_gate();
  const auto endpoint = host_.endpoint("stranger");
  expect_part(refusal_of(endpoint), endpoint.keys->own.public_key);
  ASSERT_TRUE(eventually([&] { return counters().not_allowed > 0; }));
  const std::string log = read_file(host_.folder() / "log").value();
  EXPECT_NE(log.find(endpoint.keys->own.public_key), std::string::npos) << log;
  EXPECT_NE(log.find("from 127.0.0.1:"), std::string::npos) << log;
}

TEST_F(JoinTest, WithTheKeyOfAnotherServer) {
  start_gate();
  auto endpoint = host_.endpoint("east");
  endpoint.keys->server = wire::new_key_pair().public_key;
  expect_part(refusal_of(endpoint), "another key than --server-key");
  ASSERT_TRUE(eventually([&] { return counters().not_shaken > 0; }));
}

TEST_F(JoinTest, WhereTheRunRefusesOrWantsToWait) {
  refusal_ = "no such pool";
  start_gate();
  expect_part(refusal_of(host_.endpoint("east")), "no such pool");
  {
    std::lock_guard lock(mu_);
    refusal_.clear();
    later_ = "it has not begun";
  }
  expect_part(refusal_of(host_.endpoint("east"), 300ms), "it has not begun");
  std::jthread begin([this] {
    std::this_thread::sleep_for(100ms);
    std::lock_guard lock(mu_);
    later_.clear();
  });
  EXPECT_EQ(refusal_of(host_.endpoint("east")), "");
}

TEST_F(JoinTest, WhereNothingAnswers) {
  const FakeGate gate(host_, [](auto) { return std::vector<std::vector<std::byte>>{}; });
  expect_part(refusal_of(host_.endpoint("east"), 500ms), "does not answer a greeting");
}

// ---- comings and goings

TEST_F(GateTest, AGateThatComesBackGivesTheNameBackAndTheWorkGoesOn) {
  start_gate();
  const auto run = join(), other = join("west");
  const auto client = client_of(*other);
  ASSERT_TRUE(next<wire::Welcome>(*client));
  client->send(wire::TrainerWants{0, 1});
  ASSERT_TRUE(serve_until([&] { return acknowledged(*client) == 1; }));
  stop_gate();
  client->send(wire::TrainerWants{0, 2});
  start_gate();
  client->send(wire::TrainerWants{0, 3});
  ASSERT_TRUE(serve_until([&] { return acknowledged(*client) == 3; }));
  EXPECT_EQ(steps(), (std::vector<int64_t>{1, 2, 3}));
  for (const auto& incoming : incoming_) EXPECT_EQ(incoming.worker, "rollout-1");
  ASSERT_TRUE(eventually([&] {
    std::lock_guard lock(mu_);
    return names_ == std::set<std::string>{"rollout-0", "rollout-1"};
  }));
  EXPECT_EQ(run->refusal() + other->refusal(), "");
  EXPECT_TRUE(downs_.empty());
}

TEST_F(GateTest, AGateThatComesBackGivesNoNameOfALivingWorkerAway) {
  start_gate();
  const auto run = join();
  stop_gate();
  start_gate();
  // Before the first has greeted again, maybe.
  const auto other = join("west");
  EXPECT_EQ(other->welcome().name, "rollout-1");
  std::this_thread::sleep_for(300ms);  // a few greetings
  EXPECT_EQ(run->refusal() + other->refusal(), "");
}

// ZeroMQ gives a connection up for good whose handshake was refused.
TEST_F(GateTest, AWorkerWhoseKeyIsAwayForAWhileComesBack) {
  start_gate();
  const auto run = join("west");
  const auto client = client_of(*run);
  ASSERT_TRUE(next<wire::Welcome>(*client));
  const auto file = host_.keys().allowed("west"), away = host_.folder() / "away.pub";
  std::filesystem::rename(file, away);
  restart_gate();
  ASSERT_TRUE(eventually([&] { return counters().not_allowed > 1; }));
  std::filesystem::rename(away, file);
  client->send(wire::TrainerWants{0, 1});
  ASSERT_TRUE(serve_until([&] { return acknowledged(*client) == 1; }));
}

TEST_F(GateTest, ANameThatWasGivenAwayIsAnswered) {
  start_gate();
  const auto run = join();
  stop_gate();
  admitted_.clear();  // the file of the run is lost
  names_.clear();
  refusal_ = "its name is another's";
  start_gate();
  ASSERT_TRUE(eventually([&] { return !run->refusal().empty(); }));
  EXPECT_EQ(run->refusal(), "its name is another's");
  {
    std::lock_guard lock(mu_);
    refusal_.clear();
  }
  ASSERT_TRUE(eventually([&] { return run->refusal().empty(); }));
}

TEST_F(GateTest, AGoodbyeGivesTheNameBack) {
  start_gate();
  auto run = join();
  auto client = client_of(*run);
  ASSERT_TRUE(next<wire::Welcome>(*client));
  client.reset();
  ASSERT_TRUE(serve_until([&] { return !downs_.empty(); }));
  EXPECT_FALSE(downs_[0].silent) << downs_[0].reason;
  run.reset();
  ASSERT_TRUE(eventually([&] { return !released().empty(); }));
  EXPECT_EQ(released(), std::vector<std::string>{"rollout-0"});
}

TEST_F(GateTest, WhoLeavesWithoutASessionGivesTheNameBack) {
  start_gate();
  join().reset();
  ASSERT_TRUE(eventually([&] { return !released().empty(); }));
  EXPECT_EQ(released(), std::vector<std::string>{"rollout-0"});
}

// A worker may end one session by a goodbye and begin another one.
TEST_F(GateTest, AHelloAfterAGoodbyeKeepsTheName) {
  start_gate();
  const auto run = join();
  auto client = client_of(*run);
  ASSERT_TRUE(next<wire::Welcome>(*client));
  client.reset();
  ASSERT_TRUE(serve_until([&] { return !downs_.empty(); }));
  client = std::make_unique<wire::WorkerClient>(hello_of(*run), run->endpoint(), link_);
  const auto later = std::chrono::steady_clock::now() + 600ms;
  ASSERT_TRUE(serve_until([&] { return std::chrono::steady_clock::now() > later; }));
  EXPECT_TRUE(released().empty());
}

TEST_F(GateTest, WhoIsAwayForTooLongIsForgotten) {
  forget_ = 200ms;
  start_gate();
  {
    SecurePeer east(host_.endpoint("east"));
    east.greet(greeting_of(7));
  }
  ASSERT_TRUE(eventually([&] { return !released().empty(); }));
  EXPECT_EQ(released(), std::vector<std::string>{"rollout-0"});
}

TEST_F(GateTest, ASchedulerThatWasAwayIsFoundAgain) {
  scheduler_.reset();
  start_gate();
  const auto run = join();
  const auto client = client_of(*run);
  client->send(wire::TrainerWants{0, 1});
  std::this_thread::sleep_for(200ms);
  start_scheduler();
  ASSERT_TRUE(serve_until([&] { return acknowledged(*client) == 1; }));
  scheduler_.reset();
  client->send(wire::TrainerWants{0, 2});
  start_scheduler();
  ASSERT_TRUE(serve_until([&] { return acknowledged(*client) == 2; }));
  EXPECT_EQ(steps(), (std::vector<int64_t>{1, 2}));
}

// ---- lines of the log

TEST_F(GateTest, LinesAreWrittenOnceEachAndInOrder) {
  start_gate();
  std::vector<std::string> expected;
  {
    const auto run = join();
    for (int i = 0; i < 200; ++i) {
      run->tell(LogLevel::kWarning, fmt::format("line {}", i));
      expected.push_back(fmt::format("rollout-0: line {}", i));
    }
  }
  ASSERT_TRUE(eventually([&] { return lines().size() >= expected.size(); }));
  EXPECT_EQ(lines(), expected);
}

// Its acknowledgement was lost.
TEST_F(GateTest, LinesThatComeAgainAreWrittenOnce) {
  start_gate();
  SecurePeer east(host_.endpoint("east"));
  east.greet(greeting_of(7));
  for (int i = 0; i < 3; ++i) {
    east.say(numbered_lines(7, 1, 5));
    EXPECT_EQ(east.answer<LogTaken>().through, 5u);
  }
  east.say(numbered_lines(7, 3, 5));
  EXPECT_EQ(east.answer<LogTaken>().through, 7u);
  // Those between were given up by the worker.
  east.say(numbered_lines(7, 100, 1));
  EXPECT_EQ(east.answer<LogTaken>().through, 100u);
  std::vector<std::string> expected;
  for (const int i : {1, 2, 3, 4, 5, 6, 7, 100})
    expected.push_back(fmt::format("rollout-0: {}", i));
  EXPECT_EQ(lines(), expected);
}

// Those that were written and not acknowledged may be there twice, and none is lost.
TEST_F(GateTest, NoLineIsLostWhenTheGateComesBack) {
  start_gate();
  const auto run = join();
  for (int i = 0; i < 60; ++i) {
    run->tell(LogLevel::kError, fmt::format("{}", i));
    if (i == 20 || i == 40) restart_gate();
  }
  const auto first_ones = [&] {
    std::vector<std::string> first;
    for (const std::string& line : lines())
      if (std::ranges::find(first, line) == first.end()) first.push_back(line);
    return first;
  };
  ASSERT_TRUE(eventually([&] { return first_ones().size() == 60; }));
  const auto first = first_ones();
  for (size_t i = 0; i < 60; ++i) EXPECT_EQ(first[i], fmt::format("rollout-0: {}", i));
}

TEST_F(GateTest, WhatIsTooMuchForTheLogIsCountedAndTheNewestStay) {
  const auto run = [&] {
    start_gate();
    auto joined = join();
    stop_gate();
    return joined;
  }();
  for (int i = 0; i < 1000; ++i) run->tell(LogLevel::kWarning, fmt::format("line {}.", i));
  start_gate();
  ASSERT_TRUE(eventually([&] {
    const auto all = lines();
    return !all.empty() && all.back().find("line 999.") != std::string::npos;
  }));
  EXPECT_LE(lines().size(), 256u);
  EXPECT_NE(lines().back().find("(744 lines before were lost)"), std::string::npos)
      << lines().back();
}

// A gate that takes no more lines for now is not asked again at once.
TEST_F(GateTest, LinesThatAreNotTakenAreNotHandedInWithoutAPause) {
  std::atomic<int> handed_in = 0;
  const FakeGate gate(host_, [&](std::span<const std::byte> frame) {
    std::vector<std::vector<std::byte>> answers;
    if (wire::decode_greeting(frame))
      answers.push_back(wire::encode(
          GreetingAnswer{.kind = GreetingAnswer::Kind::kWelcome, .name = "rollout-0"}));
    const auto message = wire::decode_gate_message(frame);
    if (message && std::holds_alternative<LogLines>(message.value())) {
      ++handed_in;
      answers.push_back(wire::encode(LogTaken{0}));
    }
    return answers;
  });
  const auto run = join();
  run->tell(LogLevel::kError, "a line");
  ASSERT_TRUE(eventually([&] { return handed_in > 0; }));
  std::this_thread::sleep_for(300ms);
  EXPECT_LE(handed_in, 10) << "each 200 ms";
}

// ---- what must not end the gate

TEST_F(GateTest, LinesThatCannotBeWrittenHarmNobody) {
  disk_is_full_ = true;
  start_gate();
  const auto run = join();
  run->tell(LogLevel::kError, "a line");
  EXPECT_TRUE(is_served("west"));
  {
    std::lock_guard lock(mu_);
    disk_is_full_ = false;
  }
  run->tell(LogLevel::kError, "another line");
  ASSERT_TRUE(eventually([&] { return lines().size() == 2; }));
  EXPECT_EQ(lines().front(), "rollout-0: a line");
}

TEST_F(GateTest, WithoutFilesLeftWorkersWait) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer opens a pipe to look at an object, and finds no file left for it";
#endif
  start_gate();
  const auto run = join();
  const auto client = client_of(*run);
  // All connections of the client stand, so that none is accepted while no files are left, which
  // ends the program in libzmq. For east the gate has none to the scheduler.
  ASSERT_TRUE(serve_until([&] {
    return std::ranges::any_of(
        ups_, [&](const auto& up) { return up.hello.worker == run->welcome().name; });
  }));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = before.rlim_cur - static_cast<rlim_t>(files_left()) + 6;
  SecurePeer east(host_.endpoint("east"));
  east.greet(greeting_of(7));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const Hello hello{.role = Role::kRollout,
                    .worker = "rollout-1",
                    .incarnation = 7,
                    .numerics_class = {},
                    .joined = true,
                    .host = "far.example"};
  for (int i = 0; i < 3; ++i) east.say(Header{0, 1, 0}, hello);
  // It is alive.
  EXPECT_EQ(east.greet(greeting_of(7)).name, "rollout-1");
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(serve_until([&] {
    east.say(Header{0, 1, 0}, hello);
    return std::ranges::any_of(ups_, [](const auto& up) { return up.hello.worker == "rollout-1"; });
  }));
}

// One that comes over two connections in turn would have the gate make a connection for each frame.
TEST_F(GateTest, ConnectionsToTheSchedulerAreNotMadeByTheThousand) {
  start_gate();
  SecurePeer one(host_.endpoint("east")), two(host_.endpoint("east"));
  one.greet(greeting_of(7));
  const Hello hello{.role = Role::kRollout,
                    .worker = "rollout-0",
                    .incarnation = 7,
                    .numerics_class = {},
                    .joined = true,
                    .host = "far.example"};
  const int64_t files = files_left();
  int64_t fewest = files;
  for (uint64_t i = 0; i < 2000; ++i) {
    (i % 2 == 0 ? one : two).say(Header{0, i + 1, 0}, hello);
    fewest = std::min(fewest, files_left());
  }
  EXPECT_TRUE(is_served("west"));
  EXPECT_GT(counters().strayed, 500) << "dropped";
  EXPECT_LT(files - fewest, 200);
}

}  // namespace
}  // namespace tailrace
