#include "sandbox/launcher/launcher.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <fstream>
#include <set>
#include <span>
#include <sstream>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/ipc.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/file.h"
#include "sandbox/launcher/system_call_filter.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace::sandbox {
namespace {

using namespace std::chrono_literals;

Program script(const std::string& text, std::string input = "") {
  return {.command = {"/bin/sh", "main.sh"},
          .files = {{"main.sh", text}},
          .standard_input = std::move(input)};
}

class Launcher : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto can = check_isolation(); !can) GTEST_SKIP() << can.failure().message;
  }

  static ProgramRun run(const Program& program, const ProgramLimits& limits = {.wall = 20s}) {
    const auto run = run_program(program, limits);
    EXPECT_TRUE(run.ok()) << run.failure().message;
    return run ? run.value() : ProgramRun{};
  }
  static ProgramRun run(const std::string& text, const ProgramLimits& limits = {.wall = 20s}) {
    return run(script(text), limits);
  }
  // What it says; it must end well.
  static std::string said(const std::string& text) {
    const ProgramRun end = run(text);
    EXPECT_EQ(end.ending, ProgramEnding::kExited);
    EXPECT_EQ(end.code, 0) << end.err;
    return end.out;
  }
};

// Processes of this machine that were started with a command line that has `word` in it. Those that
// are dead and not yet reaped have none.
std::vector<pid_t> processes_with(const std::string& word) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const auto command = read_file(entry.path() / "cmdline", 1 << 20);
    if (command && command.value().find(word) != std::string::npos)
      found.push_back(static_cast<pid_t>(std::stol(name)));
  }
  return found;
}
int num_processes_with(const std::string& word) {
  return static_cast<int>(processes_with(word).size());
}

bool comes_true(const std::function<bool()>& condition) {
  const auto give_up = std::chrono::steady_clock::now() + 20s;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > give_up) return false;
    std::this_thread::sleep_for(5ms);
  }
  return true;
}

TEST_F(Launcher, GivesBackWhatItSaysAndHowItEnds) {
  const ProgramRun exited = run(script("cat; echo oops >&2; exit 3", "one\ntwo\n"));
  EXPECT_EQ(exited.ending, ProgramEnding::kExited);
  EXPECT_EQ(exited.code, 3);
  EXPECT_EQ(exited.out, "one\ntwo\n");
  EXPECT_EQ(exited.err, "oops\n");

  const ProgramRun killed = run("kill -SEGV $$");
  EXPECT_EQ(killed.ending, ProgramEnding::kSignalled);
  EXPECT_EQ(killed.code, SIGSEGV);

  const ProgramRun slow = run("sleep 0.3");
  EXPECT_GE(slow.seconds, 0.3);
  EXPECT_LT(slow.seconds, 15);
}

// More than a pipe holds, in both directions, and of a program that does not read it.
TEST_F(Launcher, NeverWaitsForWhoDoesNotRead) {
  const std::string much(500'000, 'x');
  EXPECT_EQ(run(script("exit 0", much)).code, 0);
  const ProgramRun both = run(script("cat >&2; echo done", much));
  EXPECT_EQ(both.err.size(), much.size());
  EXPECT_EQ(both.out, "done\n");
}

TEST_F(Launcher, KillsAtTheDeadline) {
  for (const char* text : {"sleep 1000", "while :; do :; done",
                           // Deaf to what asks it to end, and stopped.
                           "trap '' TERM INT HUP; kill -STOP $$; sleep 1000"}) {
    const auto begin = std::chrono::steady_clock::now();
    const ProgramRun late = run(text, {.wall = 300ms});
    EXPECT_EQ(late.ending, ProgramEnding::kOverTime) << text;
    EXPECT_GE(late.seconds, 0.3) << text;
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s) << text;
  }
}

TEST_F(Launcher, EndlessOutputEndsTheProgram) {
  const ProgramRun endless = run("while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxx; done",
                                 {.wall = 20s, .output_bytes = 10'000});
  EXPECT_EQ(endless.ending, ProgramEnding::kOverOutput);
  EXPECT_EQ(endless.out.size(), 10'000u);
  EXPECT_EQ(run("printf 12345", {.wall = 20s, .output_bytes = 5}).ending, ProgramEnding::kExited);
  EXPECT_EQ(run("printf 123456 >&2", {.wall = 20s, .output_bytes = 5}).ending,
            ProgramEnding::kOverOutput);
}

// How many the machine ever has of a program that starts all it can. Whom the system refuses
// another process says so and stays, so that the number holds still, however busy the machine is;
// a clock then begins to run, and the program ends when we stop it.
TEST_F(Launcher, AForkBombIsBounded) {
  const std::string mark = fmt::format("100{}", getpid()), clock = fmt::format("101{}", getpid());
  std::atomic<bool> done = false;
  std::atomic<int> most = 0;
  std::jthread watch([&] {
    while (!done) {
      const auto stopped = processes_with(clock);
      most = std::max<int>(most, num_processes_with(mark));
      for (const pid_t process : stopped) ::kill(process, SIGTERM);
    }
  });
  const ProgramRun end =
      run(fmt::format("mkfifo full never; exec 3<>full 4<>never\n"
                      "(read word <&3; exec sleep {}) & clock=$!\n"
                      "sh -c 'bomb() {{ trap \"echo full >&3; read word <&4\" EXIT\n"
                      "  bomb & bomb & sleep {}; }}; bomb' &\n"
                      "wait $clock; echo unharmed",
                      clock, mark),
          {.wall = 60s, .processes = 20});
  done = true;
  watch.join();
  EXPECT_EQ(end.ending, ProgramEnding::kExited) << "it has not come to its bound";
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(end.out, "unharmed\n") << "the bomb hurts nobody but itself";
  EXPECT_GT(most, 8);
  EXPECT_LE(most, 20);
  EXPECT_EQ(num_processes_with(mark), 0);
}

TEST_F(Launcher, MemoryIsLimited) {
  // A text of 64 MiB, put together from two halves.
  const std::string large =
      "awk 'BEGIN { s = \"x\"; for (i = 0; i < 26; i++) s = s s; print length(s) }'";
  EXPECT_EQ(said(large), "67108864\n");
  const ProgramRun end = run(large, {.wall = 20s, .memory_bytes = 64 << 20});
  EXPECT_EQ(end.out, "");
  EXPECT_TRUE(end.ending == ProgramEnding::kSignalled ||
              (end.ending == ProgramEnding::kExited && end.code != 0))
      << end.err;
}

TEST_F(Launcher, ItsFilesAreItsOwnAndBounded) {
  EXPECT_EQ(said("pwd; ls; echo x > a; cat a"), "/tmp\nmain.sh\nx\n");
  EXPECT_EQ(said("ls"), "main.sh\n") << "of the run before";
  // 4 MiB do not go into 1.
  const std::string fill =
      "i=0; while [ $i -lt 64 ]; do head -c 65536 /dev/zero > f$i || exit 9; "
      "i=$((i+1)); done";
  EXPECT_EQ(run(fill, {.wall = 20s, .disk_bytes = 1 << 20}).code, 9);
  EXPECT_EQ(run(fill).code, 0);
}

TEST_F(Launcher, WritesNothingOutside) {
  TemporaryDirectory folder;
  folder.write("seen", "secret");
  ::chmod(folder.path().c_str(), 0777);
  const std::string path = folder.path().string();
  EXPECT_NE(run("cat " + path + "/seen").code, 0);
  // Its own folder may have that name too.
  run("mkdir -p " + path + "; echo x > " + path + "/made");
  for (const char* place : {"/x", "/usr/x", "/etc/x", "/dev/x", "/bin/x"})
    EXPECT_NE(run(fmt::format("echo x > {}", place)).code, 0) << place;
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "made"));
  EXPECT_EQ(said("cat /etc/passwd /proc/1/environ 2>/dev/null || echo none"), "none\n");
}

TEST_F(Launcher, SeesNothingOfUs) {
  ::setenv("TAILRACE_TEST_SECRET", "1", 1);
  EXPECT_EQ(said("env | sort | cut -d= -f1 | tr '\\n' ' '"), "HOME LANG PATH PWD ");
  EXPECT_EQ(said("uname -n; id -u"), "sandbox\n65534\n");
  // A descriptor of ours with no flag that closes it, beyond those that starting it takes.
  const FileDescriptor open(::fcntl(STDIN_FILENO, F_DUPFD, 7));
  EXPECT_EQ(said("for n in 3 4 5 6 7 8 9; do if true >&$n; then echo $n; fi; done 2>/dev/null"),
            "");
  EXPECT_NE(run(fmt::format("kill -0 {}", getpid())).code, 0) << "our process is not there";
}

// By effect: python would be shorter, and need not be there.
TEST_F(Launcher, HasNoNetwork) {
  if (!std::filesystem::exists("/usr/bin/bash")) GTEST_SKIP() << "needs bash";
  const auto connect = [](const char* kind) {
    return run(Program{
        .command = {"/usr/bin/bash", "-c", fmt::format("echo x > /dev/{}/127.0.0.1/9", kind)},
        .files = {},
        .standard_input = {}});
  };
  for (const char* kind : {"tcp", "udp"}) {
    const ProgramRun end = connect(kind);
    EXPECT_NE(end.code, 0) << kind;
    EXPECT_NE(end.err.find("Operation not permitted"), std::string::npos) << end.err;
  }
}

// A socket of this machine that listens; its port goes to `port`.
FileDescriptor listening_here(uint16_t& port) {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
  EXPECT_EQ(::listen(socket.get(), 5), 0);
  EXPECT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  port = ntohs(address.sin_port);
  return socket;
}

// An abstract socket of this machine that listens: it belongs to the network namespace.
FileDescriptor abstract_here(const std::string& name) {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
  EXPECT_EQ(::listen(socket.get(), 5), 0);
  return socket;
}

bool is_readable(int file, int milliseconds = 20'000) {
  pollfd wanted = {file, POLLIN, 0};
  return ::poll(&wanted, 1, milliseconds) == 1;
}

// What a program says until it is gone.
std::string heard(const RunningProgram& program) {
  std::string text;
  char piece[4096];
  const bool is_gone = is_readable(program.pidfd());
  EXPECT_TRUE(is_gone);
  for (const int file : {program.out(), program.err()})
    for (ssize_t n; (n = ::read(file, piece, sizeof piece)) > 0;)
      text.append(piece, static_cast<size_t>(n));
  return text;
}

class LauncherPort : public Launcher {
 protected:
  void SetUp() override {
    Launcher::SetUp();
    if (!std::filesystem::exists("/usr/bin/python3")) GTEST_SKIP() << "needs python3";
  }
  static Program python(const std::string& text, uint16_t port = 8080) {
    return {.command = {"/usr/bin/python3", "main.py"},
            .files = {{"main.py", text}},
            .standard_input = {},
            .port = port};
  }
};

TEST_F(LauncherPort, WhoHoldsItsSocketAnswersFromOutside) {
  auto running = RunningProgram::start(python(R"py(
import socket
for i in range(3):
    with socket.create_connection(("127.0.0.1", 8080), timeout=20) as s:
        s.sendall(b"ping %d" % i)
        print(s.recv(100).decode())
)py"),
                                       {});
  ASSERT_TRUE(running.ok()) << running.failure().message;
  RunningProgram& program = running.value();
  const FileDescriptor listening = program.take_listening();
  ASSERT_TRUE(listening.is_open());
  EXPECT_FALSE(program.take_listening().is_open()) << "it was taken";
  EXPECT_EQ(::fcntl(listening.get(), F_GETFD), FD_CLOEXEC) << "programs of ours must not have it";
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(is_readable(listening.get()));
    const FileDescriptor client(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
    ASSERT_TRUE(client.is_open());
    ASSERT_TRUE(is_readable(client.get()));
    char said[100];
    const ssize_t size = ::read(client.get(), said, sizeof said);
    EXPECT_EQ(std::string(said, static_cast<size_t>(std::max<ssize_t>(size, 0))),
              fmt::format("ping {}", i));
    EXPECT_EQ(::write(client.get(), "pong", 4), 4);
  }
  EXPECT_EQ(heard(program), "pong\npong\npong\n");
}

TEST_F(LauncherPort, NothingElseIsInReach) {
  uint16_t port = 0;
  const FileDescriptor tcp = listening_here(port);
  const std::string name = fmt::format("tailrace-test-{}", ::getpid());
  const FileDescriptor abstract = abstract_here(name);
  const std::string text = fmt::format(R"py(
import errno, socket
def attempt(what, family, kind, protocol, address):
    try:
        with socket.socket(family, kind, protocol) as s:
            s.settimeout(5)
            s.connect(address)
        print(what, "connected")
    except OSError as e:
        print(what, errno.errorcode.get(e.errno, e))
INET, TCP = socket.AF_INET, socket.SOCK_STREAM
attempt("port", INET, TCP, 0, ("127.0.0.1", 8080))
attempt("host", INET, TCP, 0, ("127.0.0.1", {0}))
attempt("other", INET, TCP, 0, ("127.0.0.2", 8080))
attempt("world", INET, TCP, 0, ("192.0.2.1", 80))
attempt("abstract", socket.AF_UNIX, TCP, 0, "\0{1}")
attempt("udp", INET, socket.SOCK_DGRAM, 0, ("127.0.0.1", {0}))
attempt("raw", INET, socket.SOCK_RAW, 1, ("127.0.0.1", 1))
attempt("mptcp", INET, TCP, 262, ("127.0.0.1", 8080))
attempt("ipv6", socket.AF_INET6, TCP, 0, ("::1", 8080))
attempt("netlink", socket.AF_NETLINK, socket.SOCK_RAW, 0, (0, 0))
with socket.socket(INET, TCP) as s:
    try:
        s.bind(("127.0.0.1", 8080))
        print("bound")
    except OSError as e:
        print("bind", errno.errorcode[e.errno])
with socket.create_connection(("127.0.0.1", 8080)) as s:
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        s.setsockopt(socket.IPPROTO_TCP, 31, b"tls")
        print("layered")
    except OSError as e:
        print("ulp", errno.errorcode[e.errno])
)py",
                                       port, name);
  auto running = RunningProgram::start(python(text), {});
  ASSERT_TRUE(running.ok()) << running.failure().message;
  const FileDescriptor listening = running.value().take_listening();
  EXPECT_EQ(heard(running.value()),
            "port connected\nhost ECONNREFUSED\nother ECONNREFUSED\nworld ENETUNREACH\n"
            "abstract ECONNREFUSED\nudp EPERM\nraw EPERM\nmptcp EPERM\nipv6 EPERM\n"
            "netlink EPERM\nbind EADDRINUSE\nulp EPERM\n");
  EXPECT_FALSE(is_readable(tcp.get(), 0)) << "somebody has come";
  EXPECT_FALSE(is_readable(abstract.get(), 0)) << "somebody has come";
}

TEST_F(LauncherPort, NobodyAnswersOnceTheSocketIsGone) {
  auto running = RunningProgram::start(python(R"py(
import socket, sys
sys.stdin.readline()
try:
    socket.create_connection(("127.0.0.1", 8080), timeout=20)
except ConnectionRefusedError:
    print("refused")
)py"),
                                       {});
  ASSERT_TRUE(running.ok()) << running.failure().message;
  running.value().take_listening().reset();
  ASSERT_EQ(::write(running.value().in(), "\n", 1), 1);
  EXPECT_EQ(heard(running.value()), "refused\n");
}

TEST_F(LauncherPort, ManyHaveTheSameOneAndEachItsOwn) {
  std::vector<RunningProgram> programs;
  for (int i = 0; i < 4; ++i) {
    auto running = RunningProgram::start(
        python(fmt::format("import socket\n"
                           "s = socket.create_connection(('127.0.0.1', 8080), timeout=20)\n"
                           "s.sendall(b'{}')\n",
                           i)),
        {});
    ASSERT_TRUE(running.ok()) << running.failure().message;
    programs.push_back(std::move(running).value());
  }
  for (int i = 0; i < 4; ++i) {
    const FileDescriptor listening = programs[static_cast<size_t>(i)].take_listening();
    ASSERT_TRUE(is_readable(listening.get()));
    const FileDescriptor client(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
    ASSERT_TRUE(is_readable(client.get()));
    char said = 0;
    EXPECT_EQ(::read(client.get(), &said, 1), 1);
    EXPECT_EQ(said, '0' + i);
  }
}

TEST_F(Launcher, MakesNoNamespacesOfItsOwn) {
  if (!std::filesystem::exists("/usr/bin/unshare")) GTEST_SKIP() << "needs unshare";
  const ProgramRun end = run("unshare -Ur true");
  EXPECT_NE(end.code, 0);
  EXPECT_NE(end.err.find("Operation not permitted"), std::string::npos) << end.err;
}

// Memory that is no part of a process's address space, and so of no limit of ours: the calls that
// give it, tried under the filter alone.
TEST(SystemCallFilter, RefusesMemoryThatBelongsToNoProcess) {
  constexpr std::pair<const char*, std::array<long, 4>> kCalls[] = {
    {"memfd_create", {SYS_memfd_create, 0, 0, 0}},
    {"memfd_secret", {SYS_memfd_secret, 0, 0, 0}},
    {"shmget", {SYS_shmget, IPC_PRIVATE, 4096, 0600}},
    {"msgget", {SYS_msgget, IPC_PRIVATE, 0600, 0}},
    {"semget", {SYS_semget, IPC_PRIVATE, 32'000, 0600}},
    {"mq_open", {SYS_mq_open, 0, 0, 0}},
    {"io_setup", {SYS_io_setup, 1, 0, 0}},
    {"inotify_init1", {SYS_inotify_init1, 0, 0, 0}},
#if defined(SYS_inotify_init)
    {"inotify_init", {SYS_inotify_init, 0, 0, 0}},
#endif
    {"fanotify_init", {SYS_fanotify_init, 0, 0, 0}},
    {"landlock_create_ruleset", {SYS_landlock_create_ruleset, 0, 0, 1}}
  };
  TemporaryDirectory folder;
  const pid_t process = ::fork();
  ASSERT_GE(process, 0);
  if (process == 0) {
    const std::span<const sock_filter> lines = system_call_filter();
    const sock_fprog filter{.len = static_cast<unsigned short>(lines.size()),
                            .filter = const_cast<sock_filter*>(lines.data())};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) != 0)
      ::_exit(100);
    std::string given;
    for (const auto& [name, call] : kCalls) {
      if (::syscall(call[0], call[1], call[2], call[3]) != -1 || errno != ENOSYS)
        given += fmt::format("{} ", name);
    }
    folder.write("given", given);
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(process, &status, 0), process);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read_file(folder / "given").value(), "");
}

// The kernel counts these for the whole user, so one program could use up what all others have.
TEST_F(Launcher, WaitingSignalsAreBounded) {
  if (!std::filesystem::exists("/usr/bin/bash")) GTEST_SKIP() << "needs bash";
  EXPECT_EQ(said("bash -c 'ulimit -i; ulimit -q'"), "64\n0\n");
}

// By effect: 64 segments of 16 MiB under a limit of 64 MiB.
TEST_F(Launcher, SharedMemoryDoesNotEscapeItsLimit) {
  if (!std::filesystem::exists("/usr/bin/perl")) GTEST_SKIP() << "needs perl";
  const ProgramRun end =
      run("perl -e 'for (1..64) { my $id = shmget(0, 1 << 24, 0600); exit 3 unless defined $id; "
          "shmwrite($id, \"x\", 0, 1 << 24) or exit 4 } print \"escaped\"'",
          {.wall = 20s, .memory_bytes = 64 << 20});
  EXPECT_EQ(end.out, "");
  EXPECT_EQ(end.code, 3) << end.err;
}

// By effect: a set of 32,000 semaphores takes 2 MB of the kernel, and its memory ends with no
// process.
TEST_F(Launcher, SemaphoresDoNotEscapeItsLimit) {
  if (!std::filesystem::exists("/usr/bin/perl")) GTEST_SKIP() << "needs perl";
  const ProgramRun end =
      run("perl -e 'for (1..64) { defined semget(0, 32000, 0600) or exit 3 } print \"escaped\"'",
          {.wall = 20s, .memory_bytes = 64 << 20});
  EXPECT_EQ(end.out, "");
  EXPECT_EQ(end.code, 3) << end.err;
}

// It ends, and what it has left behind, which holds its output open, goes with it.
TEST_F(Launcher, OrphansDieWithIt) {
  const std::string mark = fmt::format("200{}", getpid());
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(said(fmt::format("setsid sleep {0} & sh -c \"trap '' TERM HUP; sleep {0}; true\" & "
                             "echo left",
                             mark)),
            "left\n");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 15s);
  EXPECT_EQ(num_processes_with(mark), 0);
}

// A process of ours that is killed while it waits for a program.
TEST_F(Launcher, TheProgramDiesWithWhoWaitsForIt) {
  const std::string mark = fmt::format("300{}", getpid());
  const pid_t worker = ::fork();
  ASSERT_GE(worker, 0);
  if (worker == 0) {
    (void)run_program(script(fmt::format("sleep {}; true", mark)), {.wall = 600s});
    ::_exit(0);
  }
  EXPECT_TRUE(comes_true([&] { return num_processes_with(mark) == 1; }));
  ::kill(worker, SIGKILL);
  EXPECT_EQ(::waitpid(worker, nullptr, 0), worker);
  EXPECT_TRUE(comes_true([&] { return num_processes_with(mark) == 0; }));
}

TEST_F(Launcher, ManyThreadsMayRunProgramsAtOnce) {
  std::vector<std::jthread> threads;
  std::atomic<int> right = 0;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      for (int n = 0; n < 10; ++n) {
        const std::string input = fmt::format("{} {}\n", i, n);
        const auto end = run_program(script("cat", input), {.wall = 60s});
        if (end && end.value().out == input) ++right;
        // Others allocate while a copy of us starts.
        std::vector<std::string> memory(100, std::string(1000, 'x'));
      }
    });
  }
  threads.clear();
  EXPECT_EQ(right, 80);
}

// As in a container that forbids them: in namespaces that may have none below them.
TEST_F(Launcher, RefusesToRunWithoutIsolationAndSaysWhatToDo) {
  TemporaryDirectory folder;
  const pid_t process = ::fork();
  ASSERT_GE(process, 0);
  if (process == 0) {
    const bool forbidden =
        ::unshare(CLONE_NEWUSER) == 0 &&
        static_cast<bool>(std::ofstream("/proc/sys/user/max_user_namespaces") << 0 << std::flush);
    const auto run = run_program(script("exit 0"), {});
    folder.write("said", !forbidden ? "not forbidden" : run ? "ran" : run.failure().message);
    ::_exit(0);
  }
  EXPECT_EQ(::waitpid(process, nullptr, 0), process);
  const std::string said = read_file(folder / "said").value();
  // A sanitizer's own thread is enough for that.
  if (said == "not forbidden") GTEST_SKIP() << "a process with threads enters no namespace";
  EXPECT_EQ(
      said,
      "this kernel forbids user namespaces (No space left on device), and programs are only run "
      "isolated, in one of their own. Try sysctl -w user.max_user_namespaces=10000");
}

// Near the limit of open files, where some of the descriptors that a start takes are still to be
// had and others are not: it runs as ever, or is a Failure, and nothing is written where it should
// not.
TEST_F(Launcher, TooFewDescriptorsAreAFailure) {
  TemporaryDirectory folder;
  folder.write("ours", "");
  const pid_t process = ::fork();
  ASSERT_GE(process, 0);
  if (process == 0) {
    // What lies where a report of the inside would go, had it not found its place.
    if (::dup2(::open((folder.path() / "ours").c_str(), O_WRONLY), 3) != 3) ::_exit(1);
    std::string said;
    for (rlim_t limit = 4; limit < 40; ++limit) {
      const rlimit few{limit, 1024};
      ::setrlimit(RLIMIT_NOFILE, &few);
      const auto run = run_program(script("cat", "hi"), {.wall = 20s});
      const rlimit enough{1024, 1024};
      ::setrlimit(RLIMIT_NOFILE, &enough);
      said += (run ? "ran: " + run.value().out : run.failure().message) + "\n";
    }
    folder.write("said", said);
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(process, &status, 0), process);
  EXPECT_EQ(status, 0);
  std::set<std::string> said;
  std::istringstream lines(read_file(folder / "said").value());
  for (std::string line; std::getline(lines, line);) said.insert(line);
  const std::string advice = ": Too many open files. Raise the limit of open files (ulimit -n)";
  EXPECT_EQ(said, (std::set<std::string>{"cannot open a pipe to a program" + advice,
                                         "cannot start an isolated process" + advice,
                                         "cannot map the user of an isolated process" + advice,
                                         "cannot give an isolated process its descriptors" + advice,
                                         "ran: hi"}));
  EXPECT_EQ(read_file(folder / "ours").value(), "");
}

// What it says is what a program finds.
TEST_F(Launcher, KnowsWhichFilesProgramsSee) {
  TemporaryDirectory folder;
  folder.write("ours", "");
  ::chmod(folder.path().c_str(), 0777);
  std::filesystem::create_symlink("/usr/bin", folder / "link");
  const std::string own = std::filesystem::read_symlink("/proc/self/exe").string();
  std::string seen, expected;
  for (const std::string& path : {std::string("/usr/bin/env"), std::string("/bin/sh"),
                                  std::string("/etc/passwd"), std::string("/etc/alternatives"),
                                  std::string("/proc/version"), own, (folder / "ours").string()}) {
    if (shown_through(path)) expected += path + "\n";
    seen += said(fmt::format("if test -e {0}; then echo {0}; fi", path));
  }
  EXPECT_EQ(seen, expected);
  EXPECT_EQ(shown_through("/usr/no/such/run"), "/usr");
  EXPECT_EQ(shown_through("/usr"), "/usr");
  EXPECT_EQ(shown_through("/usr/../home/a"), std::nullopt);
  EXPECT_EQ(shown_through("/usr2/a"), std::nullopt);
  EXPECT_EQ(shown_through(folder / "link/env"), "/usr") << "as what it is a link to";
  EXPECT_EQ(shown_through("runs/new"), std::nullopt);
}

TEST_F(Launcher, WhatCannotBeStartedIsAFailure) {
  const auto missing = run_program(
      {.command = {"/usr/bin/no-such-interpreter"}, .files = {}, .standard_input = {}}, {});
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.failure().message,
            "cannot run /usr/bin/no-such-interpreter in isolation, which sees /usr, /bin and /lib: "
            "No such file or directory");
  const auto too_large = run_program(script(std::string(100'000, '#')), {.disk_bytes = 4096});
  ASSERT_FALSE(too_large.ok());
  EXPECT_NE(too_large.failure().message.find("No space left"), std::string::npos);
}

}  // namespace
}  // namespace tailrace::sandbox
