#include "cli/env/apart.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <string_view>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/file_descriptor.h"

namespace tailrace {
namespace {

// A page that parent and child share, so that a note outlives a crash.
class SharedNote {
 public:
  SharedNote()
      : text_(static_cast<char*>(
            ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    if (text_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~SharedNote() { ::munmap(text_, kPage); }
  SharedNote(const SharedNote&) = delete;

  void write(const std::string& note) {
    const size_t length = std::min(note.size(), kBytes - 1);
    std::memcpy(text_, note.data(), length);
    text_[length] = '\0';
    // The count tells the parent that the child goes on. The text is read when the child is dead,
    // so that it needs no lock.
    ++count();
  }
  uint32_t num_written() const { return count(); }
  // " during NOTE", if there is one.
  std::string during() const {
    return text_[0] == '\0' ? "" : fmt::format(" during {}", std::string_view(text_));
  }

 private:
  static constexpr size_t kBytes = 252, kPage = 256;
  // Behind the text.
  std::atomic<uint32_t>& count() const {
    return *reinterpret_cast<std::atomic<uint32_t>*>(text_ + kBytes);
  }
  char* text_;
};

// The first character of what the child sends.
constexpr char kDone = 'd', kThrew = 't', kUserError = 'u';

void send_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t sent = ::write(descriptor, text.data(), text.size());
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return;
    text.remove_prefix(static_cast<size_t>(sent));
  }
}

[[noreturn]] void work_as_child(const std::function<std::string(const Note&)>& work,
                                SharedNote& note, int out) {
  // Nobody waits for the child once the parent is gone.
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // Not a word of a library's gets between the rows of ours.
  (void)::dup2(STDERR_FILENO, STDOUT_FILENO);
  std::string reply;
  try {
    reply = kDone + work([&note](const std::string& text) { note.write(text); });
  } catch (const UserError& error) {
    reply = kUserError + std::string(error.what());
  } catch (const std::exception& error) {
    reply = kThrew + std::string(error.what());
  } catch (...) {
    reply = kThrew + std::string("something that is no std::exception");
  }
  send_all(out, reply);
  // Without destructors and exit handlers: they are the parent's.
  ::_exit(0);
}

// Until the child has closed its end. False: `limit` is over, or it wrote no note for `quiet`.
bool receive(int descriptor, Time limit, Time quiet, const SharedNote& note, std::string& reply) {
  const Time end = steady_now() + limit;
  Time heard = steady_now();
  for (uint32_t known = note.num_written();;) {
    pollfd wanted{.fd = descriptor, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&wanted, 1, /*ms=*/100);
    if (ready < 0 && errno == EINTR) continue;
    const Time now = steady_now();
    if (const uint32_t written = note.num_written(); written != known) {
      known = written;
      heard = now;
    }
    if (ready == 0 && (now >= end || now - heard >= quiet)) return false;
    if (ready == 0) continue;
    char bytes[4096];
    const ssize_t got = ::read(descriptor, bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return true;
    reply.append(bytes, static_cast<size_t>(got));
  }
}

}  // namespace

Result<std::string> run_apart(const std::function<std::string(const Note&)>& work, Time limit,
                              Time quiet) {
  const Time begin = steady_now();
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return Failure{fmt::format("cannot make a pipe: {}", std::strerror(errno))};
  FileDescriptor in(ends[0]), out(ends[1]);
  SharedNote note;
  // Otherwise both processes write it.
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) return Failure{fmt::format("cannot start a process: {}", std::strerror(errno))};
  if (child == 0) work_as_child(work, note, out.get());
  out.reset();
  std::string reply;
  const bool in_time = receive(in.get(), limit, quiet, note, reply);
  if (!in_time) ::kill(child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!in_time)
    return Failure{fmt::format("it does not come back: killed after {:.0f} s{}",
                               seconds_of(steady_now() - begin), note.during())};
  if (WIFSIGNALED(status))
    return Failure{
        fmt::format("it ended the process{}: {}", note.during(), ::strsignal(WTERMSIG(status)))};
  if (reply.empty())
    return Failure{fmt::format("it ended the process{} with exit status {}", note.during(),
                               WEXITSTATUS(status))};
  const std::string text = reply.substr(1);
  if (reply[0] == kUserError) throw UserError("{}", text);
  if (reply[0] == kThrew) return Failure{fmt::format("it threw{}: {}", note.during(), text)};
  return text;
}

}  // namespace tailrace
