// Plays one worker against a real service.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "tests/scheduler/service/fake_workers.h"

namespace tailrace::scheduler {

// A worker that a test plays line by line.
class Script {
 public:
  Script(Role role, const std::string& name, const std::string& endpoint, int64_t slots = 1)
      : client_({.role = role,
                 .worker = name,
                 .incarnation = 0,
                 .pid = 1,
                 .slots = slots,
                 .numerics_class = "x"},
                endpoint, fakes::fast_link()) {}

  void say(const wire::Message& message) { client_.send(message); }

  // The next message of this type; others are passed over.
  template <class T>
  T expect() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!testing::Test::HasFailure() && std::chrono::steady_clock::now() < deadline) {
      auto message = client_.receive(std::chrono::milliseconds(50));
      if (!message) continue;
      if (T* wanted = std::get_if<T>(&*message)) return std::move(*wanted);
      if (const auto* over = std::get_if<wire::Shutdown>(&*message)) {
        ADD_FAILURE() << "the run ended: " << over->reason;
        return {};
      }
    }
    ADD_FAILURE() << "it never came";
    return {};
  }

  int64_t ask(const std::vector<BodyId>& bodies, int64_t offset, int64_t max_bytes) {
    say(wire::Fetch{
        .request = ++requests_, .bodies = bodies, .offset = offset, .max_bytes = max_bytes});
    return requests_;
  }
  std::vector<std::byte> fetch(const std::vector<BodyId>& bodies, int64_t offset,
                               int64_t max_bytes) {
    ask(bodies, offset, max_bytes);
    auto payload = expect<wire::Payload>();
    EXPECT_EQ(payload.request, requests_);
    return std::move(payload.bytes);
  }

 private:
  wire::WorkerClient client_;
  int64_t requests_ = 0;
};

}  // namespace tailrace::scheduler
