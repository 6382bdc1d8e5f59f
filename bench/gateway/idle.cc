// Connections that ask nothing, of another process, so that all descriptors of this one are the
// gateway's and its memory too.
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <optional>

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "bench/gateway/fixed_generator.h"
#include "bench/gateway/parts.h"
#include "bench/gateway/served_gateway.h"
#include "bench/gateway/swarm.h"
#include "bench/report/program.h"
#include "core/chat/prompt_format.h"
#include "core/text/tokenizer.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;

// Of the process for itself.
constexpr int64_t kOwnFiles = 256;
// From an address to one port of another; Linux has 28,000 ports for that, as it comes.
constexpr size_t kFromOneAddress = 16384;
constexpr size_t kAtOnce = 256;
constexpr int kPatienceMs = 600'000;

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

bool receive_all(int socket, void* into, size_t size) {
  return ::recv(socket, into, size, MSG_WAITALL) == static_cast<ssize_t>(size);
}

// One request on each; how many were answered. Those that are not are ended.
int64_t ask_each(std::vector<FileDescriptor>& connections) {
  static const std::string request = http_get("/v1/models");
  int64_t answered = 0;
  for (size_t begin = 0; begin < connections.size(); begin += kAtOnce) {
    const size_t end = std::min(connections.size(), begin + kAtOnce);
    for (size_t i = begin; i < end; ++i)
      (void)!::send(connections[i].get(), request.data(), request.size(), MSG_NOSIGNAL);
    for (size_t i = begin; i < end; ++i) {
      std::string in;
      std::optional<HttpAnswer> answer;
      char buffer[4096];
      while (!answer) {
        const ssize_t size = ::recv(connections[i].get(), buffer, sizeof buffer, 0);
        if (size <= 0) break;
        in.append(buffer, static_cast<size_t>(size));
        answer = take_answer(in);
      }
      answered += answer && answer->status == 200 ? 1 : 0;
    }
  }
  return answered;
}

// The other process: is told a port and a number; says how many connections were answered, and
// again after each byte that it is told.
void hold_connections(int parent) {
  struct {
    int64_t port = 0, number = 0;
  } told;
  if (!receive_all(parent, &told, sizeof told)) return;
  std::vector<FileDescriptor> connections;
  const timeval patience{.tv_sec = 10, .tv_usec = 0};
  for (int64_t i = 0; i < told.number; ++i) {
    const auto from = 2 + static_cast<uint32_t>(connections.size() / kFromOneAddress);
    connections.push_back(connect_to(static_cast<uint16_t>(told.port), from));
    (void)::setsockopt(connections.back().get(), SOL_SOCKET, SO_RCVTIMEO, &patience,
                       sizeof patience);
    // Each is accepted before the next few are asked for: the queue of a socket is short.
    if (connections.size() % kAtOnce != 0) continue;
    std::vector<FileDescriptor> last;
    std::move(connections.end() - kAtOnce, connections.end(), std::back_inserter(last));
    if (ask_each(last) != std::ssize(last)) return;
    std::move(last.begin(), last.end(), connections.end() - kAtOnce);
  }
  char byte = 0;
  do {
    const int64_t answered = ask_each(connections);
    if (::send(parent, &answered, sizeof answered, MSG_NOSIGNAL) != sizeof answered) return;
  } while (receive_all(parent, &byte, 1));
}

class Holder {
 public:
  Holder() {
    int ends[2] = {-1, -1};
    require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "no pair of sockets");
    end_ = FileDescriptor(ends[0]);
    FileDescriptor other(ends[1]);
    process_ = ::fork();
    require(process_ >= 0, "no process");
    if (process_ > 0) return;
    end_.reset();
    try {
      hold_connections(other.get());
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}\n", error.what());
    }
    ::_exit(0);
  }
  ~Holder() {
    end_.reset();
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  Holder(const Holder&) = delete;

  void tell(const void* bytes, size_t size) {
    require(::send(end_.get(), bytes, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size),
            "the process with the connections ended");
  }
  int64_t answered() {
    pollfd arrives{.fd = end_.get(), .events = POLLIN, .revents = 0};
    int64_t count = 0;
    require(::poll(&arrives, 1, kPatienceMs) == 1 && receive_all(end_.get(), &count, sizeof count),
            "the process with the connections ended or was silent for {} s", kPatienceMs / 1000);
    return count;
  }

 private:
  FileDescriptor end_;
  pid_t process_ = -1;
};

std::vector<double> answered_ms(uint16_t port, int calls) {
  std::vector<double> ms;
  const std::string request = http_get("/v1/models");
  ask_all(port, 1, /*keeps=*/true, [&](size_t, const HttpAnswer* last) {
    if (last != nullptr) ms.push_back(1e3 * last->seconds);
    return std::ssize(ms) < calls ? std::optional(request) : std::nullopt;
  });
  return ms;
}

}  // namespace

void measure_idle(const GatewayBenchOptions& options, Report& report) {
  allow_all_files();
  rlimit files{};
  require(::getrlimit(RLIMIT_NOFILE, &files) == 0, "no limit of files");
  const int64_t number = std::max<int64_t>(
      1, std::min<int64_t>(options.idle, static_cast<int64_t>(files.rlim_cur) - kOwnFiles));
  Holder holder;  // before there are threads
  const auto tokenizer = text::load_tokenizer(options.tokenizer);
  const chat::PromptFormat format(*tokenizer);
  FixedGenerator generator({1}, 1, 0us, 1);
  gateway::GatewayOptions how;
  how.serves_anonymous = true;
  how.http.max_connections = number + 16;
  how.http.idle = 3600s;
  ServedGateway served(generator, format, how);
  served.serve();
  const std::vector<double> alone = answered_ms(served.port(), options.calls);
  const int64_t before = resident_bytes();
  const Stopwatch watch;
  const std::array<int64_t, 2> task = {served.port(), number};
  holder.tell(task.data(), sizeof task);
  require(holder.answered() == number, "not all of {} connections were answered", number);
  const double seconds = watch.seconds();
  const int64_t each = (resident_bytes() - before) / number;
  const std::vector<double> beside = answered_ms(served.port(), options.calls);
  holder.tell("", 1);
  const int64_t still = holder.answered();
  const std::string name = fmt::format("{} idle connections", number);
  report.add(name, "opened and asked twice", "s", {seconds});
  report.add(name, "answered after the wait", "connections", {static_cast<double>(still)});
  report.add(name, "memory of each, without the kernel's", "bytes", {static_cast<double>(each)});
  report.add(name, "a call beside them", "ms", beside, spread(alone).median);
  require(still == number, "{} of {} connections are answered", still, number);
}

}  // namespace tailrace
