// Passes the frames of one worker of another host on to the scheduler and back, as they are, over a
// connection of the worker's own. When the worker connects anew, so does the relay: what was on its
// way may be lost, and the scheduler, which sees a new connection, sends it again.
//
// It keeps no queue but one frame in each direction. Back-pressure is ZeroMQ's: what the worker
// does not take waits before the scheduler.
//
// Thread: the gate's.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/rate_limit.h"
#include "core/base/time.h"
#include "core/gate/in_flight.h"
#include "core/wire/frame.h"
#include "core/wire/socket.h"

namespace tailrace {

class WorkerRelay {
 public:
  WorkerRelay();

  enum class Verdict {
    kTaken,         // passed on, or dropped where the link sends it again
    kTooOften,      // the worker connects too often
    kBeyondWindow,  // it has more on its way than an honest link
  };
  // A frame that came over the connection `routing`. Throws UserError when no connection to
  // `scheduler` can be made.
  Verdict from_worker(const wire::Header& header, std::string_view routing,
                      std::span<const std::byte> frame, wire::SocketContext& context,
                      const std::string& scheduler);

  // False: the worker's connection is gone, or it takes nothing.
  using Send = std::function<bool(std::string_view routing, std::span<const std::byte> frame)>;
  // Passes on what the scheduler has sent, as far as the worker takes it.
  void from_scheduler(const Send& send);

  // Whether a frame of this session is the worker's.
  bool knows(uint64_t session) const;
  // To be waited on for frames of the scheduler; null: none is wanted now.
  wire::Socket* to_poll() const { return held_.empty() ? upstream_.get() : nullptr; }
  // Nobody should wait longer before from_scheduler() is called again.
  std::chrono::milliseconds patience() const;

 private:
  void reconnect(std::string_view routing, wire::SocketContext& context,
                 const std::string& scheduler);
  bool pass_on(std::span<const std::byte> frame);
  bool pass_on_first();
  void look_into(std::span<const std::byte> frame);

  std::unique_ptr<wire::Socket> upstream_;  // null until the first frame
  RateLimit connections_;
  Time connected_ = Time::min();    // when `upstream_` began to connect
  std::vector<std::byte> first_;    // for `upstream_`, which takes nothing yet
  std::string routing_;             // of the worker's latest frame
  std::vector<uint64_t> sessions_;  // the latest last
  std::vector<std::byte> held_;     // came from the scheduler, and could not be sent yet
  Time retry_at_ = Time::min();
  std::chrono::milliseconds retry_;  // doubles while the worker takes nothing
  InFlight in_flight_;
};

}  // namespace tailrace
