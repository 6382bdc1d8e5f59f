#include "tests/hosts/raw_stream.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "tests/hosts/host.h"
#include "tests/hosts/system_failure.h"

namespace tailrace {
namespace {

constexpr size_t kPiece = 256 << 10;

void require(bool is_right, const char* action, const std::string& what) {
  if (!is_right) fail_with(errno, action, what);
}

FileDescriptor open_socket(Host& host) {
  FileDescriptor socket;
  host.run_inside(
      [&] { socket = FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); });
  require(socket.is_open(), "cannot open a socket of", host.name());
  return socket;
}

}  // namespace

TcpPair connect_hosts(Host& client, Host& server, const std::string& address) {
  const FileDescriptor listener = open_socket(server);
  // Also bounds accept().
  const timeval patience{.tv_sec = 60, .tv_usec = 0};
  ::setsockopt(listener.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  sockaddr_in place{};
  place.sin_family = AF_INET;
  require(::inet_pton(AF_INET, address.c_str(), &place.sin_addr) == 1, "cannot read", address);
  auto* const generic = reinterpret_cast<sockaddr*>(&place);
  socklen_t size = sizeof place;
  require(::bind(listener.get(), generic, size) == 0, "cannot bind", address);
  require(::listen(listener.get(), 1) == 0, "cannot listen at", address);
  require(::getsockname(listener.get(), generic, &size) == 0, "cannot read the port of", address);

  TcpPair pair{.client = open_socket(client), .server = {}};
  // Also bounds connect().
  ::setsockopt(pair.client.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  require(::connect(pair.client.get(), generic, size) == 0, "cannot connect to", address);
  const timeval no_bound{};
  ::setsockopt(pair.client.get(), SOL_SOCKET, SO_SNDTIMEO, &no_bound, sizeof no_bound);
  pair.server = FileDescriptor(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  require(pair.server.is_open(), "cannot accept at", address);
  for (const FileDescriptor* end : {&pair.client, &pair.server}) {
    const int yes = 1;
    ::setsockopt(end->get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  }
  return pair;
}

RawStream raw_stream(Host& from, Host& to, const std::string& to_address, int64_t bytes) {
  const TcpPair pair = connect_hosts(from, to, to_address);
  const auto begin = std::chrono::steady_clock::now();
  const std::jthread sender([&] {
    const std::vector<char> piece(kPiece, 'x');
    int64_t left = bytes;
    while (left > 0) {
      const auto size = std::min<int64_t>(left, kPiece);
      const ssize_t sent = ::send(pair.client.get(), piece.data(), size, MSG_NOSIGNAL);
      if (sent <= 0) break;
      left -= sent;
    }
    ::shutdown(pair.client.get(), SHUT_WR);
  });
  std::vector<char> piece(kPiece);
  int64_t received = 0;
  while (received < bytes) {
    const ssize_t size = ::recv(pair.server.get(), piece.data(), piece.size(), 0);
    if (size <= 0) {
      ::shutdown(pair.server.get(), SHUT_RDWR);  // so that the sender does not wait
      throw std::runtime_error("the raw stream broke off");
    }
    received += size;
  }
  RawStream result;
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  result.mbit_per_s = static_cast<double>(bytes) * 8 / 1e6 / result.seconds;
  return result;
}

}  // namespace tailrace
