// A "host" of a test: namespaces of its own for network, mounts, processes, System V IPC and the
// host name. It has a loopback and, once a LinkEmulator joins it to another host, a link. Nothing
// need be installed, and nothing outlives the test: no namespace has a name, and each dies with
// its last process.
//
//   if (auto reason = why_no_hosts()) GTEST_SKIP() << *reason;
//   Host a("a"), b("b", {.hidden = {data}});
//   LinkEmulator link(a, b, {.rate_mbit = 100, .delay = 25ms});
//   HostProcess& worker = b.spawn({TAILRACE_BINARY, "worker", "--join", endpoint}, log);
//   EXPECT_EQ(worker.wait(60s), 0);
//
// Files: a host sees the file system of the machine, but for what is hidden. /tmp and /dev/shm are
// its own and empty, and so are the folders of `hidden`; it may write there. They live in memory
// and go with the host. What lies in them and must be seen nevertheless, such as a binary that was
// built below /tmp, is in `shown`.
//
// Processes: they see those of their host only, by numbers that mean nothing elsewhere. All of
// them die with the host, grandchildren too, and with the test, however it ends.
//
// Thread: one at a time. Each host owns a thread, which alone lives in the namespaces.
#pragma once

#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/bounded_queue.h"
#include "core/base/file_descriptor.h"
#include "tests/hosts/host_process.h"

namespace tailrace {

struct HostOptions {
  std::vector<std::filesystem::path> hidden = {};  // folders that are there
  std::vector<std::filesystem::path> shown = {};   // files or folders, at the same path inside
};

class Host {
 public:
  // Throws std::runtime_error, as all members do, with what the system refuses.
  explicit Host(std::string name, const HostOptions& options = {});
  Host(const Host&) = delete;

  // Starts a program in /tmp of the host, with no standard input. `output` (a path outside) gets
  // standard output and error. `environment` ("KEY=VALUE") is added to that of the test, of which
  // TMPDIR is left out. The reference is valid as long as the host.
  HostProcess& spawn(const std::vector<std::string>& arguments, const std::filesystem::path& output,
                     const std::vector<std::string>& environment = {});

  // Where the test finds a path of the host: `host.outside("/tmp/run/config.yaml")`. It leads
  // through /proc, so it is no path to make canonical, and it ends with the host.
  std::filesystem::path outside(const std::filesystem::path& inside) const;

  // Sends a signal to a process by its number inside, which a log or a lock file of the host has.
  // False when there is none.
  bool kill_inside(pid_t inside, int signal);

  // Runs `work` on the thread in the namespaces and waits for it; the message of what it throws is
  // thrown here. A socket that it opens belongs to the host, whoever uses it later. It starts no
  // threads (the kernel refuses them to one whose children have other process numbers).
  void run_inside(const std::function<void()>& work);

  const std::string& name() const { return name_; }

 private:
  // A thread that is given work. Children get SIGKILL when it ends (PR_SET_PDEATHSIG).
  class Thread {
   public:
    ~Thread() { tasks_.close(); }
    void run(const std::function<void()>& work);

   private:
    BoundedQueue<std::packaged_task<void()>> tasks_{1};
    std::jthread thread_{[this] {
      while (auto task = tasks_.pop()) (*task)();
    }};
  };

  const std::string name_;
  Thread thread_;
  FileDescriptor root_;                // "/" of the host
  std::unique_ptr<HostProcess> init_;  // its process 1: with it all others die
  std::vector<std::unique_ptr<HostProcess>> processes_;
};

// Why no hosts can be made here, for GTEST_SKIP(): no permission, no /dev/net/tun, no such
// congestion control. Found by making one.
std::optional<std::string> why_no_hosts(const std::string& congestion_control = "cubic");

}  // namespace tailrace
