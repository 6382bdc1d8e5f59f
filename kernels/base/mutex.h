// std::mutex with clang's thread-safety annotations (no effect under g++).
#pragma once

#include <mutex>

#if defined(__clang__)
#define TR_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define TR_THREAD_ANNOTATION(x)
#endif

#define TR_GUARDED_BY(x) TR_THREAD_ANNOTATION(guarded_by(x))
#define TR_REQUIRES(x) TR_THREAD_ANNOTATION(requires_capability(x))

namespace tailrace {

class TR_THREAD_ANNOTATION(capability("mutex")) Mutex {
 public:
  void lock() TR_THREAD_ANNOTATION(acquire_capability()) { mutex_.lock(); }
  void unlock() TR_THREAD_ANNOTATION(release_capability()) { mutex_.unlock(); }
  std::mutex& native() { return mutex_; }  // for std::condition_variable

 private:
  std::mutex mutex_;
};

class TR_THREAD_ANNOTATION(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) TR_THREAD_ANNOTATION(acquire_capability(mutex))
      : lock_(mutex.native()) {}
  ~MutexLock() TR_THREAD_ANNOTATION(release_capability()) {}
  std::unique_lock<std::mutex>& native() { return lock_; }

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace tailrace
