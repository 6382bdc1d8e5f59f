#include "core/run/call_board.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

namespace tailrace {
namespace {

thread_local CallBoardScope* bound = nullptr;

template <size_t kSize>
void write(std::array<char, kSize>& room, std::string_view text) {
  const size_t size = std::min(text.size(), kSize - 1);
  std::memcpy(room.data(), text.data(), size);
  room[size] = '\0';
}

// In another process, whose writer may have died in the middle: not beyond the room.
template <size_t kSize>
std::string read(const std::array<char, kSize>& room) {
  std::string text(room.data(), ::strnlen(room.data(), kSize));
  // It goes into a line of a log.
  for (char& c : text)
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  return text;
}

std::string describe_row(const CallBoard::Row& row) {
  std::string text = fmt::format("{} of {}", read(row.call), read(row.of));
  if (row.state.load() == CallBoard::Row::kTask)
    return text + fmt::format(", task seed {}", row.seed);
  const std::string about = read(row.about);
  return about.empty() ? text : fmt::format("{}, given {}", text, about);
}

}  // namespace

std::string CallBoard::describe() const {
  const uint32_t crashed = crashed_.load();
  if (crashed > 0 && crashed <= kRows) {
    const Row& row = rows_[crashed - 1];
    return row.state.load() == Row::kIdle ? "" : describe_row(row);
  }
  std::string text;
  for (const Row& row : rows_) {
    if (row.state.load() == Row::kIdle) continue;
    text += text.empty() ? "" : "; or in ";
    text += describe_row(row);
  }
  return text;
}

void CallBoard::note_crash() {
  // The thread's binding is read without a call: no library of ours is loaded late.
  if (bound == nullptr || bound->row_ == nullptr) return;
  CallBoard& board = *bound->board_;
  board.crashed_.store(static_cast<uint32_t>(bound->row_ - board.rows_.data()) + 1);
}

std::shared_ptr<CallBoard> bound_call_board() { return bound == nullptr ? nullptr : bound->board_; }

CallBoardScope::CallBoardScope(std::shared_ptr<CallBoard> board)
    : board_(std::move(board)), before_(std::exchange(bound, this)) {
  if (!board_) return;
  for (CallBoard::Row& row : board_->rows_) {
    // An exchange: two threads that begin at once never get one row.
    if (row.is_taken.exchange(1) != 0) continue;
    row_ = &row;
    return;
  }
}

CallBoardScope::~CallBoardScope() {
  if (row_ != nullptr) row_->is_taken.store(0);
  bound = before_;
}

CallMark::CallMark(std::string_view call, std::string_view of, uint64_t task_seed)
    : row_(bound == nullptr ? nullptr : bound->row_) {
  if (row_ == nullptr) return;
  write(row_->call, call);
  write(row_->of, of);
  row_->seed = task_seed;
  // Last: whoever sees that the row is in a call sees its text too.
  row_->state.store(CallBoard::Row::kTask, std::memory_order_release);
}

CallMark::CallMark(std::string_view call, std::string_view of, std::string_view about)
    : row_(bound == nullptr ? nullptr : bound->row_) {
  if (row_ == nullptr) return;
  write(row_->call, call);
  write(row_->of, of);
  write(row_->about, about);
  row_->state.store(CallBoard::Row::kAbout, std::memory_order_release);
}

CallMark::~CallMark() {
  if (row_ != nullptr) row_->state.store(CallBoard::Row::kIdle, std::memory_order_release);
}

}  // namespace tailrace
