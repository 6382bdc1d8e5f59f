// How far a long loop over bytes is (a large model that is read, hashed, written): a line every
// 10 s, and none where it is done sooner. Who wants the lines binds a scope; elsewhere a loop says
// nothing.
//
//   Progress progress("loading " + folder.string(), total);
//   for (...) { ...; progress.add(bytes); }
//
// Loops that follow each other within a second are one wait of a person, who hears of it after
// 10 s, however short each of them is.
//
// Thread: each has its own scopes, which end in the reverse order.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "core/base/clock.h"

namespace tailrace {

inline constexpr std::chrono::seconds kTellEvery{10};

class ProgressScope {
 public:
  // Both outlive the scope; `tell` is called on this thread.
  ProgressScope(std::function<void(const std::string&)> tell, const Clock& clock);
  ~ProgressScope();
  ProgressScope(const ProgressScope&) = delete;

 private:
  friend class Progress;
  const std::function<void(const std::string&)> tell_;
  const Clock& clock_;
  ProgressScope* const outer_;
  Time told_{};               // or when the wait began
  Time ended_ = Time::min();  // of the last loop
};

class Progress {
 public:
  // "WHAT: 1.2 GiB of 3.1 GiB"
  Progress(std::string what, int64_t total_bytes);
  ~Progress();
  Progress(const Progress&) = delete;

  void add(int64_t bytes);

 private:
  ProgressScope* const scope_;  // null: nobody listens
  std::string what_;
  int64_t total_, done_ = 0;
};

}  // namespace tailrace
