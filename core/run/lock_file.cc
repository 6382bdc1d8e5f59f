#include "core/run/lock_file.h"

#include <cerrno>
#include <utility>

#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/file.h"

namespace tailrace {

LockFile::LockFile(const std::filesystem::path& path) {
  // O_CLOEXEC, as all of them: a program that inherited the descriptor would keep the lock after
  // our death.
  auto opened = open_to_append(path);
  if (!opened) throw UserError("{}", opened.failure().message);
  descriptor_ = std::move(opened).value();
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
      ::write(descriptor_.get(), pid.data(), pid.size()) < 0)
    throw UserError("{}", describe_errno("write", path, errno));
}

}  // namespace tailrace
