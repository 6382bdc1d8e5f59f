// Network devices of the namespace that the calling thread lives in. They throw
// std::runtime_error with what the system refuses.
//
// Thread: any.
#pragma once

#include <string>

#include "core/base/file_descriptor.h"

namespace tailrace {

void raise_loopback();

struct LinkDevice {
  std::string address, peer;
  int mtu_bytes;
  std::string congestion_control;  // of TCP to the peer
};

// A TUN device that is up. Each read() gives a packet that was sent to `peer`, and each write()
// delivers one, in the form of link_packet.h; neither waits. The device goes with the descriptor.
FileDescriptor open_link_device(const LinkDevice& device);

}  // namespace tailrace
