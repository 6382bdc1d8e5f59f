// A TCP socket that listens at an address of this machine.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/file_descriptor.h"

namespace tailrace::http {

// Does not block and is not inherited. Throws UserError where the address cannot be had.
FileDescriptor listening_socket(const std::string& address, uint16_t port);

// Port of a TCP socket; 0 for a socket of another kind.
uint16_t port_of(int socket);

}  // namespace tailrace::http
