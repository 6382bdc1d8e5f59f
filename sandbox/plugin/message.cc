#include "sandbox/plugin/message.h"

#include <algorithm>
#include <cerrno>

#include <poll.h>
#include <sys/socket.h>

#include "core/base/clock.h"

namespace tailrace::sandbox {
namespace {

// Waits until the socket is ready; none: it is.
std::optional<SocketEnd> await(int socket, short events, std::optional<Time> until) {
  while (true) {
    timespec left{};
    if (until) {
      const Time rest = std::max(Time{0}, *until - steady_now());
      left = {.tv_sec = rest.count() / 1'000'000'000, .tv_nsec = rest.count() % 1'000'000'000};
    }
    pollfd waited{.fd = socket, .events = events, .revents = 0};
    const int ready = ::ppoll(&waited, 1, until ? &left : nullptr, nullptr);
    if (ready > 0) return std::nullopt;
    if (ready == 0) return SocketEnd::kLate;
    if (errno != EINTR) return SocketEnd::kClosed;
  }
}

std::optional<SocketEnd> receive_all(int socket, char* to, uint64_t bytes,
                                     std::optional<Time> until) {
  while (bytes > 0) {
    const ssize_t got = ::recv(socket, to, bytes, MSG_DONTWAIT);
    if (got > 0) {
      to += got;
      bytes -= static_cast<uint64_t>(got);
    } else if (got == 0) {
      return SocketEnd::kClosed;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (auto end = await(socket, POLLIN, until)) return end;
    } else if (errno != EINTR) {
      return SocketEnd::kClosed;
    }
  }
  return std::nullopt;
}

}  // namespace

bool Unpacker::take(uint64_t bytes) {
  if (bytes > left_.size()) ok_ = false;
  if (!ok_) return false;
  taken_ = left_.substr(0, bytes);
  left_.remove_prefix(bytes);
  return true;
}

std::string Unpacker::text() {
  const auto bytes = number<uint64_t>();
  return take(bytes) ? std::string(taken_) : std::string();
}

uint64_t Unpacker::count() {
  const auto count = number<uint64_t>();
  if (count > left_.size()) ok_ = false;
  return ok_ ? count : 0;
}

Packer& Packer::settings(const EnvironmentSettings& settings) {
  number<uint64_t>(settings.size());
  for (const auto& [name, value] : settings) text(name).text(value);
  return *this;
}

EnvironmentSettings Unpacker::settings() {
  EnvironmentSettings settings;
  for (uint64_t left = count(); left > 0 && ok_; --left) {
    std::string name = text();
    settings.emplace_back(std::move(name), text());
  }
  return settings;
}

namespace {

void pack_texts(Packer& packer, const std::vector<std::string>& texts) {
  packer.number<uint64_t>(texts.size());
  for (const std::string& text : texts) packer.text(text);
}

std::vector<std::string> unpack_texts(Unpacker& unpacker) {
  std::vector<std::string> texts;
  for (uint64_t left = unpacker.count(); left > 0 && unpacker.ok(); --left)
    texts.push_back(unpacker.text());
  return texts;
}

}  // namespace

void pack_metrics(Packer& packer, const MetricList& metrics) {
  packer.number<uint64_t>(metrics.size());
  for (const auto& [name, value] : metrics) packer.text(name).number<double>(value);
}

MetricList unpack_metrics(Unpacker& unpacker) {
  MetricList metrics;
  for (uint64_t left = unpacker.count(); left > 0 && unpacker.ok(); --left) {
    std::string name = unpacker.text();
    metrics.emplace_back(std::move(name), unpacker.number<double>());
  }
  return metrics;
}

void pack(Packer& packer, const EnvironmentInfo& info) {
  packer.text(info.name);
  pack_texts(packer, info.vocabulary);
  pack_texts(packer, info.stop_strings);
  packer.number(info.max_turns).number(info.max_action_tokens).number(info.needs_dataset);
  packer.text(info.verifier);
}

EnvironmentInfo unpack_info(Unpacker& unpacker) {
  EnvironmentInfo info;
  info.name = unpacker.text();
  info.vocabulary = unpack_texts(unpacker);
  info.stop_strings = unpack_texts(unpacker);
  info.max_turns = unpacker.number<int64_t>();
  info.max_action_tokens = unpacker.number<int64_t>();
  info.needs_dataset = unpacker.number<bool>();
  info.verifier = unpacker.text();
  return info;
}

void pack(Packer& packer, const StepResult& result) {
  const Observation& observation = result.observation;
  packer.text(observation.text).text(observation.messages).text(observation.tools);
  packer.text(observation.state);
  packer.number(result.reward).number(result.terminated).number(result.truncated);
  packer.number(result.pending).text(result.verifier).text(result.evidence).text(result.reason);
  pack_metrics(packer, result.metrics);
}

StepResult unpack_step(Unpacker& unpacker) {
  StepResult result;
  result.observation.text = unpacker.text();
  result.observation.messages = unpacker.text();
  result.observation.tools = unpacker.text();
  result.observation.state = unpacker.text();
  result.reward = unpacker.number<double>();
  result.terminated = unpacker.number<bool>();
  result.truncated = unpacker.number<bool>();
  result.pending = unpacker.number<bool>();
  result.verifier = unpacker.text();
  result.evidence = unpacker.text();
  result.reason = unpacker.text();
  result.metrics = unpack_metrics(unpacker);
  return result;
}

std::optional<size_t> send_some(int socket, std::string_view bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t now =
        ::send(socket, bytes.data() + sent, bytes.size() - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (now > 0)
      sent += static_cast<size_t>(now);
    else if (errno == EAGAIN || errno == EWOULDBLOCK)
      break;
    else if (errno != EINTR)
      return std::nullopt;
  }
  return sent;
}

std::optional<SocketEnd> send_message(int socket, std::string_view bytes,
                                      std::optional<Time> timeout) {
  std::string framed = Packer().text(bytes).bytes();
  const std::optional<Time> until = timeout ? std::optional(steady_now() + *timeout) : std::nullopt;
  std::string_view left = framed;
  while (const auto sent = send_some(socket, left)) {
    left.remove_prefix(*sent);
    if (left.empty()) return std::nullopt;
    if (auto end = await(socket, POLLOUT, until)) return end;
  }
  return SocketEnd::kClosed;
}

std::optional<SocketEnd> receive_message(int socket, uint64_t most, std::optional<Time> timeout,
                                         std::string& bytes) {
  const std::optional<Time> until = timeout ? std::optional(steady_now() + *timeout) : std::nullopt;
  uint64_t size = 0;
  if (auto end = receive_all(socket, reinterpret_cast<char*>(&size), sizeof size, until))
    return end;
  if (size > most) return SocketEnd::kMalformed;
  bytes.resize(size);
  return receive_all(socket, bytes.data(), size, until);
}

}  // namespace tailrace::sandbox
