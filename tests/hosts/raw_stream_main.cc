// Plain TCP over an emulated link, for a person who wants the peer's figures or those of the
// emulator itself: build/tests/raw_stream --rate 1000 --delay 10 --loss 0.001
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <exception>
#include <limits>
#include <string>

#include <fmt/format.h>
#include <sys/socket.h>

#include "core/base/error.h"
#include "core/config/flags.h"
#include "tests/hosts/host.h"
#include "tests/hosts/link_emulator.h"
#include "tests/hosts/raw_stream.h"

namespace tailrace {
namespace {

struct Options {
  double rate = 100, delay = 25, loss = 0, megabytes = 50;
  int64_t queue = 0;
  int mtu = 1500, runs = 3;
  std::string congestion_control = "cubic";
};

double seconds(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// The fastest of some round trips of a byte, in ms.
double round_trip(Host& a, Host& b) {
  const TcpPair pair = connect_hosts(a, b, kAddressB);
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 20; ++i) {
    char byte = 0;
    const double begin = seconds(CLOCK_MONOTONIC);
    ::send(pair.client.get(), &byte, 1, MSG_NOSIGNAL);
    ::recv(pair.server.get(), &byte, 1, MSG_WAITALL);
    ::send(pair.server.get(), &byte, 1, MSG_NOSIGNAL);
    ::recv(pair.client.get(), &byte, 1, MSG_WAITALL);
    least = std::min(least, 1e3 * (seconds(CLOCK_MONOTONIC) - begin));
  }
  return least;
}

int measure(const Options& options) {
  if (const auto reason = why_no_hosts(options.congestion_control)) throw UserError("{}", *reason);
  Host a("a"), b("b");
  const std::chrono::duration<double, std::milli> delay(options.delay);
  const LinkEmulator link(a, b,
                          {.rate_mbit = options.rate,
                           .delay = std::chrono::duration_cast<std::chrono::nanoseconds>(delay),
                           .loss_ratio = options.loss,
                           .queue_bytes = options.queue,
                           .mtu_bytes = options.mtu,
                           .congestion_control = options.congestion_control});
  fmt::print("fastest round trip {:.3f} ms, of which {} are asked\n", round_trip(a, b),
             2 * options.delay);
  for (int run = 0; run < options.runs; ++run) {
    // The process: who sends, who receives, and who carries.
    const double cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    const auto bytes = static_cast<int64_t>(options.megabytes * 1e6);
    const RawStream stream = raw_stream(a, b, kAddressB, bytes);
    fmt::print("{:.1f} Mbit/s, {:.2f} s, CPU {:.2f} cores\n", stream.mbit_per_s, stream.seconds,
               (seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu) / stream.seconds);
  }
  for (const Direction direction : {Direction::kAToB, Direction::kBToA}) {
    const LinkCounters counters = link.counters(direction);
    fmt::print("{}: {} packets of {:.1f} MB passed, {} dropped, {} lost\n",
               direction == Direction::kAToB ? "there" : "back", counters.passed,
               1e-6 * static_cast<double>(counters.passed_bytes), counters.dropped, counters.lost);
  }
  return 0;
}

}  // namespace
}  // namespace tailrace

int main(int argc, char** argv) {
  using namespace tailrace;
  Options options;
  Command program("raw_stream", "One plain TCP stream over an emulated link.");
  program.option("--rate", options.rate, {.help = "Mbit/s", .min = 0.001});
  program.option("--delay", options.delay, {.help = "ms, one way", .max = 10'000});
  program.option("--loss", options.loss, {.help = "share of the packets", .max = 1});
  program.option("--megabytes", options.megabytes, {.help = "of a stream", .min = 0.001});
  program.option("--queue", options.queue, {.help = "bytes; 0: a round trip of the rate"});
  program.option("--mtu", options.mtu, {.help = "bytes of a packet", .min = 576, .max = 65535});
  program.option("--runs", options.runs, {.help = "streams, one after another", .min = 1});
  program.option("--congestion-control", options.congestion_control, {.help = "cubic, bbr, reno"});
  program.action([&options] { return measure(options); });
  try {
    return program.run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 2;
  }
}
