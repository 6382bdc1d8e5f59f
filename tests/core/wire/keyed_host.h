// A folder of keys and a free port of this machine: what a server under CURVE needs.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/file_descriptor.h"
#include "core/wire/curve_keys.h"
#include "core/wire/endpoint.h"
#include "kernels/base/check.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace::wire {

inline sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

// One that nobody has; it may be bound again at once.
inline int free_port() {
  const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  TR_CHECK(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
  TR_CHECK(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
  return ntohs(address.sin_port);
}

// A plain TCP connection; not open where nobody listens.
inline FileDescriptor connect_plainly(int port) {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(port);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    socket.reset();
  return socket;
}

class KeyedHost {
 public:
  KeyedHost() {
    keys_ = {folder_ / "keys"};
    std::filesystem::create_directories(keys_.allowed());
    write_key_pair(keys_.server(), keys_.server_public(), "server");
  }
  KeyedHost(const KeyedHost&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  const KeyFolder& keys() const { return keys_; }
  int port() const { return port_; }
  std::string address() const { return fmt::format("tcp://127.0.0.1:{}", port_); }

  void allow(const std::string& name) {
    write_key_pair(keys_.secret(name), keys_.allowed(name), name);
  }
  void forbid(const std::string& name) { std::filesystem::remove(keys_.allowed(name)); }
  // What `name` connects with; a pair that nobody knows where it has no key.
  Endpoint endpoint(const std::string& name) const {
    const KeyPair own = std::filesystem::exists(keys_.secret(name))
                            ? read_secret_key(keys_.secret(name))
                            : new_key_pair();
    return {address(), ClientKeys{own, read_public_key(keys_.server_public())}};
  }

 private:
  TemporaryDirectory directory_;
  std::filesystem::path folder_ = directory_.path();
  KeyFolder keys_;
  int port_ = free_port();
};

}  // namespace tailrace::wire
