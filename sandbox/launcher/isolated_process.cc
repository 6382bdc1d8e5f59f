#include "sandbox/launcher/isolated_process.h"

#include <cerrno>
#include <csignal>
#include <cstddef>

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/mount.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

namespace tailrace::sandbox {
namespace {

// Where the descriptors of the plan lie in the process: 0 to 2 as everywhere, then these.
constexpr int kReport = 3, kGo = 4, kNumDescriptors = 5;
constexpr int kDetach = 2;  // MNT_DETACH; <sys/mount.h> does not go with <linux/mount.h>

// The root is put together here before it becomes the root: any folder that every system has.
constexpr const char* kRoot = "/tmp";

// A system call without the library around it, which a sanitizer may have replaced.
template <class... Args>
long call(long number, Args... args) {
  return ::syscall(number, args...);
}

void report(const IsolationReport& what, int file = kReport) {
  call(SYS_write, file, &what, sizeof what);
}

// Also hands out `descriptor`. The socket has room for it: it is the first that is said.
bool report_with(const IsolationReport& what, int descriptor) {
  iovec bytes{.iov_base = const_cast<IsolationReport*>(&what), .iov_len = sizeof what};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof descriptor)] = {};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof descriptor);
  *reinterpret_cast<int*>(CMSG_DATA(header)) = descriptor;
  return call(SYS_sendmsg, kReport, &message, MSG_NOSIGNAL) == sizeof what;
}

[[noreturn]] void end() {
  for (;;) call(SYS_exit_group, 0);
}

void require(bool ok, IsolationStep step) {
  if (ok) return;
  report({.step = step, .error = errno});
  end();
}

int64_t now() {
  timespec time{};
  call(SYS_clock_gettime, CLOCK_MONOTONIC, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

pid_t start_process(uint64_t flags, uint64_t exit_signal, int* pidfd) {
  clone_args arguments{};
  arguments.flags = flags;
  arguments.exit_signal = exit_signal;
  arguments.pidfd = reinterpret_cast<uint64_t>(pidfd);
  return static_cast<pid_t>(call(SYS_clone3, &arguments, sizeof arguments));
}

void place_descriptors(const IsolationPlan& plan) {
  int wanted[kNumDescriptors] = {plan.input, plan.out, plan.err, plan.report, plan.go};
  // Out of the way first: one may lie where another belongs.
  for (int& descriptor : wanted) {
    descriptor = static_cast<int>(call(SYS_fcntl, descriptor, F_DUPFD, kNumDescriptors));
    if (descriptor >= 0) continue;
    // Not by require(): what lies where reports go may still be anything of ours.
    report({.step = IsolationStep::kDescriptors, .error = errno}, plan.report);
    end();
  }
  // Onto places below those that were just to be had: this cannot fail.
  for (int i = 0; i < kNumDescriptors; ++i)
    call(SYS_dup3, wanted[i], i, i < kReport ? 0 : O_CLOEXEC);
  // Sockets and files of the run that were open at the clone must not reach the program.
  call(SYS_close_range, unsigned{kNumDescriptors}, ~0u, 0u);
}

bool write_whole(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const long written = call(SYS_write, file, bytes.data(), bytes.size());
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

bool write_new_file(const char* path, std::string_view bytes, unsigned mode = 0644) {
  const long file = call(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  const bool ok = file >= 0 && write_whole(static_cast<int>(file), bytes);
  const int error = errno;
  if (file >= 0) call(SYS_close, file);
  errno = error;
  return ok;
}

bool mount_tmpfs(const char* path, const char* options) {
  return call(SYS_mount, "tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, options) == 0;
}

// Makes the file or folder `source` appear at `target`, which is there. One that the machine lacks
// is left out.
bool bind(const char* source, const char* target) {
  return call(SYS_mount, source, target, nullptr, MS_BIND | MS_REC, nullptr) == 0 ||
         errno == ENOENT;
}

bool make_read_only(const char* path, unsigned flags) {
  mount_attr attributes{};
  attributes.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID;
  return call(SYS_mount_setattr, AT_FDCWD, path, flags, &attributes, sizeof attributes) == 0;
}

bool exists(const char* path) { return call(SYS_faccessat, AT_FDCWD, path, F_OK) == 0; }

// Paths are relative to the new root.
void bind_system_files() {
  for (const auto& [source, target] : kShownFolders) {
    if (!exists(source)) continue;
    require(call(SYS_mkdirat, AT_FDCWD, target, 0755) == 0 && bind(source, target) &&
                make_read_only(target, AT_RECURSIVE),
            IsolationStep::kSystemFiles);
  }
  if (exists("/etc/ld.so.cache"))
    require(write_new_file("etc/ld.so.cache", "") && bind("/etc/ld.so.cache", "etc/ld.so.cache") &&
                make_read_only("etc/ld.so.cache", 0),
            IsolationStep::kSystemFiles);
}

void bind_devices() {
  struct Bound {
    const char *source, *target;
  };
  for (const auto& [source, target] :
       {Bound{"/dev/null", "dev/null"}, Bound{"/dev/zero", "dev/zero"},
        Bound{"/dev/full", "dev/full"}, Bound{"/dev/random", "dev/random"},
        Bound{"/dev/urandom", "dev/urandom"}})
    require(write_new_file(target, "") && bind(source, target), IsolationStep::kDevices);
  // Where libraries keep memory that processes share.
  require(call(SYS_symlinkat, "/tmp", AT_FDCWD, "dev/shm") == 0, IsolationStep::kDevices);
}

// Afterwards the working directory is the program's, /tmp.
void enter_private_root(const IsolationPlan& plan) {
  constexpr auto kStep = IsolationStep::kMounts;
  // Where the root of the machine is shared, as systemd has it, our mounts would appear there too.
  require(call(SYS_mount, nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0, kStep);
  require(mount_tmpfs(kRoot, "size=1m,nr_inodes=256,mode=755"), kStep);
  require(call(SYS_chdir, kRoot) == 0, kStep);
  for (const char* folder : {"dev", "etc", "nix", "tmp"})
    require(call(SYS_mkdirat, AT_FDCWD, folder, 0755) == 0, kStep);
  bind_system_files();
  bind_devices();
  require(mount_tmpfs("tmp", plan.disk), kStep);
  // Both are ".": the old root comes to lie over the new one, and is taken away.
  require(call(SYS_pivot_root, ".", ".") == 0 && call(SYS_umount2, ".", kDetach) == 0 &&
              make_read_only("/", 0) && call(SYS_chdir, "/tmp") == 0,
          IsolationStep::kPrivateRoot);
}

// A socket that listens at a port of this namespace, where it is the only one; whoever holds it
// accepts, also outside. Bound before the program begins, so nobody else can be there.
int open_port(uint16_t port) {
  constexpr auto kStep = IsolationStep::kPort;
  const auto socket =
      static_cast<int>(call(SYS_socket, AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  require(socket >= 0, kStep);
  ifreq loopback{};
  loopback.ifr_name[0] = 'l';
  loopback.ifr_name[1] = 'o';
  require(call(SYS_ioctl, socket, SIOCGIFFLAGS, &loopback) == 0, kStep);
  loopback.ifr_flags |= IFF_UP;
  require(call(SYS_ioctl, socket, SIOCSIFFLAGS, &loopback) == 0, kStep);
  // In the order of the network: not by htons(), a function of the library.
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = __builtin_bswap16(port);
  address.sin_addr.s_addr = __builtin_bswap32(INADDR_LOOPBACK);
  require(call(SYS_bind, socket, &address, sizeof address) == 0 &&
              call(SYS_listen, socket, SOMAXCONN) == 0,
          kStep);
  return socket;
}

[[noreturn]] void become_program(const IsolationPlan& plan) {
  call(SYS_setsid);
  for (const auto& [resource, limit] : plan.limits)
    require(call(SYS_prlimit64, 0, resource, &limit, nullptr) == 0, IsolationStep::kLimits);
  // Signals that we ignore would stay ignored. The kernel's own layout: all zero is the default.
  const uint64_t by_default[4] = {}, no_signals = 0;
  for (int signal = 1; signal <= 64; ++signal)
    call(SYS_rt_sigaction, signal, by_default, nullptr, sizeof no_signals);
  call(SYS_rt_sigprocmask, SIG_SETMASK, &no_signals, nullptr, sizeof no_signals);
  call(SYS_umask, 022);
  const sock_fprog filter = {.len = static_cast<unsigned short>(plan.filter.size()),
                             .filter = const_cast<sock_filter*>(plan.filter.data())};
  // Without this word the kernel takes no filter from a process without rights. It also means that
  // a set-user-id program gives no rights.
  require(call(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
              call(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) == 0,
          IsolationStep::kFilter);
  call(SYS_execve, plan.arguments[0], plan.arguments, plan.environment);
  require(false, IsolationStep::kCommand);
  end();  // not reached
}

// Reaps whatever ends until the program has, and takes the rest along: the end of a pid namespace's
// first process is the end of all.
[[noreturn]] void be_init(const IsolationPlan& plan) {
  place_descriptors(plan);
  char go = 0;
  if (call(SYS_read, kGo, &go, 1) != 1) end();
  // Where memory is short it goes before anybody's work. Before the ids change, as it is not ours
  // afterwards.
  const long file = call(SYS_openat, AT_FDCWD, "/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (file >= 0) {
    call(SYS_write, file, "1000", 4);
    call(SYS_close, file);
  }
  // The group first: without the rights of the user before, it could not be changed any more.
  require(call(SYS_setresgid, kInnerId, kInnerId, kInnerId) == 0 &&
              call(SYS_setresuid, kInnerId, kInnerId, kInnerId) == 0,
          IsolationStep::kIds);
  // Behind the change of ids, by which the kernel forgets this signal (prctl(2)).
  call(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  // The death of a parent before that line shows by its end of the pipe.
  pollfd parent = {.fd = kGo, .events = 0, .revents = 0};
  const timespec at_once = {};
  if (call(SYS_ppoll, &parent, 1, &at_once, nullptr, 0) != 0) end();
  enter_private_root(plan);
  call(SYS_sethostname, "sandbox", 7);
  for (const IsolatedFile& file_of_program : plan.files)
    // One of them may be the program.
    require(write_new_file(file_of_program.name, file_of_program.bytes, 0755),
            IsolationStep::kFiles);
  if (plan.port == 0) {
    report({.step = IsolationStep::kStarted});
  } else {
    const int listening = open_port(plan.port);
    require(report_with({.step = IsolationStep::kStarted}, listening), IsolationStep::kPort);
    call(SYS_close, listening);  // nobody accepts here once those outside have gone
  }
  const int64_t begin = now();
  // A child of this process and not the process itself: the first one of a namespace has no default
  // action of signals, and orphans come to it.
  const pid_t program = start_process(0, SIGCHLD, nullptr);
  if (program == 0) become_program(plan);
  require(program > 0, IsolationStep::kProcess);
  for (;;) {
    int status = 0;
    const long ended = call(SYS_wait4, -1, &status, __WALL, nullptr);
    if (ended != program) continue;
    report({.step = IsolationStep::kEnded, .wait_status = status, .nanoseconds = now() - begin});
    end();
  }
}

}  // namespace

pid_t start_isolated(const IsolationPlan& plan, int& pidfd) {
  // No signal tells of its end: whoever waits for any child must not meet it.
  const pid_t pid =
      start_process(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC |
                        CLONE_NEWUTS | CLONE_NEWCGROUP | CLONE_CLEAR_SIGHAND | CLONE_PIDFD,
                    0, &pidfd);
  if (pid == 0) be_init(plan);
  return pid;
}

}  // namespace tailrace::sandbox
