#include "sandbox/launcher/system_call_filter.h"

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/syscall.h>

namespace tailrace::sandbox {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
#error "the filter of system calls does not know this instruction set"
#endif

constexpr uint32_t kAllow = SECCOMP_RET_ALLOW, kRefuse = SECCOMP_RET_ERRNO | EPERM;

constexpr uint32_t kRefused[] = {
    // Other processes.
    SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_pidfd_getfd, SYS_kcmp,
    // File systems and namespaces.
    SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_move_mount, SYS_open_tree, SYS_fsopen,
    SYS_fsconfig, SYS_fsmount, SYS_fspick, SYS_mount_setattr, SYS_unshare, SYS_setns,
    SYS_open_by_handle_at, SYS_name_to_handle_at, SYS_quotactl, SYS_swapon, SYS_swapoff,
    // The kernel's large and young interfaces.
    SYS_bpf, SYS_perf_event_open, SYS_userfaultfd, SYS_io_uring_setup, SYS_io_uring_enter,
    SYS_io_uring_register, SYS_keyctl, SYS_add_key, SYS_request_key,
    // The machine.
    SYS_kexec_load, SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_reboot, SYS_acct,
    SYS_syslog, SYS_settimeofday, SYS_clock_settime, SYS_clock_adjtime, SYS_adjtimex};

// Calls that give a program memory outside of its address space, which alone we limit. They answer
// as on a kernel without them. The call that makes an object is enough: in the program's own
// namespace of IPC there is none for the others of its family (shmat, msgsnd, semop). What is not
// here (epoll, pipes, sockets, timers) is bounded by the limits of files and of signals, and
// programs need it.
constexpr uint32_t kAbsent[] = {
    SYS_memfd_create,
    SYS_memfd_secret,
    SYS_shmget,
    SYS_msgget,
    // 2 MB of the kernel a set, and as many sets as the kernel counts.
    SYS_semget,
    // These share a budget with everybody on this machine, or have none.
    SYS_mq_open,
    SYS_io_setup,
    SYS_inotify_init1,
    SYS_fanotify_init,
    SYS_landlock_create_ruleset,
#if defined(SYS_inotify_init)
    SYS_inotify_init,
#endif
};

constexpr uint32_t kNewNamespace = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET |
                                   CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP;

class Builder {
 public:
  void load(size_t offset) { add(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset), 0, 0); }
  // The low half: both instruction sets are little-endian.
  void load_argument(size_t index) { load(offsetof(seccomp_data, args) + 8 * index); }
  void keep_bits(uint32_t mask) { add(BPF_ALU | BPF_AND | BPF_K, mask, 0, 0); }
  void answer(uint32_t action) { add(BPF_RET | BPF_K, action, 0, 0); }
  // Skips `num_skipped` lines when the loaded value does not fit.
  void unless(uint16_t test, uint32_t value, uint8_t num_skipped) {
    add(static_cast<uint16_t>(BPF_JMP | BPF_K | test), value, 0, num_skipped);
  }
  void skip_if_equal(uint32_t value, uint8_t num_skipped) {
    add(BPF_JMP | BPF_K | BPF_JEQ, value, num_skipped, 0);
  }
  void answer_call(uint32_t call, uint32_t action) {
    unless(BPF_JEQ, call, 1);
    answer(action);
  }
  // Decides `call` by an argument: `fitting` where it passes the test, else `other`.
  void answer_by_argument(uint32_t call, size_t index, uint16_t test, uint32_t value,
                          uint32_t fitting, uint32_t other) {
    // An answer follows wherever an argument was loaded, so that all lines behind these find the
    // number of the call.
    unless(BPF_JEQ, call, 4);
    load_argument(index);
    unless(test, value, 1);
    answer(fitting);
    answer(other);
  }
  std::vector<sock_filter> take() { return std::move(lines_); }

 private:
  void add(uint16_t code, uint32_t value, uint8_t if_true, uint8_t if_false) {
    lines_.push_back({.code = code, .jt = if_true, .jf = if_false, .k = value});
  }
  std::vector<sock_filter> lines_;
};

// TCP over IPv4: the kernel's rarer protocols stay out of reach, and so do those that it lays over
// a connection (TCP_ULP: TLS, SMC). What follows still has the number of the call loaded.
void allow_tcp(Builder& filter) {
  // The numbers behind a test count the lines of the filter that it skips: whoever adds a line here
  // counts all tests above it anew.
  constexpr uint32_t kTypeBits = 0xf;  // the others are flags: SOCK_CLOEXEC, SOCK_NONBLOCK
  filter.unless(BPF_JEQ, SYS_socket, 11);
  filter.load_argument(0);
  filter.skip_if_equal(AF_UNIX, 7);
  filter.unless(BPF_JEQ, AF_INET, 7);
  filter.load_argument(1);
  filter.keep_bits(kTypeBits);
  filter.unless(BPF_JEQ, SOCK_STREAM, 4);
  filter.load_argument(2);
  filter.skip_if_equal(0, 1);
  filter.unless(BPF_JEQ, IPPROTO_TCP, 1);
  filter.answer(kAllow);
  filter.answer(kRefuse);
  filter.unless(BPF_JEQ, SYS_setsockopt, 6);
  filter.load_argument(1);
  filter.unless(BPF_JEQ, IPPROTO_TCP, 3);
  filter.load_argument(2);
  filter.unless(BPF_JEQ, TCP_ULP, 1);
  filter.answer(kRefuse);
  filter.answer(kAllow);
}

std::vector<sock_filter> build(FilterOptions options) {
  Builder filter;
  filter.load(offsetof(seccomp_data, arch));
  filter.skip_if_equal(kArchitecture, 1);
  filter.answer(SECCOMP_RET_KILL_PROCESS);
  filter.load(offsetof(seccomp_data, nr));
#if defined(__x86_64__)
  // The x32 numbers name the same calls and would pass the list.
  filter.unless(BPF_JGE, 0x40000000, 1);
  filter.answer(kRefuse);
#endif
  for (const uint32_t call : kRefused) filter.answer_call(call, kRefuse);
  for (const uint32_t call : kAbsent) filter.answer_call(call, SECCOMP_RET_ERRNO | ENOSYS);
  // Its flags lie in memory, where a filter cannot look; libraries fall back to clone.
  filter.answer_call(SYS_clone3, SECCOMP_RET_ERRNO | ENOSYS);
  filter.answer_by_argument(SYS_clone, 0, BPF_JSET, kNewNamespace, kRefuse, kAllow);
  // In front of the rule for all sockets, which refuses TCP.
  if (options.allows_tcp) allow_tcp(filter);
  filter.answer_by_argument(SYS_socket, 0, BPF_JEQ, AF_UNIX, kAllow, kRefuse);
  // Else it could set the limits of the process that waits for it.
  filter.answer_by_argument(SYS_prlimit64, 0, BPF_JEQ, 0, kAllow, kRefuse);
  filter.answer(kAllow);
  return filter.take();
}

}  // namespace

std::span<const sock_filter> system_call_filter(FilterOptions options) {
  static const std::vector<sock_filter> without = build({}), with_tcp = build({.allows_tcp = true});
  return options.allows_tcp ? with_tcp : without;
}

}  // namespace tailrace::sandbox
