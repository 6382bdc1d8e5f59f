#include "core/http/listening_socket.h"

#include <cerrno>
#include <cstring>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "core/base/error.h"

namespace tailrace::http {
namespace {

struct Address {
  sockaddr_storage storage = {};
  socklen_t size = 0;
};

Address parse_address(const std::string& text, uint16_t port) {
  Address address;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  if (::inet_pton(AF_INET, text.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    address.size = sizeof(*v4);
    return address;
  }
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (::inet_pton(AF_INET6, text.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    address.size = sizeof(*v6);
    return address;
  }
  throw UserError(
      "cannot listen at \"{}\": it is no IP address. Give one in digits, such as 127.0.0.1 (this "
      "machine only) or 0.0.0.0 (every network).",
      text);
}

std::string advice(int error) {
  switch (error) {
    case EADDRINUSE:
      return "another program listens there. Choose another port, or 0 for any that is free.";
    case EACCES:
      return "ports below 1024 are the administrator's. Choose a larger port, or 0 for any that "
             "is free.";
    case EADDRNOTAVAIL:
      return "this machine does not have that address. Choose one of its own (`ip address` lists "
             "them), or 127.0.0.1.";
    default:
      return std::strerror(error);
  }
}

}  // namespace

FileDescriptor listening_socket(const std::string& address, uint16_t port) {
  const Address at = parse_address(address, port);
  const auto check = [&](int result) {
    if (result < 0)
      throw UserError("cannot listen at {} port {}: {}", address, port, advice(errno));
    return result;
  };
  FileDescriptor socket(
      check(::socket(at.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)));
  const int on = 1;
  // Connections of the process before linger in TIME_WAIT for a minute and would keep the port from
  // a restart.
  check(::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)));
  check(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&at.storage), at.size));
  check(::listen(socket.get(), SOMAXCONN));
  return socket;
}

uint16_t port_of(int socket) {
  sockaddr_storage storage = {};
  socklen_t size = sizeof(storage);
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&storage), &size) != 0) return 0;
  if (storage.ss_family == AF_INET)
    return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  if (storage.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
  return 0;
}

}  // namespace tailrace::http
