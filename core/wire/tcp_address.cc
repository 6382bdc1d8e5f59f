#include "core/wire/tcp_address.h"

#include <algorithm>
#include <charconv>
#include <system_error>

#include <arpa/inet.h>
#include <fmt/format.h>

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

bool is_address_to_reach(std::string_view text) {
  constexpr size_t kLongest = 300;  // a name of 253 characters, and what is around it
  const auto address = parse_tcp_address(text);
  return address && !address->is_any() && text.size() <= kLongest;
}

std::string address_to_bind(std::string_view text) {
  auto address = parse_tcp_address(text);
  if (!address) return std::string(text);
  in_addr ignored{};
  const bool is_number =
      address->host.starts_with('[') || ::inet_pton(AF_INET, address->host.c_str(), &ignored) == 1;
  if (!is_number) address->host = "*";
  return address->text();
}

}  // namespace tailrace
