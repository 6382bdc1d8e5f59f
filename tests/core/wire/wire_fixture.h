// A server and its clients over real sockets, in a folder of their own.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/wire/server.h"
#include "core/wire/worker_client.h"
#include "tests/core/base/temporary_directory.h"
#include "tests/core/wire/samples.h"

namespace tailrace::wire {

using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;

// Nothing here waits this long unless it hangs.
inline constexpr auto kPatience = 20s;

class WireTest : public testing::Test {
 protected:
  WireTest() {
    endpoint_ = "ipc://" + (folder_ / "s").string();
    options_.heartbeat = 50ms;
    options_.timeout = 1000ms;
    options_.resend = 100ms;
    options_.linger = 2000ms;
  }

  void start_server() { server_ = std::make_unique<WorkerServer>(endpoint_, options_); }
  std::unique_ptr<WorkerClient> make_client(const std::string& worker = "rollout-0",
                                            uint64_t incarnation = 0) {
    return std::make_unique<WorkerClient>(
        Hello{Role::kRollout, worker, incarnation, ::getpid(), 4, "test"}, endpoint_, options_);
  }

  void turn() {
    for (auto& event : server_->receive(5ms)) {
      if (const auto* up = std::get_if<WorkerUp>(&event)) ups_.push_back(*up);
      if (const auto* down = std::get_if<WorkerDown>(&event)) downs_.push_back(*down);
      if (const auto* notice = std::get_if<Notice>(&event)) notices_.push_back(notice->text);
      if (auto* incoming = std::get_if<Incoming>(&event)) {
        if (acknowledge_) server_->acknowledge(incoming->worker, incoming->sequence);
        incoming_.push_back(std::move(*incoming));
      }
    }
  }
  // Turns the server until `done`, and once more, so that its acknowledgements are on the way;
  // false when that takes too long.
  template <class Done>
  bool serve_until(const Done& done) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (!done()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      turn();
    }
    turn();
    return true;
  }
  template <class Type>
  bool receive(WorkerClient& client, Type& out) {
    std::optional<Message> message;
    if (!serve_until([&] { return (message = client.receive(0ms)).has_value(); })) return false;
    if (!std::holds_alternative<Type>(*message)) {
      ADD_FAILURE() << "unexpected " << describe(*message);
      return false;
    }
    out = std::get<Type>(*message);
    return true;
  }
  bool welcome(WorkerClient& client) {
    Welcome message;
    return receive(client, message);
  }
  // In the newest session, which must be open.
  void send(const Message& message) {
    ASSERT_FALSE(ups_.empty());
    ASSERT_TRUE(server_->send("rollout-0", ups_.back().session, message)) << describe(message);
  }
  std::vector<int64_t> incoming_steps() const {
    std::vector<int64_t> steps;
    for (const auto& incoming : incoming_) {
      if (const auto* wants = std::get_if<TrainerWants>(&incoming.message))
        steps.push_back(wants->step);
    }
    return steps;
  }

  TemporaryDirectory directory_;
  std::filesystem::path folder_ = directory_.path();
  std::string endpoint_;
  LinkOptions options_;
  std::unique_ptr<WorkerServer> server_;
  std::vector<WorkerUp> ups_;
  std::vector<WorkerDown> downs_;
  std::vector<Incoming> incoming_;
  std::vector<std::string> notices_;
  bool acknowledge_ = true;
};

}  // namespace tailrace::wire
