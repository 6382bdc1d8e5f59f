#include "tests/hosts/link_emulator.h"

#include <algorithm>
#include <utility>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "kernels/base/check.h"
#include "tests/hosts/host.h"
#include "tests/hosts/network_device.h"
#include "tests/hosts/recording.h"

namespace tailrace {
namespace {

using std::chrono::nanoseconds;

// Packets of one way in one go, so that those of the other need not wait long.
constexpr int kBatch = 256;
// After some work the thread sleeps for so long whatever comes, so that packets come in batches:
// at 1 Gbit/s one of 1500 bytes comes every 12 us, and to wake for each would cost a core.
constexpr nanoseconds kNap = std::chrono::microseconds(100);

nanoseconds steady_time() { return std::chrono::steady_clock::now().time_since_epoch(); }

nanoseconds time_to_send(int64_t bytes, double rate_mbit) {
  return nanoseconds(static_cast<int64_t>(static_cast<double>(bytes) * 8e3 / rate_mbit) + 1);
}

FileDescriptor open_end(Host& host, const std::string& address, const std::string& peer,
                        const LinkOptions& options) {
  FileDescriptor tun;
  host.run_inside([&] {
    tun = open_link_device({.address = address,
                            .peer = peer,
                            .mtu_bytes = options.mtu_bytes,
                            .congestion_control = options.congestion_control});
  });
  return tun;
}

LinkOptions with_queue(LinkOptions options) {
  TR_CHECK(options.rate_mbit > 0);
  if (options.queue_bytes == 0) {
    const double round_trip = 2 * std::chrono::duration<double>(options.delay).count();
    options.queue_bytes =
        std::max<int64_t>(static_cast<int64_t>(options.rate_mbit / 8 * 1e6 * round_trip),
                          int64_t{64} * options.mtu_bytes);
  }
  return options;
}

}  // namespace

LinkEmulator::LinkEmulator(Host& a, Host& b, const LinkOptions& options)
    : options_(with_queue(options)),
      a_(open_end(a, kAddressA, kAddressB, options)),
      b_(open_end(b, kAddressB, kAddressA, options)),
      closing_(::eventfd(0, EFD_CLOEXEC)),
      ways_{Way{.direction = Direction::kAToB,
                .from = a_.get(),
                .to = b_.get(),
                .loss = Rng(mix({options.seed, 0}))},
            Way{.direction = Direction::kBToA,
                .from = b_.get(),
                .to = a_.get(),
                .loss = Rng(mix({options.seed, 1}))}},
      rate_mbit_(options.rate_mbit),
      thread_([this] { carry(); }) {}

LinkEmulator::~LinkEmulator() {
  {
    MutexLock lock(mu_);
    is_closing_ = true;
  }
  ::eventfd_write(closing_.get(), 1);
}

void LinkEmulator::cut() {
  MutexLock lock(mu_);
  is_cut_ = true;
  for (Way& way : ways_) {
    way.counters.cut += static_cast<int64_t>(way.queue.size() + way.line.size());
    way.queue.clear();
    way.line.clear();
    way.queued_bytes = 0;
  }
}

void LinkEmulator::heal() {
  MutexLock lock(mu_);
  is_cut_ = false;
}

void LinkEmulator::set_rate(double rate_mbit) {
  TR_CHECK(rate_mbit > 0);
  MutexLock lock(mu_);
  rate_mbit_ = rate_mbit;
}

LinkCounters LinkEmulator::counters(Direction direction) const {
  MutexLock lock(mu_);
  return ways_[static_cast<size_t>(direction)].counters;
}

void LinkEmulator::carry() {
  ::prctl(PR_SET_TIMERSLACK, 5'000UL);  // ns, where 50 us are usual
  std::vector<std::byte> buffer(64 << 10);
  while (true) {
    std::optional<Instant> event;
    int moved = 0;
    {
      MutexLock lock(mu_);
      if (is_closing_) return;
      for (Way& way : ways_) moved += receive(way, buffer);
      for (Way& way : ways_) moved += send(way, steady_time());
      for (Way& way : ways_) moved += deliver(way, steady_time());
      event = next_event();
    }
    if (moved > 0) {
      std::this_thread::sleep_for(kNap);
    } else {
      wait(event);
    }
  }
}

int LinkEmulator::receive(Way& way, std::span<std::byte> buffer) {
  int count = 0;
  for (; count < kBatch; ++count) {
    const ssize_t size = ::read(way.from, buffer.data(), buffer.size());
    if (size <= 0) break;
    if (is_cut_) {
      ++way.counters.cut;
    } else if (way.queued_bytes + size > options_.queue_bytes) {
      ++way.counters.dropped;
    } else {
      way.queue.push_back({steady_time(), {buffer.begin(), buffer.begin() + size}});
      way.queued_bytes += size;
    }
  }
  return count;
}

int LinkEmulator::send(Way& way, Instant now) {
  int count = 0;
  for (; !way.queue.empty() && way.free_at <= now; ++count) {
    Packet packet = std::move(way.queue.front());
    way.queue.pop_front();
    const auto size = static_cast<int64_t>(packet.bytes.size());
    way.queued_bytes -= size;
    // From when it could have left, and not from now: that this thread is late slows nothing down.
    way.free_at = std::max(way.free_at, packet.at) + time_to_send(size, rate_mbit_);
    if (options_.recording != nullptr) options_.recording->add(packet.bytes);
    if (way.loss.chance(options_.loss_ratio)) {
      ++way.counters.lost;
    } else {
      packet.at = way.free_at + options_.delay;
      way.line.push_back(std::move(packet));
    }
  }
  return count;
}

int LinkEmulator::deliver(Way& way, Instant now) {
  int count = 0;
  for (; count < kBatch && !way.line.empty() && way.line.front().at <= now; ++count) {
    const std::vector<std::byte>& bytes = way.line.front().bytes;
    if (::write(way.to, bytes.data(), bytes.size()) > 0) {
      ++way.counters.passed;
      way.counters.passed_bytes += static_cast<int64_t>(bytes.size());
    } else {
      ++way.counters.cut;  // the device is down
    }
    way.line.pop_front();
  }
  return count;
}

std::optional<LinkEmulator::Instant> LinkEmulator::next_event() const {
  std::optional<Instant> first;
  const auto consider = [&](Instant instant) {
    first = std::min(first.value_or(instant), instant);
  };
  for (const Way& way : ways_) {
    if (!way.queue.empty()) consider(way.free_at);
    if (!way.line.empty()) consider(way.line.front().at);
  }
  return first;
}

void LinkEmulator::wait(std::optional<Instant> event) {
  std::array<pollfd, 3> readable{pollfd{a_.get(), POLLIN, 0}, pollfd{b_.get(), POLLIN, 0},
                                 pollfd{closing_.get(), POLLIN, 0}};
  timespec left{};
  if (event) {
    const nanoseconds rest = std::max(nanoseconds(0), *event - steady_time());
    left.tv_sec = rest.count() / 1'000'000'000;
    left.tv_nsec = rest.count() % 1'000'000'000;
  }
  ::ppoll(readable.data(), readable.size(), event ? &left : nullptr, nullptr);
}

}  // namespace tailrace
