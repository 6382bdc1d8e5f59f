// An address of TCP as people write it.
//
// Thread: any.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tailrace {

// "tcp://HOST:PORT": a name, an IPv4 address, an IPv6 address in brackets or, of who listens, `*`.
struct TcpAddress {
  std::string host;
  int port = 0;  // 1 to 65535

  std::string text() const;
  bool is_any() const;  // all addresses of this machine: no worker can be told so
};
// Nothing where `text` is none.
std::optional<TcpAddress> parse_tcp_address(std::string_view text);
// Whether others can be told so: an address that is one, of a length that makes sense, and not
// `*`.
bool is_address_to_reach(std::string_view text);
// Where a server of such an address listens: a name may be one of several addresses of the machine,
// so that it listens at all of them.
std::string address_to_bind(std::string_view text);

}  // namespace tailrace
