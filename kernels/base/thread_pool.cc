#include "kernels/base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "kernels/base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tailrace {

namespace {

// Longer than the serial code between two ops, shorter than anyone notices on an idle core.
constexpr std::chrono::microseconds kSpin{20};

void pause() {
#if defined(__x86_64__)
  _mm_pause();
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
  } while (std::chrono::steady_clock::now() < deadline);
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

}  // namespace

struct ThreadPool::Impl {
  explicit Impl(int n) : num_threads(n) {
    threads.reserve(static_cast<size_t>(n - 1));
    for (int i = 1; i < n; ++i) threads.emplace_back([this, i] { work(i); });
  }

  ~Impl() {
    stopping = true;  // read after the acquire of `round`
    round.fetch_add(1, std::memory_order_release);
    round.notify_all();
  }

  void run_part(int part) const {
    int64_t begin = count * part / num_threads, end = count * (part + 1) / num_threads;
    if (begin < end) (*body)(begin, end);
  }

  void work(int part) {
    uint32_t seen = 0;
    while (true) {
      seen = wait_for_change(round, seen);
      if (stopping) return;
      run_part(part);
      if (unfinished.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished.notify_one();
    }
  }

  const int num_threads;
  // Written by the caller before it raises `round`, read by the workers after they have seen it.
  int64_t count = 0;
  const RangeBody* body = nullptr;
  bool stopping = false;

  alignas(64) std::atomic<uint32_t> round{0};
  alignas(64) std::atomic<uint32_t> unfinished{0};
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
    if (count > 0) body(0, count);
    return;
  }
  impl.count = count;
  impl.body = &body;
  impl.unfinished.store(static_cast<uint32_t>(impl.num_threads - 1), std::memory_order_relaxed);
  impl.round.fetch_add(1, std::memory_order_release);
  impl.round.notify_all();
  impl.run_part(0);
  uint32_t left = impl.unfinished.load(std::memory_order_acquire);
  while (left != 0) left = wait_for_change(impl.unfinished, left);
}

int num_threads(const Stream& stream) {
  return stream.pool == nullptr ? 1 : stream.pool->num_threads();
}

void parallel_for(const Stream& stream, int64_t count, int64_t grain, RangeBody body) {
  if (count <= 0) return;
  int64_t pieces = std::min<int64_t>(num_threads(stream), count / std::max<int64_t>(grain, 1));
  if (pieces <= 1) return body(0, count);
  stream.pool->run(pieces, [&](int64_t begin, int64_t end) {
    body(count * begin / pieces, count * end / pieces);
  });
}

}  // namespace tailrace
