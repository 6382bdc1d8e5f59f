// The view of a run that goes on: a block that is redrawn in place on a terminal, plain
// lines elsewhere. A reader that goes away ends neither.
//
// Thread: the owner's only.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "cli/view/health.h"
#include "core/run/metrics.h"

namespace tailrace {

struct ProgressState {
  std::string name;
  int64_t total_steps = 0;
  std::vector<MetricsRow> rows;  // all so far, oldest first
};

// One line for a row: a step, an evaluation, or supervised warm-up.
//   step 12/80  reward 0.612  success 0.64  length 23.4  18.2k tokens/s  1m02s left
//   supervised update 132/2241  loss 1.726  40s left
std::string progress_line(const ProgressState& state, const MetricsRow& row);

// The block of a terminal, each line at most `columns` wide.
std::vector<std::string> progress_block(const ProgressState& state, int columns);

// Seconds of the steps still to do, at the pace of the last twenty; negative when nothing is known.
double seconds_left(const ProgressState& state);

// Writes and flushes. Where nobody reads any more (a pipe into `head`, a terminal that was closed)
// the text is lost, and so is all that follows. The process must ignore SIGPIPE.
void show(std::FILE* out, std::string_view text);

class ProgressView {
 public:
  // Borrows `out`. `terminal`: whether it can be redrawn (isatty). `health` has seen the rows of
  // earlier launches: what it has found is not said again.
  ProgressView(std::FILE* out, bool terminal, std::string name, int64_t total_steps,
               Health health = Health());
  ~ProgressView() { finish(); }

  // Says a finding about the health of the run once, when it appears.
  void add(MetricsRow row);
  // A line of its own, above the block.
  void say(const std::string& line);
  // Leaves the block as it stands; later lines come below it.
  void finish();

 private:
  void erase_block();
  void draw_block();

  std::FILE* out_;
  bool terminal_;
  ProgressState state_;
  int drawn_lines_ = 0;
  Health health_;
};

}  // namespace tailrace
