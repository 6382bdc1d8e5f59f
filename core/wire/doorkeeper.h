// The ZAP authenticator (http://rfc.zeromq.org/spec/27) of the sockets of a context that are bound
// under CURVE. A client whose key has a name, such as by the folder of keys, may connect, and
// nobody else may. Each message of an admitted client carries that name (Socket::Received::user).
//
// Thread: owns one. refusals() any.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "core/wire/curve_keys.h"
#include "core/wire/socket_context.h"
#include "core/wire/wakeup.h"
#include "kernels/base/mutex.h"

namespace tailrace::wire {

class Doorkeeper {
 public:
  // Whose public key it is; nothing: nobody's that may connect. Called on the Doorkeeper's thread.
  using WhoIs = std::function<std::optional<std::string>(std::string_view public_key)>;

  // Borrows the context, which outlives it; `on_refusal` is rung when somebody was refused.
  Doorkeeper(SocketContext& context, WhoIs who_is, Wakeup& on_refusal);
  // Whose key is in the folder (find_allowed()).
  Doorkeeper(SocketContext& context, KeyFolder keys, Wakeup& on_refusal);
  ~Doorkeeper();
  Doorkeeper(const Doorkeeper&) = delete;

  struct Refusal {
    std::string address;     // the client's: "10.0.0.7"
    std::string public_key;  // that it has shown
  };
  // The refusals since the last call, at most kMaxRefusals of them.
  std::deque<Refusal> refusals();
  static constexpr size_t kMaxRefusals = 64;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tailrace::wire
