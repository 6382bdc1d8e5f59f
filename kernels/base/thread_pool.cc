#include "kernels/base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <thread>
#include <vector>

#include <pthread.h>

#include "kernels/base/check.h"
#include "kernels/base/pulse.h"

namespace tailrace {

namespace {

// Longer than the serial code between two ops, shorter than anyone notices on an idle core.
constexpr std::chrono::microseconds kSpin{20};

// The system's name for each thread but the caller (`top -H`, /proc/PID/task/*/comm).
constexpr const char* kThreadName = "tr-compute";

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();  // as _mm_pause(), whose header takes half a second to read
#endif
}

// Waits until `value` is no longer `old`; returns what it is then.
uint32_t wait_for_change(const std::atomic<uint32_t>& value, uint32_t old) {
  auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      uint32_t now = value.load(std::memory_order_acquire);
      if (now != old) return now;
      pause();
    }
    // On a busy core the one we wait for may be next in line behind us.
    // Measured with twelve runnable processes on two cores: a two-thread product of [64, 128] by
    // [384, 128] takes 57 us with the yield, as on one thread, and took 104 us without.
    std::this_thread::yield();
  } while (std::chrono::steady_clock::now() < deadline);
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

}  // namespace

struct ThreadPool::Impl {
  explicit Impl(int n) : num_threads(n) {
    threads.reserve(static_cast<size_t>(n - 1));
    try {
      for (int i = 1; i < n; ++i) threads.emplace_back([this] { work(); });
    } catch (...) {  // the system has no more: those that there are would wait for ever
      stop();
      throw;
    }
  }

  ~Impl() { stop(); }

  void stop() {
    // Before `round` moves: a worker that sees the new round sees this too.
    stopping = true;
    round.fetch_add(1, std::memory_order_release);
    round.notify_all();
  }

  // Runs parts until none is left. The caller of run() does so as well: a worker that the
  // operating system has not woken yet costs its share of the work, not a wait.
  void run_parts() {
    const auto parts = static_cast<uint32_t>(num_threads);
    uint32_t part;
    // A worker that comes late, in the next loop, takes a part of that one, which is as good.
    while ((part = next_part.fetch_add(1, std::memory_order_acq_rel)) < parts) {
      const int64_t begin = count * part / num_threads, end = count * (part + 1) / num_threads;
      if (begin < end) {
        // Inside the part: once all are done, the pulse may be gone.
        const PulseScope scope(pulse);
        (*body)(begin, end);
      }
      if (done.fetch_add(1, std::memory_order_acq_rel) + 1 == parts) done.notify_one();
    }
  }

  void work() {
    ::pthread_setname_np(::pthread_self(), kThreadName);
    uint32_t seen = 0;
    while (true) {
      seen = wait_for_change(round, seen);
      if (stopping) return;
      run_parts();
    }
  }

  const int num_threads;
  // Written by the caller before it resets `next_part`, read by whoever has taken a part since.
  int64_t count = 0;
  const RangeBody* body = nullptr;
  Pulse* pulse = nullptr;  // the caller's
  std::atomic<bool> stopping = false;

  // A cache line each: workers poll `round` while others count parts in the next two.
  alignas(64) std::atomic<uint32_t> round{0};  // what idle workers wait on
  // Before the first loop no part is left. Half of the range, because every worker that finds none
  // adds one: the count must not come round to 0.
  alignas(64) std::atomic<uint32_t> next_part{std::numeric_limits<uint32_t>::max() / 2};
  alignas(64) std::atomic<uint32_t> done{0};
  std::vector<std::jthread> threads;  // last member: joined before what it uses goes
};

ThreadPool::ThreadPool(int num_threads) {
  TR_CHECK(num_threads >= 1, "num_threads={}", num_threads);
  impl_ = std::make_unique<Impl>(num_threads);
}

ThreadPool::~ThreadPool() = default;

int ThreadPool::num_threads() const { return impl_->num_threads; }

void ThreadPool::run(int64_t count, RangeBody body) {
  Impl& impl = *impl_;
  if (impl.num_threads == 1) {
    // No other thread has been made, so there is nobody to wake.
    if (count > 0) body(0, count);
    return;
  }
  num_divided_ += count > 1;
  const auto parts = static_cast<uint32_t>(impl.num_threads);
  // The order matters: by next_part's release whoever takes a part sees the loop that it is a part
  // of. All parts of the last loop are done, so nobody reads `count` and its neighbours meanwhile.
  impl.count = count;
  impl.body = &body;
  impl.pulse = bound_pulse();
  impl.done.store(0, std::memory_order_relaxed);
  impl.next_part.store(0, std::memory_order_release);
  impl.round.fetch_add(1, std::memory_order_release);
  impl.round.notify_all();
  impl.run_parts();
  // Until the parts are done, not until all workers have come: one that is late finds no part left.
  uint32_t done = impl.done.load(std::memory_order_acquire);
  while (done != parts) done = wait_for_change(impl.done, done);
}

int num_threads(const Stream& stream) {
  return stream.pool == nullptr ? 1 : stream.pool->num_threads();
}

void parallel_for(const Stream& stream, int64_t count, int64_t grain, RangeBody body) {
  if (count <= 0) return;
  beat();  // ops are loops of this kind
  // Rounded down, so that a piece is never smaller than `grain`: waking a thread for less costs
  // more than it saves.
  int64_t pieces = std::min<int64_t>(num_threads(stream), count / std::max<int64_t>(grain, 1));
  if (pieces <= 1) return body(0, count);
  stream.pool->run(pieces, [&](int64_t begin, int64_t end) {
    body(count * begin / pieces, count * end / pieces);
  });
}

}  // namespace tailrace
