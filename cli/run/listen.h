// Where workers of other hosts join a run: run.listen.
//
// Thread: any.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cli/run/options.h"

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

// What a worker elsewhere is told; the host is HOST where a person must say which of the machine's
// it is. Empty: run.listen is.
std::string address_to_join(const RunOptions& options);

// An address that is one, keys with it, and who scores episodes. Throws UserError.
void validate_listen(const RunOptions& options);

}  // namespace tailrace
