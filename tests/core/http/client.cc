#include "tests/core/http/client.h"

#include <algorithm>
#include <cerrno>
#include <charconv>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace tailrace::http {

Client::Client(uint16_t port)
    : Client(FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)
    ADD_FAILURE() << "cannot connect: " << errno;
}

Client::Client(FileDescriptor connected) : socket_(std::move(connected)) {
  const timeval patience = {.tv_sec = 20, .tv_usec = 0};
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
}

void Client::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t size = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (size <= 0) return;  // the server has closed: what it said first is still to be read
    bytes.remove_prefix(static_cast<size_t>(size));
  }
}

bool Client::read_more() {
  char bytes[65536];
  errno = 0;  // the end of the stream sets none
  const ssize_t size = ::recv(socket_.get(), bytes, sizeof(bytes), 0);
  if (size <= 0) return false;
  in_.append(bytes, static_cast<size_t>(size));
  return true;
}

bool Client::read_until(std::string_view part) {
  while (in_.find(part) == std::string::npos)
    if (!read_more()) return false;
  return true;
}

bool Client::is_closed_by_server() {
  while (read_more()) in_.clear();
  return errno != EAGAIN && errno != EWOULDBLOCK;
}

void Client::shut_down_sending() { ::shutdown(socket_.get(), SHUT_WR); }

Answer Client::read_answer(bool is_head) {
  Answer answer;
  if (!read_until("\r\n\r\n")) return answer;
  const size_t end = in_.find("\r\n\r\n");
  const std::string header = in_.substr(0, end + 2);
  in_.erase(0, end + 4);
  const int status = std::stoi(header.substr(header.find(' ') + 1));
  for (size_t at = header.find("\r\n") + 2; at < header.size();) {
    const size_t line_end = header.find("\r\n", at);
    const size_t colon = header.find(':', at);
    std::string name = header.substr(at, colon - at);
    std::transform(name.begin(), name.end(), name.begin(), ::tolower);
    // A blank may stand before the value.
    const size_t value = colon + 1 + (header[colon + 1] == ' ');
    answer.headers[name] = header.substr(value, line_end - value);
    at = line_end + 2;
  }
  answer.status = status;
  if (is_head || status == 204 || status == 100) {
    answer.is_whole = true;
  } else if (answer.headers.contains("transfer-encoding")) {
    for (;;) {
      if (!read_until("\r\n")) return answer;
      size_t size = 0;
      std::from_chars(in_.data(), in_.data() + in_.size(), size, 16);
      const size_t begin = in_.find("\r\n") + 2;
      while (in_.size() < begin + size + 2)
        if (!read_more()) return answer;
      answer.body += in_.substr(begin, size);
      in_.erase(0, begin + size + 2);
      if (size == 0) break;
    }
    answer.is_whole = true;
  } else if (answer.headers.contains("content-length")) {
    const size_t size = std::stoul(answer.headers["content-length"]);
    while (in_.size() < size)
      if (!read_more()) return answer;
    answer.body = in_.substr(0, size);
    in_.erase(0, size);
    answer.is_whole = true;
  } else {
    while (read_more()) {
    }
    answer.body = std::exchange(in_, {});
    answer.is_whole = true;
  }
  return answer;
}

std::string post(std::string_view target, std::string_view body, std::string_view headers) {
  return fmt::format("POST {} HTTP/1.1\r\nHost: x\r\n{}Content-Length: {}\r\n\r\n{}", target,
                     headers, body.size(), body);
}

}  // namespace tailrace::http
