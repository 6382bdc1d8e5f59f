// A gate on a thread of its own, before a scheduler that is the real server class.
#pragma once

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/random.h"
#include "core/base/version.h"
#include "core/gate/gate.h"
#include "core/gate/remote_run.h"
#include "core/wire/doorkeeper.h"
#include "core/wire/server.h"
#include "core/wire/socket.h"
#include "core/wire/worker_client.h"
#include "tests/core/wire/keyed_host.h"

namespace tailrace {

using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;

// Nothing here waits this long unless it hangs.
inline constexpr auto kGatePatience = 20s;

inline bool eventually(const std::function<bool()>& done) {
  const auto deadline = std::chrono::steady_clock::now() + kGatePatience;
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

// A connection under an allowed key that says what it likes.
class SecurePeer {
 public:
  explicit SecurePeer(const wire::Endpoint& endpoint) : socket_(wire::Socket::Kind::kDealer) {
    socket_.connect(endpoint);
  }

  void say(std::span<const std::byte> bytes) {
    EXPECT_TRUE(eventually([&] { return socket_.send("", bytes); }));
  }
  void say(const wire::Header& header, const wire::Message& message) {
    say(wire::encode(header, message));
  }
  void say(const wire::GateMessage& message) { say(wire::encode(message)); }
  // What it is answered next.
  std::vector<std::byte> listen() {
    std::vector<std::byte> frame;
    EXPECT_TRUE(eventually([&] {
      const auto received = socket_.receive();
      if (received) frame.assign(received->frame.begin(), received->frame.end());
      return received.has_value();
    }));
    return frame;
  }
  wire::GreetingAnswer greet(const wire::Greeting& greeting) {
    say(wire::encode(greeting));
    const auto answer = wire::decode_greeting_answer(listen());
    EXPECT_TRUE(answer);
    return answer.value_or(wire::GreetingAnswer{});
  }
  // An answer that is a message of the gate, of this type.
  template <class Type>
  Type answer() {
    while (true) {
      const auto frame = listen();
      if (frame.empty()) return {};
      auto message = wire::decode_gate_message(frame);
      if (message && std::holds_alternative<Type>(message.value()))
        return std::get<Type>(std::move(message).value());
    }
  }

 private:
  wire::Socket socket_;
};

class GateTest : public testing::Test {
 protected:
  GateTest() {
    host_.allow("east");
    host_.allow("west");
    std::filesystem::create_directories(files());
    link_.heartbeat = 50ms;
    link_.timeout = 3000ms;
    link_.resend = 100ms;
    link_.linger = 300ms;
    start_scheduler();
  }
  ~GateTest() override { stop_gate(); }

  // ---- the run

  void start_scheduler() { scheduler_ = std::make_unique<wire::WorkerServer>(ipc(), link_); }
  std::string ipc() const { return "ipc://" + (host_.folder() / "s").string(); }
  std::filesystem::path files() const { return host_.folder() / "files"; }

  void start_gate() {
    gate_ = std::make_unique<Gate>(options(), log_);
    thread_ = std::jthread([this](std::stop_token stop) {
      while (!stop.stop_requested()) {
        gate_->turn(5ms);
        std::lock_guard lock(mu_);
        counters_ = gate_->counters();
      }
    });
  }
  void stop_gate() {
    thread_ = {};
    gate_.reset();
    // The names go with the process.
    std::lock_guard lock(mu_);
    names_.clear();
    for (const AdmittedWorker& worker : admitted_) names_.insert(worker.answer.name);
  }
  void restart_gate() {
    stop_gate();
    start_gate();
  }
  GateCounters counters() {
    std::lock_guard lock(mu_);
    return counters_;
  }
  std::vector<std::string> released() {
    std::lock_guard lock(mu_);
    return released_;
  }
  std::vector<std::string> lines() {
    std::lock_guard lock(mu_);
    return lines_;
  }
  void share(const std::string& name, const SharedFile& file) {
    std::lock_guard lock(mu_);
    shared_[name] = file;
  }

  GateOptions options() {
    GateOptions options;
    options.listen = host_.address();
    options.scheduler = ipc();
    options.keys = host_.keys();
    options.forget = forget_;
    options.parting = 300ms;
    options.find = [this](const std::string& name) -> std::optional<SharedFile> {
      std::lock_guard lock(mu_);
      const auto found = shared_.find(name);
      if (found == shared_.end()) return std::nullopt;
      return found->second;
    };
    options.admit = [this](const wire::Greeting& greeting, const std::string& user) {
      return admit(greeting, user);
    };
    options.release = [this](const std::string& name) {
      std::lock_guard lock(mu_);
      names_.erase(name);
      released_.push_back(name);
    };
    // As a file of the run, which is there for the next gate.
    options.admitted = admitted_;
    options.remember = [this](std::span<const AdmittedWorker> workers) {
      admitted_.assign(workers.begin(), workers.end());
    };
    options.write_lines = [this](const std::string& name, std::span<const wire::LogLine> lines) {
      std::lock_guard lock(mu_);
      if (disk_is_full_) throw UserError("the disk is full");
      for (const wire::LogLine& line : lines) lines_.push_back(name + ": " + line.text);
    };
    return options;
  }

  wire::GreetingAnswer admit(const wire::Greeting& greeting, const std::string&) {
    using Kind = wire::GreetingAnswer::Kind;
    std::lock_guard lock(mu_);
    if (!refusal_.empty()) return {.kind = Kind::kRefused, .reason = refusal_};
    if (!later_.empty()) return {.kind = Kind::kLater, .reason = later_};
    std::string name;
    for (int i = 0; name.empty() || names_.contains(name); ++i)
      name = fmt::format("{}-{}", name_of(greeting.role), i);
    names_.insert(name);
    return {.kind = Kind::kWelcome, .name = name, .run = "quickstart", .cluster = greeting.cluster};
  }

  // ---- workers

  std::unique_ptr<RemoteRun> join(const std::string& key = "east",
                                  std::chrono::milliseconds patience = 10s) {
    return std::make_unique<RemoteRun>(RemoteRunOptions{.gate = host_.endpoint(key),
                                                        .greeting = {.host = "far.example"},
                                                        .patience = patience,
                                                        .greet_again = 100ms});
  }
  wire::Hello hello_of(const RemoteRun& run) const {
    return {.role = Role::kRollout,
            .worker = run.welcome().name,
            .incarnation = run.incarnation(),
            .numerics_class = {},
            .joined = true,
            .host = "far.example"};
  }
  std::unique_ptr<wire::WorkerClient> client_of(const RemoteRun& run) const {
    return std::make_unique<wire::WorkerClient>(hello_of(run), run.endpoint(), link_);
  }
  wire::Greeting greeting_of(uint64_t incarnation) const {
    return {.build = build_id(),
            .version = std::string(version()),
            .incarnation = incarnation,
            .host = "far.example"};
  }

  // ---- the scheduler's side

  template <class Done>
  bool serve_until(const Done& done) {
    const auto deadline = std::chrono::steady_clock::now() + kGatePatience;
    while (!done()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      for (auto& event : scheduler_->receive(5ms)) {
        if (auto* up = std::get_if<wire::WorkerUp>(&event)) ups_.push_back(*up);
        if (auto* down = std::get_if<wire::WorkerDown>(&event)) downs_.push_back(*down);
        if (auto* incoming = std::get_if<wire::Incoming>(&event)) {
          scheduler_->acknowledge(incoming->worker, incoming->sequence);
          incoming_.push_back(std::move(*incoming));
        }
      }
    }
    return true;
  }
  // The next message of this type that the worker receives.
  template <class Type>
  std::optional<Type> next(wire::WorkerClient& client) {
    std::optional<Type> found;
    serve_until([&] {
      while (auto message = client.receive(0ms))
        if (auto* wanted = std::get_if<Type>(&*message)) found = std::move(*wanted);
      return found.has_value();
    });
    return found;
  }
  // So many of its messages are safe with the scheduler.
  static int64_t acknowledged(wire::WorkerClient& client) {
    while (client.receive(0ms)) {
    }
    return client.num_acknowledged();
  }
  std::vector<int64_t> steps() const {
    std::vector<int64_t> steps;
    for (const auto& incoming : incoming_)
      steps.push_back(std::get<wire::TrainerWants>(incoming.message).step);
    return steps;
  }
  // Whether a worker under this key gets through to the scheduler.
  testing::AssertionResult is_served(const std::string& key) {
    const auto run = join(key);
    const auto client = client_of(*run);
    const size_t before = incoming_.size();
    client->send(wire::TrainerWants{0, 77});
    if (!serve_until([&] { return incoming_.size() > before && acknowledged(*client) == 1; }))
      return testing::AssertionFailure() << run->welcome().name << " is not served";
    return testing::AssertionSuccess();
  }

  wire::KeyedHost host_;
  wire::LinkOptions link_;
  std::chrono::milliseconds forget_ = 600s;
  Log log_{"gate", host_.folder() / "log"};

  std::mutex mu_;
  std::map<std::string, SharedFile> shared_;
  std::set<std::string> names_;
  std::vector<AdmittedWorker> admitted_;
  std::vector<std::string> released_, lines_;
  std::string refusal_, later_;
  bool disk_is_full_ = false;
  GateCounters counters_;

  std::unique_ptr<wire::WorkerServer> scheduler_;
  std::vector<wire::WorkerUp> ups_;
  std::vector<wire::WorkerDown> downs_;
  std::vector<wire::Incoming> incoming_;

  std::unique_ptr<Gate> gate_;
  std::jthread thread_;  // turns the gate
};

// A gate that says what the test wants: `answer` gets each frame, and gives those to send back.
class FakeGate {
 public:
  using Answer =
      std::function<std::vector<std::vector<std::byte>>(std::span<const std::byte> frame)>;

  FakeGate(const wire::KeyedHost& host, Answer answer)
      : FakeGate(host.address(), wire::read_secret_key(host.keys().server()), host,
                 std::move(answer)) {}
  // At an address and under a key of its own, for those whom the host allows.
  FakeGate(const std::string& address, const wire::KeyPair& own, const wire::KeyedHost& host,
           Answer answer)
      : doorkeeper_(context_, host.keys(), bell_),
        router_(wire::Socket::Kind::kRouter, context_),
        answer_(std::move(answer)) {
    router_.bind(address, own, doorkeeper_);
    thread_ = std::jthread([this](std::stop_token stop) {
      while (!stop.stop_requested()) {
        router_.wait(5ms);
        while (const auto received = router_.receive()) {
          const std::string peer(received->peer);
          for (const auto& frame : answer_(received->frame)) router_.send(peer, frame);
        }
      }
    });
  }

 private:
  wire::SocketContext context_;
  wire::Wakeup bell_;
  wire::Doorkeeper doorkeeper_;
  wire::Socket router_;
  Answer answer_;
  std::jthread thread_;  // last: uses what is above
};

}  // namespace tailrace
