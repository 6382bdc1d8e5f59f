// Where each thread of a process is in code that may crash: the call into a library that it makes
// now, in memory that outlives the process. So whoever finds the process dead can say which call it
// died in.
//
// A thread writes into a row that it holds while it is bound to a board. It is bound to the thread,
// as a pulse is (kernels/base/pulse.h), because calls happen where nothing else of a process is
// known. Where nobody has bound one, a mark does nothing.
//
// Thread: any. A row belongs to the thread that is bound to it; other processes read the board when
// the one that writes is dead.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace tailrace {

class CallBoard {
 public:
  // A thread that finds all rows taken is not named. The pools of a process have fewer threads.
  static constexpr size_t kRows = 48;

  // Longer texts are cut.
  struct Row {
    enum State : uint32_t { kIdle, kTask, kAbout };
    std::atomic<uint32_t> is_taken{0}, state{kIdle};
    uint64_t seed = 0;  // of a task
    std::array<char, 16> call{};
    std::array<char, 64> of{};
    std::array<char, 80> about{};
  };

  // "step() of maze (libmaze.so), task seed 17": what the process was in when it died. Of several
  // threads the one that died, where note_crash() knows it, or else all that were in a call. Empty:
  // none was.
  std::string describe() const;

  // For the handler of a signal: the calling thread ends the process. Does nothing unsafe there.
  static void note_crash();

 private:
  friend class CallBoardScope;
  std::atomic<uint32_t> crashed_{0};  // 1 + the row
  std::array<Row, kRows> rows_{};
};

// The call board that the calling thread is bound to; null: it is bound to none.
std::shared_ptr<CallBoard> bound_call_board();

// Binds the calling thread to a row of `board` (null: to nothing), and at its end to the one
// before.
class CallBoardScope {
 public:
  explicit CallBoardScope(std::shared_ptr<CallBoard> board);
  ~CallBoardScope();
  CallBoardScope(const CallBoardScope&) = delete;

 private:
  friend std::shared_ptr<CallBoard> bound_call_board();
  friend class CallBoard;
  friend class CallMark;

  // It may end behind the process's own hold on the board: an abandoned call does.
  const std::shared_ptr<CallBoard> board_;
  CallBoard::Row* row_ = nullptr;  // null: all are taken
  CallBoardScope* const before_;
};

// From here to the end of the scope the calling thread is in `call` of `of`. Takes some ten
// nanoseconds: no lock, no system call.
class CallMark {
 public:
  // `call`: "step()"; `of`: "maze (libmaze.so)".
  CallMark(std::string_view call, std::string_view of, uint64_t task_seed);
  // `about`: what the call was given, whose beginning tells it from others.
  CallMark(std::string_view call, std::string_view of, std::string_view about);
  ~CallMark();
  CallMark(const CallMark&) = delete;

 private:
  CallBoard::Row* const row_;
};

}  // namespace tailrace
