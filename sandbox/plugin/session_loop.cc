#include "sandbox/plugin/session_loop.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <future>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/digest.h"
#include "core/base/digest_of.h"
#include "core/base/error.h"
#include "core/base/file_descriptor.h"
#include "kernels/base/mutex.h"
#include "sandbox/plugin/host_process.h"
#include "sandbox/plugin/protocol.h"

namespace tailrace::sandbox {

namespace {

using Number = SessionLoop::Number;

// A fork, or a kill and its wait.
constexpr Time kHostAnswers = std::chrono::seconds(10);
// How exactly deadlines are kept, and for how long a loop without calls looks for the next.
constexpr Time kTick = std::chrono::milliseconds(20);
constexpr Time kLongestClose = std::chrono::seconds(2);
// For a host to say how a session has ended, and for its own end.
constexpr Time kLastWord = std::chrono::seconds(2);
// The number that says what an event belongs to; sessions have the numbers behind.
constexpr Number kWake = 0, kControl = 1, kFirstSession = 2;

}  // namespace

struct SessionLoop::State {
  // The loop's knowledge of a session.
  struct Peer {
    enum class Phase : uint8_t {
      kOpen,
      kEnding,  // its host was told to end it
      kEnded,
    };

    std::shared_ptr<FileDescriptor> socket;  // shared with a call that is awaited
    std::string out, in;                     // framed; what is not sent or not whole yet
    bool waits_to_send = false;
    Phase phase = Phase::kOpen;
    bool is_released = false;  // nobody has it any more
    // The call in flight.
    SessionLoop::Done done = nullptr;
    const char* call = "";
    Time timeout{}, deadline{};
    // Why it is ending.
    SocketEnd why = SocketEnd::kClosed;
    Time ending_since{};
    std::string no_process;  // why it never had one
  };

  struct ToHost {
    HostRequest request;
    Number session;
    FileDescriptor file = {};
  };

  State(std::filesystem::path file, std::string digest, std::filesystem::path program,
        Time patience)
      : file_(std::move(file)),
        digest_(std::move(digest)),
        program_(std::move(program)),
        patience_(patience),
        epoll_(::epoll_create1(EPOLL_CLOEXEC)),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!epoll_.is_open() || !wake_.is_open())
      throw UserError("{}: no files are left for its processes ({})", file_.string(),
                      ::strerror(errno));
    watch(EPOLL_CTL_ADD, wake_.get(), EPOLLIN, kWake);
  }

  // --- Any thread.

  // By the loop's thread: a host dies with the thread that has started it.
  Result<std::string> start() {
    std::future<Result<std::string>> said;
    {
      MutexLock lock(mutex_);
      said = start_.emplace().get_future();
      wake();
    }
    return said.get();
  }

  Number open(bool is_polled) {
    auto sockets = socket_pair();
    MutexLock lock(mutex_);
    const Number number = next_++;
    Peer& session = sessions_[number];
    if (!sockets) {
      session.phase = Peer::Phase::kEnded;
      session.no_process = sockets.failure().message;
      return number;
    }
    auto& [ours, theirs] = sockets.value();
    session.socket = std::make_shared<FileDescriptor>(std::move(ours));
    if (is_polled) watch(EPOLL_CTL_ADD, session.socket->get(), EPOLLIN, number);
    to_host_.push_back({HostRequest::kOpen, number, std::move(theirs)});
    if (control_.is_open()) send_to_host();
    wake();
    return number;
  }

  void begin(Number number, const Packer& request, Time timeout, const char* call, Done done) {
    std::optional<Failure> failed;
    {
      MutexLock lock(mutex_);
      Peer* peer = open_peer(number);
      if (peer != nullptr) {
        ask(number, *peer, request, timeout, call, std::move(done));
      } else {
        failed = why_not(number, call);
      }
    }
    if (failed) done(*failed);
  }

  Result<std::string> call(Number number, const Packer& request, Time timeout, const char* call) {
    std::shared_ptr<FileDescriptor> socket;
    {
      MutexLock lock(mutex_);
      const Peer* peer = open_peer(number);
      if (peer == nullptr) return why_not(number, call);
      socket = peer->socket;
    }
    const Time begin = steady_now();
    std::string answer;
    std::optional<SocketEnd> end_of = send_message(socket->get(), request.bytes(), timeout);
    if (!end_of)
      end_of = receive_message(socket->get(), kMostAnswer,
                               std::max(Time{0}, timeout - (steady_now() - begin)), answer);
    if (!end_of && answer.empty()) end_of = SocketEnd::kMalformed;
    if (!end_of) return result_of(answer);
    // How it has ended its host knows. Shared: it is answered once, also when nobody waits.
    auto promise = std::make_shared<std::promise<Result<std::string>>>();
    auto failure = promise->get_future();
    {
      MutexLock lock(mutex_);
      Peer& peer = sessions_.at(number);
      peer.call = call;
      peer.timeout = timeout;
      if (peer.phase == Peer::Phase::kEnded) return Failure{reason_of(peer, std::nullopt)};
      peer.done = [promise](Result<std::string> result) { promise->set_value(std::move(result)); };
      ++in_flight_;
      end(number, peer, *end_of);
      wake();
    }
    if (failure.wait_for(2 * kHostAnswers) == std::future_status::ready) return failure.get();
    return Failure{fmt::format("its process ended in {}, and nobody says how", call)};
  }

  bool is_alive(Number number) {
    MutexLock lock(mutex_);
    const auto at = sessions_.find(number);
    return at != sessions_.end() && at->second.phase == Peer::Phase::kOpen;
  }

  void release(Number number, const Packer* goodbye, Time timeout) {
    Done in_flight;
    {
      MutexLock lock(mutex_);
      const auto at = sessions_.find(number);
      Peer& session = at->second;
      session.is_released = true;
      in_flight = std::exchange(session.done, nullptr);
      if (in_flight) --in_flight_;
      if (session.phase == Peer::Phase::kEnded) {
        sessions_.erase(at);
      } else if (session.phase == Peer::Phase::kOpen) {
        if (goodbye != nullptr && !in_flight) {
          ask(number, session, *goodbye, timeout, "close()", [](const Result<std::string>&) {});
        } else {
          end(number, session, SocketEnd::kClosed);
          wake();
        }
      }
    }
    if (in_flight) in_flight(Failure{"its process was ended in its call"});
  }

  void close() {
    MutexLock lock(mutex_);
    closing_until_ = steady_now() + kLongestClose;
    wake();
  }

  // --- The loop's thread.

  void run() {
    std::array<epoll_event, 64> events;
    while (true) {
      launch_if_wanted();
      int timeout_ms = -1;
      {
        MutexLock lock(mutex_);
        if (closing_until_ && (sessions_.empty() || steady_now() >= *closing_until_)) break;
        const bool quiet = in_flight_ == 0 && asked_of_host_.empty() && to_host_.empty() &&
                           !start_ && !closing_until_ && steady_now() - last_event_ > kTick;
        if (!quiet) timeout_ms = static_cast<int>(kTick / std::chrono::milliseconds(1));
        sleeping_ = quiet;
      }
      const int ready = ::epoll_wait(epoll_.get(), events.data(), std::ssize(events), timeout_ms);
      {
        MutexLock lock(mutex_);
        sleeping_ = false;
        const Time now = steady_now();
        if (ready > 0) last_event_ = now;
        for (int i = 0; i < ready; ++i) {
          const epoll_event& event = events[static_cast<size_t>(i)];
          hear(event.data.u64, event.events);
        }
        if (now - last_look_ >= kTick) end_what_is_late(now);
        if (control_.is_open()) send_to_host();
      }
      end_lost_hosts();
      for (auto& [done, result] : std::exchange(answered_, {})) done(std::move(result));
    }
    {
      MutexLock lock(mutex_);
      lost_hosts_.push_back({std::move(control_), std::exchange(host_, 0)});
    }
    end_lost_hosts();
  }

 private:
  Peer* open_peer(Number number) TR_REQUIRES(mutex_) {
    const auto at = sessions_.find(number);
    const bool is_open =
        at != sessions_.end() && !at->second.is_released && at->second.phase == Peer::Phase::kOpen;
    return is_open ? &at->second : nullptr;
  }

  Failure why_not(Number number, const char* call) TR_REQUIRES(mutex_) {
    const auto at = sessions_.find(number);
    if (at != sessions_.end() && !at->second.no_process.empty())
      return {fmt::format("{}: {}", file_.string(), at->second.no_process)};
    return {fmt::format("its process has ended before {}", call)};
  }

  static Result<std::string> result_of(std::string_view answer) {
    Unpacker read(answer);
    if (read.number<uint8_t>() == 1) return std::string(answer.substr(1));
    return read.failure();
  }

  void watch(int operation, int file, uint32_t what, Number number) {
    epoll_event event{.events = what, .data = {.u64 = number}};
    (void)::epoll_ctl(epoll_.get(), operation, file, &event);
  }

  void wake() TR_REQUIRES(mutex_) {
    if (!std::exchange(sleeping_, false)) return;
    const uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof one);
  }

  // Another file under its name would play something else.
  Result<HostProcess> launch(std::string& said) const {
    const Result<Digest> digest = digest_of_file(file_);
    if (!digest) return digest.failure();
    if (digest.value() != digest_)
      return Failure{"the file has changed since it was first asked; a run keeps its library"};
    return launch_host(file_, program_, patience_, said);
  }

  void take_host(HostProcess host) TR_REQUIRES(mutex_) {
    control_ = std::move(host.control);
    host_ = host.pid;
    (void)::fcntl(control_.get(), F_SETFL, O_NONBLOCK);
    watch(EPOLL_CTL_ADD, control_.get(), EPOLLIN, kControl);
  }

  // Without the lock: who begins a call does not wait for their end.
  void end_lost_hosts() {
    for (HostProcess& host : std::exchange(lost_hosts_, {})) end_host(host);
  }

  // Takes as long as a library loads; meanwhile it has no session that could be late.
  void launch_if_wanted() {
    {
      MutexLock lock(mutex_);
      if (control_.is_open() || (to_host_.empty() && !start_) || closing_until_) return;
    }
    std::string said;
    auto launched = launch(said);
    {
      MutexLock lock(mutex_);
      if (start_) {
        start_->set_value(launched ? Result<std::string>(said) : launched.failure());
        start_.reset();
      }
      if (launched) {
        take_host(std::move(launched).value());
        send_to_host();
      } else {
        for (const ToHost& waiting : std::exchange(to_host_, {})) {
          const auto at = sessions_.find(waiting.session);
          if (at == sessions_.end()) continue;
          at->second.no_process = launched.failure().message;
          ended(at, std::nullopt);
        }
      }
    }
    for (auto& [done, result] : std::exchange(answered_, {})) done(std::move(result));
  }

  void ask(Number number, Peer& session, const Packer& request, Time timeout, const char* call,
           Done done) TR_REQUIRES(mutex_) {
    session.done = std::move(done);
    session.call = call;
    session.timeout = timeout;
    session.deadline = steady_now() + timeout;
    session.out = Packer().text(request.bytes()).bytes();
    ++in_flight_;
    send(number, session);
    wake();
  }

  // As much as the socket takes. One that is closed is heard of when it is read.
  void send(Number number, Peer& session) TR_REQUIRES(mutex_) {
    size_t sent = 0;
    while (sent < session.out.size()) {
      const ssize_t now = ::send(session.socket->get(), session.out.data() + sent,
                                 session.out.size() - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (now > 0) {
        sent += static_cast<size_t>(now);
      } else if (errno != EINTR) {
        break;
      }
    }
    session.out.erase(0, sent);
    const bool waits = !session.out.empty();
    if (waits != std::exchange(session.waits_to_send, waits))
      watch(EPOLL_CTL_MOD, session.socket->get(), waits ? EPOLLIN | EPOLLOUT : EPOLLIN, number);
  }

  void send_to_host() TR_REQUIRES(mutex_) {
    while (!to_host_.empty()) {
      const ToHost& next = to_host_.front();
      HostMessage asked{.session = next.session, .request = next.request};
      iovec data{&asked, sizeof asked};
      alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
      msghdr message{};
      message.msg_iov = &data;
      message.msg_iovlen = 1;
      if (next.file.is_open()) {
        message.msg_control = room;
        message.msg_controllen = sizeof room;
        cmsghdr* header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        const int file = next.file.get();
        std::memcpy(CMSG_DATA(header), &file, sizeof file);
      }
      const ssize_t sent = ::sendmsg(control_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
      // A full socket is tried again at the next tick; one that is gone is heard of.
      if (sent != sizeof asked) return;
      asked_of_host_.push_back(steady_now());
      to_host_.pop_front();
    }
  }

  void hear(Number number, uint32_t what) TR_REQUIRES(mutex_) {
    if (number == kWake) {
      uint64_t count = 0;
      (void)!::read(wake_.get(), &count, sizeof count);
    } else if (number == kControl) {
      hear_host();
    } else if (const auto at = sessions_.find(number);
               at != sessions_.end() && at->second.phase == Peer::Phase::kOpen) {
      if ((what & EPOLLOUT) != 0) send(number, at->second);
      if ((what & ~uint32_t{EPOLLOUT}) != 0) hear_session(number, at->second);
    }
  }

  void hear_host() TR_REQUIRES(mutex_) {
    while (control_.is_open()) {
      HostMessage answer{};
      const ssize_t got = ::recv(control_.get(), &answer, sizeof answer, MSG_DONTWAIT);
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
      if (got != sizeof answer || asked_of_host_.empty()) return lose_host();
      asked_of_host_.pop_front();
      host_answered_ = steady_now();
      const auto at = sessions_.find(answer.session);
      if (at == sessions_.end()) continue;
      if (answer.request == HostRequest::kGone) {
        ended(at, answer.value);
      } else if (answer.value < 0) {
        at->second.no_process =
            fmt::format("there is no process for a session: {}", ::strerror(-answer.value));
      }
    }
  }

  void hear_session(Number number, Peer& session) TR_REQUIRES(mutex_) {
    // One chunk a turn, so that a long answer keeps nobody waiting.
    const ssize_t got = ::recv(session.socket->get(), chunk_.data(), chunk_.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (got <= 0) return end(number, session, SocketEnd::kClosed);
    session.in.append(chunk_.data(), static_cast<size_t>(got));
    uint64_t bytes = 0;
    const bool has_size = session.in.size() >= sizeof bytes;
    if (has_size) std::memcpy(&bytes, session.in.data(), sizeof bytes);
    const uint64_t whole = sizeof bytes + bytes;
    // Nobody asked, or it is longer than it says, or than anything that we read.
    if (!session.done || bytes > kMostAnswer || (has_size && session.in.size() > whole) ||
        (has_size && bytes == 0))
      return end(number, session, SocketEnd::kMalformed);
    if (!has_size || session.in.size() < whole) return;
    Result<std::string> result = result_of(std::string_view(session.in).substr(sizeof bytes));
    session.in.clear();
    finish(session, std::move(result));
    if (session.is_released) end(number, session, SocketEnd::kClosed);
  }

  void finish(Peer& session, Result<std::string> result) TR_REQUIRES(mutex_) {
    if (!session.done) return;
    --in_flight_;
    answered_.emplace_back(std::exchange(session.done, nullptr), std::move(result));
  }

  // Its host is told to kill it; how it has ended comes back. Its call stays in flight until then.
  void end(Number number, Peer& session, SocketEnd why) TR_REQUIRES(mutex_) {
    session.phase = Peer::Phase::kEnding;
    session.why = why;
    session.ending_since = steady_now();
    session.socket.reset();  // which nobody watches from here on
    to_host_.push_back({HostRequest::kGone, number});
  }

  void ended(std::map<Number, Peer>::iterator at, std::optional<int32_t> status)
      TR_REQUIRES(mutex_) {
    Peer& session = at->second;
    session.phase = Peer::Phase::kEnded;
    session.socket.reset();
    if (session.done) finish(session, Failure{reason_of(session, status)});
    if (session.is_released) sessions_.erase(at);
  }

  std::string reason_of(const Peer& session, std::optional<int32_t> status) const {
    if (!session.no_process.empty())
      return fmt::format("{}: {}", file_.string(), session.no_process);
    switch (session.why) {
      case SocketEnd::kLate:
        return fmt::format("{}: {} did not return within {:g} s, and its process was killed",
                           file_.filename().string(), session.call, seconds_of(session.timeout));
      case SocketEnd::kMalformed:
        return fmt::format("{}: its process answers {} with what is no answer, and was killed",
                           file_.filename().string(), session.call);
      case SocketEnd::kClosed:
        break;
    }
    return fmt::format("{}: its process {} in {}", file_.filename().string(), how_ended(status),
                       session.call);
  }

  void end_what_is_late(Time now) TR_REQUIRES(mutex_) {
    last_look_ = now;
    // Deaf: its sessions go with it. One that answers has only much to do.
    if (!asked_of_host_.empty() &&
        now - std::max(asked_of_host_.front(), host_answered_) > kHostAnswers)
      lose_host();
    for (auto& [number, session] : sessions_) {
      if (!session.done) continue;
      if (session.phase == Peer::Phase::kOpen && now >= session.deadline)
        end(number, session, SocketEnd::kLate);
      // Nobody waits for a busy host to say how it was.
      if (session.phase == Peer::Phase::kEnding &&
          (session.why != SocketEnd::kClosed || now - session.ending_since > kLastWord))
        finish(session, Failure{reason_of(session, std::nullopt)});
    }
  }

  // All its sessions are dead, or die with it; those that it has not heard of wait for the next.
  void lose_host() TR_REQUIRES(mutex_) {
    lost_hosts_.push_back({std::move(control_), std::exchange(host_, 0)});
    asked_of_host_.clear();
    std::set<Number> waiting;
    std::erase_if(to_host_, [&](const ToHost& request) {
      const auto at = sessions_.find(request.session);
      const bool opens = request.request == HostRequest::kOpen && at != sessions_.end() &&
                         at->second.phase == Peer::Phase::kOpen;
      if (opens) waiting.insert(request.session);
      return !opens;
    });
    for (auto at = sessions_.begin(); at != sessions_.end();) {
      const auto next = std::next(at);
      if (at->second.phase != Peer::Phase::kEnded && !waiting.contains(at->first))
        ended(at, std::nullopt);
      at = next;
    }
  }

  const std::filesystem::path file_;
  const std::string digest_;
  const std::filesystem::path program_;
  const Time patience_;
  const FileDescriptor epoll_, wake_;
  Mutex mutex_;
  FileDescriptor control_ TR_GUARDED_BY(mutex_);
  pid_t host_ TR_GUARDED_BY(mutex_) = 0;
  Number next_ TR_GUARDED_BY(mutex_) = kFirstSession;
  std::map<Number, Peer> sessions_ TR_GUARDED_BY(mutex_);
  std::deque<ToHost> to_host_ TR_GUARDED_BY(mutex_);
  std::deque<Time> asked_of_host_ TR_GUARDED_BY(mutex_);  // answered in this order
  Time host_answered_ TR_GUARDED_BY(mutex_){};
  int64_t in_flight_ TR_GUARDED_BY(mutex_) = 0;
  bool sleeping_ TR_GUARDED_BY(mutex_) = false;
  std::optional<Time> closing_until_ TR_GUARDED_BY(mutex_);
  std::optional<std::promise<Result<std::string>>> start_ TR_GUARDED_BY(mutex_);
  // The loop's thread alone.
  Time last_event_{}, last_look_{};
  std::vector<HostProcess> lost_hosts_;
  std::array<char, 64 << 10> chunk_;
  std::vector<std::pair<Done, Result<std::string>>> answered_;
};

SessionLoop::SessionLoop(std::filesystem::path file, std::string digest,
                         std::filesystem::path program, Time patience)
    : state_(std::make_shared<State>(std::move(file), std::move(digest), std::move(program),
                                     patience)) {
  allow_all_files();
  thread_ = std::thread([state = state_] { state->run(); });
}

SessionLoop::~SessionLoop() {
  state_->close();
  // The last owner may be what a call has left behind.
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

Result<std::string> SessionLoop::start() { return state_->start(); }
SessionLoop::Number SessionLoop::open(bool is_polled) { return state_->open(is_polled); }
Result<std::string> SessionLoop::call(Number session, const Packer& request, Time timeout,
                                      const char* call) {
  return state_->call(session, request, timeout, call);
}
void SessionLoop::begin(Number session, const Packer& request, Time timeout, const char* call,
                        Done done) {
  state_->begin(session, request, timeout, call, std::move(done));
}
bool SessionLoop::is_alive(Number session) const { return state_->is_alive(session); }
void SessionLoop::release(Number session) { state_->release(session, nullptr, Time{0}); }
void SessionLoop::release(Number session, const Packer& goodbye, Time timeout) {
  state_->release(session, &goodbye, timeout);
}

}  // namespace tailrace::sandbox
