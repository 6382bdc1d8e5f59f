// A slow link between two hosts: it carries IP packets between a TUN device in each, with a rate,
// a delay, random loss and a queue in front of the rate that drops what does not fit. `cut()` is a
// cable that is pulled: nothing crosses, and nobody is told.
//
//   10.77.0.1 (kAddressA)  [queue] -> rate -> loss -> delay ->  10.77.0.2 (kAddressB), and back
//
// Times are those asked or up to about 0.3 ms later on an idle machine, and never earlier; no more
// bytes than the rate allows have ever crossed. The rate counts IP packets with their headers.
// Segments of TCP come from a host and reach the other in bursts (link_packet.h), which take the
// rate at most 0.25 ms; each segment counts, and is queued, dropped or lost, by itself.
//
// Thread: any. A thread of this process carries the packets and wakes at most about 10 000 times a
// second. build/tests/raw_stream says how much it carries at most.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "core/base/file_descriptor.h"
#include "core/base/random.h"
#include "kernels/base/mutex.h"
#include "tests/hosts/link_packet.h"

namespace tailrace {

class Host;
class Recording;

inline const std::string kAddressA = "10.77.0.1";
inline const std::string kAddressB = "10.77.0.2";

enum class Direction { kAToB, kBToA };

struct LinkOptions {
  std::string address_a = kAddressA, address_b = kAddressB;  // of the ends
  double rate_mbit = 100;            // 10^6 bits a second, each way; above 0
  std::chrono::nanoseconds delay{};  // one way: a round trip takes twice as long
  double loss_ratio = 0;             // of the packets, each way
  int64_t queue_bytes = 0;           // each way; 0: what the rate carries in a round trip
  int mtu_bytes = 1500;
  // Of TCP over the link, at both ends. It is an attribute of the routes: the sysctl of a new
  // network namespace accepts what the machine allows everyone, which often lacks cubic.
  std::string congestion_control = "cubic";
  uint64_t seed = 1;               // of the losses
  Recording* recording = nullptr;  // borrowed: what leaves a host over the link
};

// Packets of one direction, since the beginning.
struct LinkCounters {
  int64_t passed = 0, passed_bytes = 0;
  int64_t dropped = 0;  // the queue was full
  int64_t lost = 0;     // at random
  int64_t cut = 0;      // on the link or sent while it was cut
};

class LinkEmulator {
 public:
  // Throws std::runtime_error when a device cannot be made. The hosts are used here only.
  LinkEmulator(Host& a, Host& b, const LinkOptions& options);
  ~LinkEmulator();
  LinkEmulator(const LinkEmulator&) = delete;

  // When cut() returns nothing crosses any more: what was under way is gone as well.
  void cut();
  void heal();
  // For all packets that still wait; the one being sent keeps its pace. The queue keeps its size.
  void set_rate(double rate_mbit);
  LinkCounters counters(Direction direction) const;

 private:
  using Instant = std::chrono::nanoseconds;  // of the steady clock
  struct Waiting {
    Instant at;  // when it came; on the line: when it is due
    LinkPacket packet;
  };
  struct Way {
    Direction direction;
    int from, to;  // descriptors
    Rng loss;
    std::deque<Waiting> queue = {}, line = {};
    int64_t queued_bytes = 0;
    Instant free_at{};  // when the packet being sent has left
    LinkCounters counters = {};
  };

  void carry();
  // receive(), send() and deliver() give the number of packets or bursts that they moved.
  int receive(Way& way, std::span<std::byte> buffer) TR_REQUIRES(mu_);
  void enqueue(Way& way, const LinkPacket& packet) TR_REQUIRES(mu_);
  int send(Way& way, Instant now) TR_REQUIRES(mu_);
  void lose_some(Way& way, const LinkPacket& packet) TR_REQUIRES(mu_);
  int deliver(Way& way, Instant now) TR_REQUIRES(mu_);
  std::optional<Instant> next_event() const TR_REQUIRES(mu_);
  // Until a packet comes, something is due, or the link closes.
  void wait(std::optional<Instant> event);

  const LinkOptions options_;
  FileDescriptor a_, b_, closing_;
  mutable Mutex mu_;
  std::array<Way, 2> ways_ TR_GUARDED_BY(mu_);
  double rate_mbit_ TR_GUARDED_BY(mu_);
  bool is_cut_ TR_GUARDED_BY(mu_) = false;
  bool is_closing_ TR_GUARDED_BY(mu_) = false;
  std::jthread thread_;  // last: it uses what is above
};

}  // namespace tailrace
