// When a worker that a person has added to a run has to leave it: the person said so, or the run is
// over.
//
// Thread: the constructor before any other thread starts, so that all inherit its mask of signals;
// the rest any.
#pragma once

#include <atomic>
#include <functional>
#include <initializer_list>
#include <stop_token>
#include <thread>
#include <utility>

#include <signal.h>

#include "kernels/base/mutex.h"

namespace tailrace {

// Signals by which a person ends this process, as a wait that ends. Must be made before any
// other thread, so that all inherit the mask.
class Signals {
 public:
  explicit Signals(std::initializer_list<int> signals);
  // True when one came. Waits a tenth of a second at most.
  bool wait() const;

 private:
  sigset_t set_{};
};

class Leave {
 public:
  Leave();

  // While it lives: the run goes on for as long as `goes_on` says so, which is called on a thread
  // of this class.
  class Watch {
   public:
    ~Watch() { leave_.set({}); }
    Watch(const Watch&) = delete;

   private:
    friend class Leave;
    Watch(Leave& leave, std::function<bool()> goes_on) : leave_(leave) {
      leave_.set(std::move(goes_on));
    }
    Leave& leave_;
  };
  [[nodiscard]] Watch watch(std::function<bool()> goes_on) { return {*this, std::move(goes_on)}; }

  std::stop_token token() const { return source_.get_token(); }
  bool asked() const { return asked_.load(); }  // by the person
  bool over() const { return over_.load(); }    // the run is

 private:
  // A call that goes on has ended when this returns.
  void set(std::function<bool()> goes_on);
  void run(const std::stop_token& end);
  bool goes_on();

  const Signals signals_{SIGINT, SIGTERM, SIGHUP};
  std::atomic<bool> asked_ = false, over_ = false;
  std::stop_source source_;
  Mutex mu_;
  std::function<bool()> goes_on_ TR_GUARDED_BY(mu_);
  std::jthread thread_;
};

}  // namespace tailrace
