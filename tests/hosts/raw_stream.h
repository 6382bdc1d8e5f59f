// Plain TCP from one host to another: the peer that a transfer over the same link is compared
// with, under the same congestion control (that of the hosts).
//
// Thread: any; the hosts are used as host.h says.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/file_descriptor.h"

namespace tailrace {

class Host;

struct TcpPair {
  FileDescriptor client, server;  // blocking, without Nagle's delay
};
// A connection from `client` to `address` of `server`. Throws std::runtime_error when there is none
// after a minute.
TcpPair connect_hosts(Host& client, Host& server, const std::string& address);

struct RawStream {
  double mbit_per_s = 0;  // of the bytes given, without headers
  double seconds = 0;     // from the first send() to the last byte that is read
};
// Over a connection of its own, whose handshake is not counted and whose slow start is. Throws when
// the stream breaks off.
RawStream raw_stream(Host& from, Host& to, const std::string& to_address, int64_t bytes);

}  // namespace tailrace
