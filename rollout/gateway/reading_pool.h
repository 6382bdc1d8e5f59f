// Threads that read what the clients of a gateway send: they parse a body, let the chat template
// write the conversation, and encode it. The I/O thread goes on meanwhile, so it answers whatever
// takes no such work, and hears who hangs up.
//
//   - The calls of a session are read one at a time, in the order in which they came. What an
//     episode has captured therefore does not depend on the threads.
//   - Sessions take turns. One thread reads short calls alone; the others read long calls, and
//     short ones where no long one waits. However many long calls there are, a short one waits for
//     no more than the short ones before it.
//   - What waits is bounded by its bytes, of a session and of all; so are the long calls that are
//     read at a time, as to read one takes several times its bytes.
//
// Thread: any; the work runs on threads of the pool.
// Close: what waits is dropped, unread; what is being read is waited for.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/clock.h"
#include "core/base/time.h"
#include "kernels/base/mutex.h"

namespace tailrace::gateway {

struct ReadingLimits {
  int64_t short_bytes = int64_t{128} << 10;  // of a call that is read beside long ones
  // Limits of the bodies that wait, each with `call_bytes` for the rest of the call.
  int64_t session_bytes = int64_t{128} << 20;
  int64_t all_bytes = int64_t{1} << 30;
  int64_t call_bytes = int64_t{4} << 10;
  // All long calls that are read at a time; one is read, however large.
  int64_t long_bytes = int64_t{32} << 20;
  int64_t long_threads = 0;  // that read long calls; 0: one a core, at most four
};

// A call that is being read.
struct HeldCall {
  std::string what;       // "POST /v1/chat/completions of episode tr-12ab...
  int64_t num_bytes = 0;  // of its body
  Time since{};
  int64_t num_waiting = 0;  // calls of any session that are not read yet
};

// "POST /v1/chat/completions of agent x (episode 7) (3145728 bytes) is being read for 12 s; 3 other
// calls wait".
std::string describe(const HeldCall& held, Time now);

// When a call that is held is worth a line, and which: after 5 s, and then ever less often.
//
// Thread: one at a time.
class HeldTeller {
 public:
  std::optional<std::string> look(const std::optional<HeldCall>& held, Time now);

 private:
  Time since_{};
  Time next_{};
};

class ReadingPool {
 public:
  enum class Taken { kYes, kSessionIsFull, kIsFull };

  // Borrows the clock.
  ReadingPool(const ReadingLimits& limits, const Clock& clock);
  ~ReadingPool();
  ReadingPool(const ReadingPool&) = delete;

  // Runs `read` once. `session`: whose call it is, an address that nobody else has until `read` is
  // destroyed. What `read` throws is its own to catch.
  [[nodiscard]] Taken post(const void* session, std::string what, int64_t num_bytes,
                           std::function<void()> read);

  // The call that was begun first among those that are being read; nothing: none is.
  std::optional<HeldCall> oldest() const;

 private:
  struct Work {
    std::string what;
    int64_t num_bytes = 0;
    std::function<void()> read;
  };
  struct Session {
    std::deque<Work> waiting = {};
    int64_t num_bytes = 0;  // of what waits
    bool is_read = false;   // one of its calls is
  };
  using Sessions = std::map<const void*, Session>;

  void run(size_t thread);
  int64_t bytes_of(const Work& work) const { return work.num_bytes + limits_.call_bytes; }
  bool is_short(const Work& work) const { return work.num_bytes <= limits_.short_bytes; }
  void list(Sessions::iterator session) TR_REQUIRES(mutex_);
  bool may_read_long() const TR_REQUIRES(mutex_);
  std::optional<Sessions::iterator> next(bool takes_long) TR_REQUIRES(mutex_);

  const ReadingLimits limits_;
  const Clock& clock_;

  mutable Mutex mutex_;
  std::condition_variable arrived_;
  Sessions sessions_ TR_GUARDED_BY(mutex_);
  // Sessions whose next call may be read, in the order of their turns: by the length of that call.
  std::deque<Sessions::iterator> short_, long_ TR_GUARDED_BY(mutex_);
  std::vector<std::optional<HeldCall>> held_ TR_GUARDED_BY(mutex_);  // by thread
  int64_t long_bytes_ TR_GUARDED_BY(mutex_) = 0;  // of the long calls that are being read
  int64_t num_bytes_ TR_GUARDED_BY(mutex_) = 0;
  int64_t num_waiting_ TR_GUARDED_BY(mutex_) = 0;
  bool ends_ TR_GUARDED_BY(mutex_) = false;

  std::vector<std::jthread> threads_;  // last; the first one reads short calls alone
};

}  // namespace tailrace::gateway
