// A connection without the manners of a WorkerClient: it acknowledges nothing, reads what it wants,
// and numbers its frames as it likes.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "core/wire/frame.h"
#include "core/wire/socket.h"

namespace tailrace::wire {

class RudePeer {
 public:
  explicit RudePeer(const std::string& endpoint) : socket_(Socket::Kind::kDealer) {
    socket_.connect(endpoint);
  }

  void say(const Header& header, const std::vector<std::byte>& frame) {
    while (!socket_.send("", frame, header))
      socket_.wait(std::chrono::milliseconds(10), /*for_room=*/true);
  }
  // Without waiting for an answer. The attempt: of so many sessions that it asks for.
  void say_hello(Role role, const std::string& name, uint64_t incarnation, uint64_t attempt = 1) {
    const Hello hello{role, name, incarnation, 1, 4, std::string(100'000, 'n')};
    say({0, attempt, 0}, encode({}, hello));
    session_ = sequence_ = acknowledged_ = 0;
  }
  // Whether it has a session by now.
  bool is_welcome() {
    listen();
    return session_ != 0;
  }
  // Of what it has said, as far as it was told.
  uint64_t acknowledged() {
    listen();
    return acknowledged_;
  }
  // As one that has a session; the messages are numbered on.
  void join(Role role, const std::string& name) {
    say_hello(role, name, 1);
    while (!is_welcome()) socket_.wait(std::chrono::milliseconds(10));
  }
  void say(const Message& message) { say_next(encode({}, message)); }
  void say_next(const std::vector<std::byte>& frame) { say({session_, ++sequence_, 0}, frame); }
  // Again, or from the future.
  void say_out_of_turn(const Message& message, uint64_t sequence) {
    say({session_, sequence, 0}, encode({}, message));
  }

 private:
  void listen() {
    while (const auto received = socket_.receive()) {
      const auto header = decode_header(received->frame);
      if (header->signal == Signal::kWelcome) {
        session_ = header->session;
      } else if (header->session == session_) {
        acknowledged_ = header->ack;
      }
    }
  }

  Socket socket_;
  uint64_t session_ = 0, sequence_ = 0, acknowledged_ = 0;
};

}  // namespace tailrace::wire
