#include "rollout/gateway/reading_pool.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

namespace tailrace::gateway {
namespace {

size_t num_long_threads(const ReadingLimits& limits) {
  constexpr unsigned kMost = 4;
  if (limits.long_threads > 0) return static_cast<size_t>(limits.long_threads);
  return std::clamp(std::thread::hardware_concurrency(), 1U, kMost);
}

}  // namespace

std::string describe(const HeldCall& held, Time now) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - held.since).count();
  return fmt::format("{} ({} bytes) is being read for {} s; {} other call{} wait{}", held.what,
                     held.num_bytes, seconds, held.num_waiting, held.num_waiting == 1 ? "" : "s",
                     held.num_waiting == 1 ? "s" : "");
}

std::optional<std::string> HeldTeller::look(const std::optional<HeldCall>& held, Time now) {
  constexpr std::chrono::seconds kFirst{5};
  if (!held) return std::nullopt;
  if (held->since != since_) {
    since_ = held->since;
    next_ = kFirst;
  }
  if (now - since_ < next_) return std::nullopt;
  // Twice as late each time, so that one call that hangs does not fill the log.
  next_ = 2 * (now - since_);
  return describe(*held, now);
}

ReadingPool::ReadingPool(const ReadingLimits& limits, const Clock& clock)
    : limits_(limits), clock_(clock), held_(1 + num_long_threads(limits)) {
  for (size_t i = 0; i < 1 + num_long_threads(limits); ++i)
    threads_.emplace_back([this, i] { run(i); });
}

ReadingPool::~ReadingPool() {
  Sessions dropped;  // destroyed behind the lock: a call that is dropped answers its client
  {
    MutexLock lock(mutex_);
    ends_ = true;
    short_.clear();
    long_.clear();
    for (auto& [address, session] : sessions_)
      dropped[address].waiting = std::exchange(session.waiting, {});
  }
  arrived_.notify_all();
  for (std::jthread& thread : threads_) thread.join();
}

ReadingPool::Taken ReadingPool::post(const void* session, std::string what, int64_t num_bytes,
                                     std::function<void()> read) {
  Work work{.what = std::move(what), .num_bytes = num_bytes, .read = std::move(read)};
  {
    MutexLock lock(mutex_);
    if (ends_) return Taken::kIsFull;
    const int64_t bytes = bytes_of(work);
    const auto at = sessions_.try_emplace(session).first;
    Session& own = at->second;
    // One call is always taken, however large: the server has bounded its body.
    const bool is_first = own.waiting.empty() && !own.is_read;
    const bool is_full = num_bytes_ > 0 && num_bytes_ + bytes > limits_.all_bytes;
    if (is_full || (!is_first && own.num_bytes + bytes > limits_.session_bytes)) {
      if (is_first) sessions_.erase(at);
      return is_full ? Taken::kIsFull : Taken::kSessionIsFull;
    }
    own.num_bytes += bytes;
    num_bytes_ += bytes;
    ++num_waiting_;
    own.waiting.push_back(std::move(work));
    if (is_first) list(at);
  }
  arrived_.notify_all();
  return Taken::kYes;
}

// Its next call waits for a thread.
void ReadingPool::list(Sessions::iterator session) {
  (is_short(session->second.waiting.front()) ? short_ : long_).push_back(session);
}

// The first of the long calls that wait. None overtakes it, or it might wait for ever.
bool ReadingPool::may_read_long() const {
  if (long_.empty()) return false;
  const Work& first = long_.front()->second.waiting.front();
  return long_bytes_ == 0 || long_bytes_ + first.num_bytes <= limits_.long_bytes;
}

std::optional<ReadingPool::Sessions::iterator> ReadingPool::next(bool takes_long) {
  std::deque<Sessions::iterator>& from = takes_long && may_read_long() ? long_ : short_;
  if (from.empty()) return std::nullopt;
  const Sessions::iterator session = from.front();
  from.pop_front();
  return session;
}

void ReadingPool::run(size_t thread) {
  // The first thread reads short calls alone: however many long ones come, these are never held up
  // by all threads.
  const bool takes_long = thread > 0;
  while (true) {
    Work work;
    Sessions::iterator session;
    {
      MutexLock lock(mutex_);
      std::optional<Sessions::iterator> found;
      // The one that closes the pool wakes it.
      arrived_.wait(lock.native(), [&] { return ends_ || (found = next(takes_long)).has_value(); });
      if (ends_) return;
      session = *found;
      Session& own = session->second;
      work = std::move(own.waiting.front());
      own.waiting.pop_front();
      own.is_read = true;
      own.num_bytes -= bytes_of(work);
      num_bytes_ -= bytes_of(work);
      --num_waiting_;
      if (!is_short(work)) long_bytes_ += work.num_bytes;
      held_[thread] =
          HeldCall{.what = work.what, .num_bytes = work.num_bytes, .since = clock_.now()};
    }
    work.read();
    work.read = nullptr;  // with all that it holds: before its session is forgotten
    {
      MutexLock lock(mutex_);
      held_[thread].reset();
      if (!is_short(work)) long_bytes_ -= work.num_bytes;
      Session& own = session->second;
      own.is_read = false;
      if (own.waiting.empty()) {
        sessions_.erase(session);
      } else {
        list(session);
      }
    }
    arrived_.notify_all();
  }
}

std::optional<HeldCall> ReadingPool::oldest() const {
  MutexLock lock(mutex_);
  std::optional<HeldCall> oldest;
  for (const auto& held : held_)
    if (held && (!oldest || held->since < oldest->since)) oldest = held;
  if (oldest) oldest->num_waiting = num_waiting_;
  return oldest;
}

}  // namespace tailrace::gateway
