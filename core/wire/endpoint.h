// An address and the keys that its connections need.
//
// Thread: any.
#pragma once

#include <optional>
#include <string>
#include <utility>

namespace tailrace::wire {

// Keys of CURVE as Z85 text of 40 characters (http://rfc.zeromq.org/spec/32).
struct KeyPair {
  std::string public_key, secret_key;
};

// The keys of a client: its own pair, and the public key of the server that it means.
struct ClientKeys {
  KeyPair own;
  std::string server;
};

struct Endpoint {
  std::string address;                  // "ipc:///run/user/1000/tr-a1b2c3/s", "tcp://host:5555"
  std::optional<ClientKeys> keys = {};  // of a tcp:// address, always

  Endpoint() = default;
  // An endpoint of one host: the file's owner alone can reach it, and there are no keys.
  Endpoint(std::string ipc_address) : address(std::move(ipc_address)) {}
  Endpoint(const char* ipc_address) : address(ipc_address) {}
  Endpoint(std::string tcp_address, ClientKeys client)
      : address(std::move(tcp_address)), keys(std::move(client)) {}
};

}  // namespace tailrace::wire
