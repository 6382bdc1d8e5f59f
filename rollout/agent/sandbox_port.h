// The port of one sandbox, at which the server accepts while this lives.
//
// Thread: one at a time. The server is borrowed.
#pragma once

#include <utility>

#include "core/base/file_descriptor.h"
#include "core/http/server.h"

namespace tailrace {

class SandboxPort {
 public:
  SandboxPort() = default;
  SandboxPort(http::Server& server, FileDescriptor listening)
      : server_(&server), number_(listening.get()) {
    server.listen_on(std::move(listening));
  }
  SandboxPort(SandboxPort&& other) noexcept
      : server_(std::exchange(other.server_, nullptr)), number_(other.number_) {}
  SandboxPort& operator=(SandboxPort&& other) noexcept {
    std::swap(server_, other.server_);
    std::swap(number_, other.number_);
    return *this;
  }
  ~SandboxPort() {
    if (server_ != nullptr) server_->stop_listening(number_);
  }

 private:
  http::Server* server_ = nullptr;
  int number_ = -1;
};

}  // namespace tailrace
