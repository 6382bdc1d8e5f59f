#include "cli/run/listen.h"

#include <algorithm>
#include <charconv>
#include <system_error>

#include <fmt/format.h>

#include "core/base/error.h"

namespace tailrace {
namespace {

constexpr std::string_view kTcp = "tcp://";

bool is_host(std::string_view host) {
  if (host == "*") return true;
  const bool in_brackets = host.starts_with('[') && host.ends_with(']');
  if (in_brackets) host = host.substr(1, host.size() - 2);
  constexpr std::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
  return !host.empty() && std::ranges::all_of(host, [&](char c) {
    return kLetters.find(c) != kLetters.npos || (in_brackets && c == ':');
  });
}

}  // namespace

std::string TcpAddress::text() const { return fmt::format("{}{}:{}", kTcp, host, port); }

bool TcpAddress::is_any() const { return host == "*" || host == "0.0.0.0" || host == "[::]"; }

std::optional<TcpAddress> parse_tcp_address(std::string_view text) {
  if (!text.starts_with(kTcp)) return std::nullopt;
  text.remove_prefix(kTcp.size());
  const size_t colon = text.rfind(':');
  if (colon == text.npos || !is_host(text.substr(0, colon))) return std::nullopt;
  TcpAddress address{.host = std::string(text.substr(0, colon))};
  const std::string_view port = text.substr(colon + 1);
  const char* end = port.data() + port.size();
  const auto [rest, error] = std::from_chars(port.data(), end, address.port);
  if (error != std::errc() || rest != end || address.port < 1 || address.port > 65535)
    return std::nullopt;
  return address;
}

std::string address_to_join(const RunOptions& options) {
  auto address = parse_tcp_address(options.run.listen);
  if (!address) return "";
  if (address->is_any()) address->host = "HOST";
  return address->text();
}

void validate_listen(const RunOptions& o) {
  if (o.run.listen.empty()) {
    if (o.reward.workers == 0)
      throw UserError::at("reward.workers",
                          "is 0, but run.listen is empty: nobody could score episodes.\n       Try "
                          "reward.workers=1, or give run.listen: reward workers of other hosts "
                          "join there.");
    return;
  }
  if (!parse_tcp_address(o.run.listen))
    throw UserError::at("run.listen",
                        "is '{}'; it is tcp://HOST:PORT, of an address of this machine or * for "
                        "all of them, and a port from 1 to 65535. Try tcp://*:7117.",
                        o.run.listen);
  if (o.run.keys.empty())
    throw UserError::at("run.listen",
                        "is {}, but run.keys is empty: who may join is known by keys.\n       Make "
                        "them with 'tailrace keys', and give their folder as run.keys=DIR.",
                        o.run.listen);
}

}  // namespace tailrace
