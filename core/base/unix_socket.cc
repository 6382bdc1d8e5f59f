#include "core/base/unix_socket.h"

#include <cerrno>
#include <cstring>
#include <string>

#include <sys/socket.h>
#include <sys/un.h>

#include "core/base/file_descriptor.h"

namespace tailrace {

bool somebody_listens(const std::filesystem::path& path) {
  const std::string name = path.string();
  sockaddr_un address{};
  static_assert(kMaxSocketPath + 1 == sizeof(address.sun_path));  // and its terminator
  if (name.size() > kMaxSocketPath) return false;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, name.data(), name.size());
  // Only a connection tells: the file of a socket stays when its process is killed.
  const FileDescriptor probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  return probe.is_open() &&
         (::connect(probe.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 ||
          errno == EAGAIN);  // its queue is full
}

}  // namespace tailrace
