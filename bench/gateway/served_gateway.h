// A gateway whose generator is driven by a thread of its own, as `tailrace serve` drives it.
//
// Thread: the owner's; attempts begin before serve() and end after stop().
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "core/base/clock.h"
#include "rollout/gateway/gateway.h"

namespace tailrace {

class ServedGateway {
 public:
  // Borrows the generator and the format.
  ServedGateway(Generator& generator, const chat::PromptFormat& format,
                const gateway::GatewayOptions& options)
      : generator_(generator), gateway_(generator_, format, options, clock_) {}
  ~ServedGateway() { stop(); }
  ServedGateway(const ServedGateway&) = delete;

  gateway::Gateway& gateway() { return gateway_; }
  uint16_t port() { return gateway_.server().port(); }
  // The path of the chat of an attempt, or of anonymous calls.
  std::string path(const std::string& key = {}) const {
    const std::string url = gateway_.base_url(key);
    return url.substr(url.find('/', sizeof "http://" - 1)) + "/chat/completions";
  }

  // `looks`: called in each turn of the loop, on its thread.
  void serve(std::function<void()> looks = {}) {
    ends_ = false;
    thread_ = std::thread([this, looks = std::move(looks)] {
      while (!ends_) {
        gateway_.poll();
        if (looks) looks();
        if (generator_.idle()) {
          gateway_.wait(std::chrono::milliseconds(20));
        } else {
          generator_.step();
        }
      }
    });
  }
  void stop() {
    ends_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  SteadyClock clock_;
  GeneratorDriver generator_;
  gateway::Gateway gateway_;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

}  // namespace tailrace
