// The ZeroMQ context of sockets that share their I/O thread, such as the many of the gate. It must
// outlive them.
//
// Thread: any.
#pragma once

#include <memory>

namespace tailrace::wire {

class SocketContext {
 public:
  SocketContext();
  ~SocketContext();
  SocketContext(const SocketContext&) = delete;

  void* handle();  // as zmq.h knows it

 private:
  friend class Socket;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tailrace::wire
