#include "bench/gateway/swarm.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "bench/report/program.h"

namespace tailrace {
namespace {

constexpr int kSilenceMs = 30'000;

// The value of a header, whose name is in lower case here and in the servers that are measured.
std::string_view header_of(std::string_view head, std::string_view name) {
  const size_t at = head.find(name);
  if (at == head.npos) return {};
  const std::string_view value = head.substr(at + name.size());
  return value.substr(0, value.find('\r'));
}

// The chunks of a body as one text, and where they end; nothing: they do not yet.
std::optional<size_t> join_chunks(std::string_view bytes, std::string& body) {
  for (size_t at = 0;;) {
    const size_t line = bytes.find("\r\n", at);
    if (line == bytes.npos) return std::nullopt;
    size_t size = 0;
    const auto read = std::from_chars(bytes.data() + at, bytes.data() + line, size, 16);
    require(read.ec == std::errc(), "a chunk of an answer has no size");
    if (bytes.size() < line + 2 + size + 2) return std::nullopt;
    body += bytes.substr(line + 2, size);
    at = line + 2 + size + 2;
    if (size == 0) return at;
  }
}

void send_all(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    require(sent > 0, "the server takes no request: {}", std::strerror(errno));
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

}  // namespace

std::string http_post(std::string_view target, std::string_view body) {
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
      "Content-Length: {}\r\n\r\n{}",
      target, body.size(), body);
}

std::string http_get(std::string_view target) {
  return fmt::format("GET {} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", target);
}

std::optional<HttpAnswer> take_answer(std::string& bytes) {
  const size_t end = bytes.find("\r\n\r\n");
  if (end == bytes.npos) return std::nullopt;
  const std::string_view head = std::string_view(bytes).substr(0, end + 2);
  HttpAnswer answer;
  require(head.starts_with("HTTP/1.1 ") && head.size() > 12, "an answer is not HTTP/1.1");
  std::from_chars(head.data() + 9, head.data() + 12, answer.status);
  size_t size = end + 4;
  if (header_of(head, "transfer-encoding: ") == "chunked") {
    const auto chunks = join_chunks(std::string_view(bytes).substr(size), answer.body);
    if (!chunks) return std::nullopt;
    size += *chunks;
  } else {
    const std::string_view length = header_of(head, "content-length: ");
    size_t body = 0;
    std::from_chars(length.data(), length.data() + length.size(), body);
    if (bytes.size() < size + body) return std::nullopt;
    answer.body = bytes.substr(size, body);
    size += body;
  }
  bytes.erase(0, size);
  return answer;
}

FileDescriptor connect_to(uint16_t port, uint32_t from) {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  require(socket.is_open(), "no socket: {}", std::strerror(errno));
  const int on = 1;
  (void)::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  if (from > 1) {
    // The port is chosen when the other end is known: each address has all ports for each.
    (void)::setsockopt(socket.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    address.sin_addr.s_addr = htonl(0x7f000000U + from);
    require(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0,
            "no address 127.0.0.{}: {}", from, std::strerror(errno));
  }
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  require(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0,
          "no connection to port {}: {}", port, std::strerror(errno));
  return socket;
}

void ask_all(uint16_t port, size_t clients, bool keeps,
             const std::function<std::optional<std::string>(size_t, const HttpAnswer*)>& next) {
  struct Client {
    FileDescriptor socket = {};
    std::string in = {};
    Stopwatch watch = Stopwatch();
  };
  std::vector<Client> all(clients);
  const FileDescriptor events(::epoll_create1(EPOLL_CLOEXEC));
  require(events.is_open(), "no epoll: {}", std::strerror(errno));
  size_t open = 0;
  // False: the client is done.
  const auto ask = [&](size_t i, const HttpAnswer* last) {
    const auto request = next(i, last);
    Client& client = all[i];
    if (!request || !keeps) client.socket.reset();
    if (!request) return false;
    client.watch.lap();
    if (!client.socket.is_open()) {
      client.socket = connect_to(port);
      epoll_event event = {.events = EPOLLIN, .data = {.u64 = i}};
      require(::epoll_ctl(events.get(), EPOLL_CTL_ADD, client.socket.get(), &event) == 0,
              "a connection cannot be watched: {}", std::strerror(errno));
    }
    send_all(client.socket.get(), *request);
    return true;
  };
  for (size_t i = 0; i < clients; ++i) open += ask(i, nullptr) ? 1 : 0;
  std::array<epoll_event, 256> ready{};
  std::vector<char> buffer(size_t{256} << 10);
  while (open > 0) {
    const int count = ::epoll_wait(events.get(), ready.data(), ready.size(), kSilenceMs);
    if (count < 0 && errno == EINTR) continue;
    require(count > 0, "{} of {} clients wait for an answer, and none came for {} s", open, clients,
            kSilenceMs / 1000);
    for (int e = 0; e < count; ++e) {
      const auto i = static_cast<size_t>(ready[static_cast<size_t>(e)].data.u64);
      Client& client = all[i];
      const ssize_t size = ::recv(client.socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (size < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      require(size > 0, "the server ended a connection within an answer");
      client.in.append(buffer.data(), static_cast<size_t>(size));
      auto answer = take_answer(client.in);
      if (!answer) continue;
      answer->seconds = client.watch.seconds();
      if (!ask(i, &*answer)) --open;
    }
  }
}

}  // namespace tailrace
