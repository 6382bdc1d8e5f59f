// The processes that programs of others have started: found and ended with them, whatever it does
// to be overlooked (a session of its own, another environment, no dumps of it).
//
// The kernel gives this process the orphans of all that it has started (PR_SET_CHILD_SUBREAPER), so
// that what a program leaves behind is a child of ours. Whose it is follows from
//   - its parents, as far as they were seen while they lived,
//   - its session: each program leads one, and nobody can join another one from outside;
//   - its limit on real-time scheduling (RLIMIT_RTTIME), which is a number of the program's own,
//     and far beyond what limits anything. It is inherited whatever session and environment a
//     process takes; one that lowers it hides, and nobody has a reason to;
//   - else it is of one of those that lived when it was found, and ends with the last of them.
// A child of ours in our own session is no orphan: whoever starts others in this process, and lets
// them live on, leaves them there.
//
// It does not outlive a kill -9 of this process: then the orphans go to whoever of its parents
// takes them, as `launch` does, else to the init of the machine.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "core/base/time.h"
#include "kernels/base/mutex.h"

namespace tailrace::sandbox {

class Offspring {
 public:
  // The only one: that orphans come here is a fact of the process, and not of one of its parts.
  static Offspring& of_this_process();

  // A program and all that it starts. Ends that with its own end.
  class Family {
   public:
    Family() = default;
    Family(Family&& other) noexcept : number_(std::exchange(other.number_, 0)) {}
    Family& operator=(Family&& other) noexcept {
      std::swap(number_, other.number_);
      return *this;
    }
    ~Family() { (void)end(); }

    // The processes that surely are its own and live, when the program itself has ended.
    std::vector<pid_t> living() const;
    // Kills them, until none is left or two seconds are over; the program itself was waited for.
    // How many could not be killed.
    int end();

   private:
    friend class Offspring;
    explicit Family(uint64_t number) : number_(number) {}
    uint64_t number_ = 0;  // 0: none
  };

  // `fork` starts a program that leads a session of its own and bears the mark, and returns its id,
  // or -1.
  std::pair<pid_t, Family> start(const std::function<pid_t(uint64_t mark)>& fork);
  // In the child of that fork: system calls alone.
  static void bear(uint64_t mark);
  // Waits for it, which has ended or was killed; its status.
  int wait(pid_t program);

  // Now and then: finds who belongs to whom, awaits orphans that have ended, and kills those that
  // are nobody's any more. At most once in `interval`.
  void look(Time interval = std::chrono::seconds(1));
  // Kills those that are nobody's, until none is left or two seconds are over: of a process of ours
  // that has died, and whose orphans have come here.
  void end_orphans();

 private:
  struct Process {
    pid_t pid = 0, parent = 0, session = 0;
    uint64_t started = 0;  // since the machine has: with the id it is one process for ever
    bool has_ended = false;
  };
  struct Owners {
    std::set<uint64_t> families;  // one of these
    bool is_sure = false;         // there was never another
  };
  using Key = std::pair<pid_t, uint64_t>;

  Offspring();
  static std::vector<Process> processes();
  bool has_orphans() const TR_REQUIRES(mutex_);
  int scan() TR_REQUIRES(mutex_);
  uint64_t draw_mark() const TR_REQUIRES(mutex_);
  std::optional<uint64_t> marked_family(pid_t pid) const TR_REQUIRES(mutex_);
  std::vector<pid_t> living(uint64_t family);
  int end(uint64_t family);

  const pid_t self_, session_;
  Mutex mutex_;
  std::map<pid_t, uint64_t> programs_ TR_GUARDED_BY(mutex_);  // not waited for yet
  std::map<pid_t, uint64_t> sessions_ TR_GUARDED_BY(mutex_);  // of families that have not ended
  std::map<uint64_t, uint64_t> marks_ TR_GUARDED_BY(mutex_);  // as sessions_
  std::set<uint64_t> families_ TR_GUARDED_BY(mutex_);         // that have not ended
  std::map<Key, Owners> owned_ TR_GUARDED_BY(mutex_);
  uint64_t last_family_ TR_GUARDED_BY(mutex_) = 0;
  Time looked_ TR_GUARDED_BY(mutex_){};
};

}  // namespace tailrace::sandbox
