#include "sandbox/process/program_loop.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "sandbox/process/offspring.h"

namespace tailrace::sandbox {
namespace {

using namespace std::chrono_literals;

constexpr Time kLongestWait = 1s;
// For one that has closed its stdout to end as well: its status says more.
constexpr Time kLastWords = 500ms;
// For what may still end behind a program.
constexpr Time kTick = 20ms;
// Limits on the log: so many notes at once, and from then on one in each period.
constexpr int64_t kNotesAtOnce = 20;
constexpr Time kNotesPeriod = 2s;

bool is_readable(int file) {
  pollfd polled{.fd = file, .events = POLLIN, .revents = 0};
  return ::poll(&polled, 1, 0) == 1;
}

}  // namespace

std::string ProgramLoss::quoted_last() const {
  return last.empty() ? "" : "; its stderr ends: " + last;
}

ChildProgram::ChildProgram(ProgramLoop& loop, std::unique_ptr<CommandProcess> process,
                           StderrLines said, Conversation& conversation, const ProgramRules& rules)
    : loop_(loop),
      id_(++loop.last_id_),
      process_(std::move(process)),
      said_(std::move(said)),
      conversation_(conversation),
      rules_(rules) {
  loop_.programs_.emplace(id_, this);
  loop_.watch(EPOLL_CTL_ADD, process_->out(), EPOLLIN, id_, ProgramLoop::kOut);
  loop_.watch(EPOLL_CTL_ADD, process_->err(), EPOLLIN, id_, ProgramLoop::kErr);
  loop_.watch(EPOLL_CTL_ADD, process_->pidfd(), EPOLLIN, id_, ProgramLoop::kEnd);
  loop_.watch(EPOLL_CTL_ADD, process_->in(), 0, id_, ProgramLoop::kIn);
}

ChildProgram::~ChildProgram() {
  if (process_ != nullptr) loop_.programs_.erase(id_);
}

ProgramLoss ChildProgram::kill(std::string why) {
  read_err();  // what it says may be why
  said_.end(steady_now());
  loop_.programs_.erase(id_);
  process_.reset();
  return {.why = std::move(why), .last = said_.last(), .rest = std::string(unread())};
}

void ChildProgram::write(std::string_view bytes) {
  to_write_ += bytes;
  write_some();
}

void ChildProgram::close_in() {
  closes_in_ = true;
  write_some();
}

void ChildProgram::write_some() {
  if (process_ == nullptr) return;
  bool waits = false;
  while (num_written_ < to_write_.size()) {
    const ssize_t count =
        ::write(process_->in(), to_write_.data() + num_written_, to_write_.size() - num_written_);
    if (count < 0 && errno == EINTR) continue;
    waits = count < 0 && errno == EAGAIN;
    // One that reads no more is heard of on the other side.
    if (count <= 0) break;
    num_written_ += static_cast<size_t>(count);
  }
  if (waits != std::exchange(waits_to_write_, waits))
    loop_.watch(EPOLL_CTL_MOD, process_->in(), waits ? EPOLLOUT : 0u, id_, ProgramLoop::kIn);
  if (waits) return;
  to_write_.clear();
  num_written_ = 0;
  if (!std::exchange(closes_in_, false)) return;
  loop_.watch(EPOLL_CTL_DEL, process_->in(), 0, id_, ProgramLoop::kIn);
  process_->close_in();
}

void ChildProgram::read_err() {
  char piece[1 << 14];
  // Bounded, so that a flood does not keep the others from their turn.
  for (int i = 0; i < 16; ++i) {
    const ssize_t count = ::read(process_->err(), piece, sizeof piece);
    if (count == 0) loop_.watch(EPOLL_CTL_DEL, process_->err(), 0, id_, ProgramLoop::kErr);
    if (count <= 0) return;
    said_.take({piece, static_cast<size_t>(count)}, steady_now());
  }
}

bool ChildProgram::read_out() {
  char piece[1 << 16];
  if (out_is_closed_) return false;
  const ssize_t count = ::read(process_->out(), piece, sizeof piece);
  if (count == 0) {
    out_is_closed_ = true;
    closed_at_ = steady_now();
    loop_.watch(EPOLL_CTL_DEL, process_->out(), 0, id_, ProgramLoop::kOut);
  }
  if (count <= 0) return false;
  read_.append(piece, static_cast<size_t>(count));
  return true;
}

std::optional<std::string> ChildProgram::next_line() {
  for (size_t end; (end = read_.find('\n', num_searched_)) != std::string::npos;) {
    const size_t begin = std::exchange(num_taken_, end + 1);
    num_searched_ = num_taken_;
    const std::string_view line = std::string_view(read_).substr(begin, end - begin);
    if (line.find_first_not_of(" \t\r") != line.npos) return std::string(line);
  }
  read_.erase(0, std::exchange(num_taken_, 0));
  if (rules_.keeps_end && read_.size() > 2 * rules_.most_line_bytes)
    read_.erase(0, read_.size() - rules_.most_line_bytes);
  num_searched_ = read_.size();
  return std::nullopt;
}

void ChildProgram::forget_rest() {
  read_.clear();
  num_taken_ = num_searched_ = 0;
}

Time ChildProgram::due() const {
  if (has_ended_) return looked_at_ + kTick;
  const bool is_mute = out_is_closed_ && !rules_.may_close_stdout;
  return is_mute ? std::min(deadline_, closed_at_ + kLastWords) : deadline_;
}

ProgramLoop::ProgramLoop(std::string name, std::shared_ptr<ToldTracebacks> told,
                         StderrLog::Hear hear)
    : name_(std::move(name)),
      logs_(told != nullptr),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      log_(std::move(told), std::move(hear)),
      notes_(kNotesAtOnce, kNotesPeriod) {
  if (!epoll_.is_open() || !wake_.is_open()) throw UserError("no files are left for '{}'", name_);
  watch(EPOLL_CTL_ADD, wake_.get(), EPOLLIN, 0, kIn);
}

void ProgramLoop::post(Order order, bool wakes) {
  {
    MutexLock lock(mutex_);
    if (!is_closing_) {
      if (wakes && !std::exchange(is_woken_, true)) wake();
      orders_.push_back(std::move(order));
      return;
    }
  }
  order(false);
}

void ProgramLoop::close() {
  MutexLock lock(mutex_);
  is_closing_ = true;
  wake();
}

void ProgramLoop::watch(int operation, int file, uint32_t what, Id id, Stream stream) const {
  epoll_event event{.events = what, .data = {.u64 = id * kStreams + stream}};
  (void)::epoll_ctl(epoll_.get(), operation, file, &event);
}

void ProgramLoop::watch_file(int operation, int file, uint32_t what, uint64_t number) const {
  watch(operation, file, what, number, kFile);
}

void ProgramLoop::wake() { (void)!::eventfd_write(wake_.get(), 1); }

void ProgramLoop::run() {
  leave_signals_to_others();
  while (take_orders()) round();
  end();
}

void ProgramLoop::round() {
  wait(std::min(turn(steady_now()), steady_now() + kLongestWait));
  look_at_due(steady_now());
}

bool ProgramLoop::take_orders() {
  std::deque<Order> orders;
  bool goes_on;
  {
    MutexLock lock(mutex_);
    orders = std::exchange(orders_, {});
    is_woken_ = false;
    goes_on = !is_closing_;
  }
  for (const Order& order : orders) order(goes_on);
  return goes_on;
}

void ProgramLoop::wait(Time until) {
  for (const auto& [id, program] : programs_) until = std::min(until, program->due());
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - steady_now()).count();
  std::array<epoll_event, 64> events;
  const int ready = ::epoll_wait(epoll_.get(), events.data(), std::ssize(events),
                                 static_cast<int>(std::max<int64_t>(0, left)));
  for (int i = 0; i < ready; ++i) {
    const auto [what, data] = events[static_cast<size_t>(i)];
    const auto stream = static_cast<Stream>(data.u64 % kStreams);
    if (stream == kFile)
      hear_file(data.u64 / kStreams, what);
    else
      hear(data.u64 / kStreams, stream);
  }
}

Result<std::unique_ptr<ChildProgram>> ProgramLoop::start(const CommandStart& command,
                                                         Conversation& conversation,
                                                         const ProgramRules& rules) {
  auto process = CommandProcess::start(command);
  if (!process) return process.failure();
  has_started_own_ |= !command.is_isolated;
  return std::unique_ptr<ChildProgram>(
      new ChildProgram(*this, std::move(process).value(),
                       StderrLines(shown(command), logs_ ? &log_ : nullptr), conversation, rules));
}

// A program may be gone behind whatever is said of it to its conversation.
ChildProgram* ProgramLoop::find(Id id) const {
  const auto at = programs_.find(id);
  return at == programs_.end() ? nullptr : at->second;
}

void ProgramLoop::hear(Id id, Stream stream) {
  if (id == 0) {
    uint64_t count;
    (void)!::read(wake_.get(), &count, sizeof count);
    return;
  }
  ChildProgram* const program = find(id);
  if (program == nullptr) return;
  switch (stream) {
    case kIn:
      if (program->waits_to_write_)
        program->write_some();
      else  // its stdin is closed
        watch(EPOLL_CTL_DEL, program->process_->in(), 0, id, kIn);
      break;
    case kOut:
      hear_out(id);
      break;
    case kErr:
      program->read_err();
      break;
    case kEnd:
    case kFile:
    case kStreams:
      program->has_ended_ = true;
      watch(EPOLL_CTL_DEL, program->process_->pidfd(), 0, id, kEnd);
      settle(id);
      break;
  }
}

void ProgramLoop::hear_out(Id id) {
  // Bounded, so that a flood does not keep the others from their turn.
  for (int i = 0; i < 64; ++i) {
    ChildProgram* const program = find(id);
    if (program == nullptr) return;
    if (i == 0 && log_.hear) program->read_err();
    if (!program->read_out() || !take_lines(id)) return;
  }
}

// False: it is gone.
bool ProgramLoop::take_lines(Id id) {
  while (ChildProgram* const program = find(id)) {
    const auto line = program->next_line();
    if (!line) {
      const ProgramRules& rules = program->rules_;
      if (rules.keeps_end || program->unread().size() <= rules.most_line_bytes) return true;
      lose(*program, fmt::format("wrote more than {} bytes to stdout without {}",
                                 rules.most_line_bytes, rules.awaited));
    } else if (auto fault = program->conversation_.hear(*line, program->unread())) {
      lose(*program, std::move(*fault));
    }
  }
  return false;
}

// Settles a program that has ended: its last words, and how it was.
void ProgramLoop::settle(Id id) {
  hear_out(id);
  ChildProgram* const program = find(id);
  if (program == nullptr) return;
  program->looked_at_ = steady_now();
  if (!program->conversation_.may_end() || find(id) == nullptr) return;
  const std::string ending = program->process_->ending();
  ProgramLoss loss = program->kill(ending);
  loss.has_ended = true;
  loss.is_good_end = ending == CommandProcess::kGoodEnd;
  program->conversation_.lost(loss);
}

void ProgramLoop::look_at_due(Time now) {
  std::vector<Id> due;
  for (const auto& [id, program] : programs_)
    if (program->due() <= now) due.push_back(id);
  if (has_started_own_ && !programs_.empty()) Offspring::of_this_process().look();
  for (const Id id : due) {
    // A round takes so many events, and a start may hold this thread: what a program wrote in time
    // may not have been heard yet, nor that it has ended.
    hear_out(id);
    ChildProgram* const program = find(id);
    if (program == nullptr || program->due() > now) continue;
    if (program->has_ended_ || is_readable(program->process_->pidfd()))
      settle(id);
    else if (now < program->deadline_)
      lose(*program, "closed its stdout and goes on");
    else
      lose(*program, program->conversation_.late());
  }
}

void ProgramLoop::lose(ChildProgram& program, std::string why) {
  Conversation& conversation = program.conversation_;
  conversation.lost(program.kill(std::move(why)));
}

void ProgramLoop::note(const std::string& what) {
  if (!logs_ || log_.hear) return;
  if (!notes_.take(steady_now())) {
    ++num_unnoted_;
    return;
  }
  const int64_t unnoted = std::exchange(num_unnoted_, 0);
  tell(unnoted > 0 ? fmt::format("{} (and {} times before)", what, unnoted) : what);
}

void ProgramLoop::tell(const std::string& what) const {
  (void)std::fputs(fmt::format("{}: {}\n", name_, what).c_str(), stderr);
}

ProgramThread::ProgramThread(std::shared_ptr<ProgramLoop> loop)
    : loop_(std::move(loop)), thread_([its_loop = loop_] { its_loop->run(); }) {}

ProgramThread::~ProgramThread() {
  loop_->close();
  if (thread_.get_id() == std::this_thread::get_id())
    thread_.detach();
  else
    thread_.join();
}

}  // namespace tailrace::sandbox
