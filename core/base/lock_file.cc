#include "core/base/lock_file.h"

#include <cerrno>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/file.h"

namespace tailrace {

LockFile::LockFile(const std::filesystem::path& path)
    // O_CLOEXEC: a program that inherited the descriptor would keep the lock after our death.
    : descriptor_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
  if (!descriptor_.is_open()) throw UserError("{}", describe_errno("open", path, errno));
  if (::flock(descriptor_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) throw UserError("{}", describe_errno("lock", path, errno));
    const auto owner = read_file(path, 64);
    if (owner) holder_ = owner.value().substr(0, owner.value().find('\n'));
    if (holder_.empty()) holder_ = "unknown";
    return;
  }
  held_ = true;
  // For the message of whoever comes too late; the lock itself is the kernel's.
  const std::string pid = fmt::format("{}\n", ::getpid());
  if (::ftruncate(descriptor_.get(), 0) != 0 ||
      ::pwrite(descriptor_.get(), pid.data(), pid.size(), 0) < 0)
    throw UserError("{}", describe_errno("write", path, errno));
}

}  // namespace tailrace
