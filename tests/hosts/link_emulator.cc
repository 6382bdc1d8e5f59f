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

// Segments that leave together: a burst is delivered when its last segment has come, and so is at
// most this late for the first.
constexpr nanoseconds kBurst = std::chrono::microseconds(250);
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
      a_(open_end(a, options.address_a, options.address_b, options)),
      b_(open_end(b, options.address_b, options.address_a, options)),
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
    for (const Waiting& waiting : way.queue) way.counters.cut += waiting.packet.segments();
    for (const Waiting& waiting : way.line) way.counters.cut += waiting.packet.segments();
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
  std::vector<std::byte> buffer(68 << 10);
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
    const LinkPacket packet({buffer.begin(), buffer.begin() + size});
    if (is_cut_) {
      way.counters.cut += packet.segments();
    } else {
      enqueue(way, packet);
    }
  }
  return count;
}

void LinkEmulator::enqueue(Way& way, const LinkPacket& packet) {
  const nanoseconds segment_time = time_to_send(options_.mtu_bytes, rate_mbit_);
  const int at_once = static_cast<int>(std::clamp<int64_t>(kBurst / segment_time, 1, 64));
  const Instant now = steady_time();
  const int64_t segment_bytes = (packet.wire_bytes() + packet.segments() - 1) / packet.segments();
  for (int first = 0; first < packet.segments(); first += at_once) {
    const int count = std::min(at_once, packet.segments() - first);
    const int64_t room = (options_.queue_bytes - way.queued_bytes) / segment_bytes;
    const int fitting = static_cast<int>(std::clamp<int64_t>(room, 0, count));
    way.counters.dropped += count - fitting;
    if (fitting == 0) continue;
    way.queue.push_back({now, packet.slice(first, fitting)});
    way.queued_bytes += way.queue.back().packet.wire_bytes();
  }
}

int LinkEmulator::send(Way& way, Instant now) {
  int count = 0;
  for (; !way.queue.empty() && way.free_at <= now; ++count) {
    const Waiting next = std::move(way.queue.front());
    way.queue.pop_front();
    const int64_t size = next.packet.wire_bytes();
    way.queued_bytes -= size;
    // From when it could have left, and not from now: that this thread is late slows nothing down.
    way.free_at = std::max(way.free_at, next.at) + time_to_send(size, rate_mbit_);
    if (options_.recording != nullptr) options_.recording->add(next.packet.ip());
    lose_some(way, next.packet);
  }
  return count;
}

void LinkEmulator::lose_some(Way& way, const LinkPacket& packet) {
  int begin = 0;  // of the segments that have survived since the last loss
  const auto pass = [&](int end) {
    if (end > begin)
      way.line.push_back({way.free_at + options_.delay, packet.slice(begin, end - begin)});
  };
  for (int i = 0; i < packet.segments(); ++i) {
    if (!way.loss.chance(options_.loss_ratio)) continue;
    ++way.counters.lost;
    pass(i);
    begin = i + 1;
  }
  pass(packet.segments());
}

int LinkEmulator::deliver(Way& way, Instant now) {
  int count = 0;
  for (; count < kBatch && !way.line.empty() && way.line.front().at <= now; ++count) {
    const LinkPacket& packet = way.line.front().packet;
    if (::write(way.to, packet.bytes().data(), packet.bytes().size()) > 0) {
      way.counters.passed += packet.segments();
      way.counters.passed_bytes += packet.wire_bytes();
    } else {
      way.counters.cut += packet.segments();  // the device is down
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
