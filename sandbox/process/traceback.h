// Tracebacks of Python among the lines of a program's stderr.
//
// Thread: one, but ToldTracebacks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tailrace::sandbox {

// One traceback, line by line: its frames, and the line of its exception.
class Traceback {
 public:
  // Whether a traceback begins with this line.
  static bool begins(std::string_view line);

  bool is_open() const { return !lines_.empty(); }
  // `line` begins it, or follows in it. True: it is complete.
  bool take(std::string line);
  // Longer than any that is worth waiting for.
  bool is_too_long() const;
  // Gives the lines so far, and none is open any more.
  std::vector<std::string> close();

  const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::vector<std::string> lines_;
};

// "ValueError: no map (maze.py:3)", of the lines of a complete traceback. The place is the
// innermost one outside of Python and its packages, where there is one.
std::string summary_of_traceback(const std::vector<std::string>& lines);
// A digest of the frames and the kind of exception. Its message may differ each time, and so may
// the folder of an episode.
uint64_t digest_of_frames(const std::vector<std::string>& lines);

// How often texts have come, by their digests: what has been told once need not be told again. It
// is shared with processes that a fork makes later, as those of `env check` are, which write to the
// same log.
//
// Thread: any, and any such process.
class ToldTracebacks {
 public:
  ToldTracebacks();  // throws std::bad_alloc
  ~ToldTracebacks();
  ToldTracebacks(const ToldTracebacks&) = delete;
  ToldTracebacks& operator=(const ToldTracebacks&) = delete;

  // How often it has come, with this time. Beyond a number of texts: 1, always.
  int64_t count(uint64_t digest);
  // It has not been told after all.
  void forget(uint64_t digest);

 private:
  struct Row;

  Row* find(uint64_t digest) const;  // its row, from now on; null: there is none left

  Row* const rows_;
};

}  // namespace tailrace::sandbox
