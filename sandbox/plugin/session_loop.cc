#include "sandbox/plugin/session_loop.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <deque>
#include <future>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "core/base/clock.h"
#include "core/base/digest.h"
#include "core/base/digest_of.h"
#include "core/base/file_descriptor.h"
#include "sandbox/plugin/host_process.h"
#include "sandbox/plugin/protocol.h"

namespace tailrace::sandbox {
namespace {

using namespace std::chrono_literals;
using Number = uint64_t;
using Answer = std::promise<Result<std::string>>;

// A fork, or a kill and its wait.
constexpr Time kHostAnswers = 10s;
// How exactly deadlines are kept.
constexpr Time kStep = 20ms;
constexpr Time kLongestClose = 2s;
// For a host to say how a session has ended.
constexpr Time kLongestEnd = 2s;
// The host's socket among the files of the loop; sessions have the numbers behind.
constexpr Number kControl = 0;

Result<std::string> result_of(std::string_view answer) {
  Unpacker read(answer);
  if (read.number<uint8_t>() == 1) return std::string(answer.substr(1));
  return read.failure();
}

}  // namespace

struct HostedSession::Peer {
  enum class Phase : uint8_t {
    kOpen,
    kEnding,  // its host was told to end it
    kEnded,
  };

  explicit Peer(Number its_number) : number(its_number) {}

  bool is_open() const { return !is_released && phase == Phase::kOpen; }

  // Its process has ended before the call, or never was.
  Failure why_not(const std::filesystem::path& file, const char* asked) const {
    if (no_process.empty()) return {fmt::format("its process has ended before {}", asked)};
    return {fmt::format("{}: {}", file.string(), no_process)};
  }

  // How its call has ended; `status` as waitpid() says it.
  Failure why_ended(const std::filesystem::path& file, std::optional<int32_t> status) const {
    if (!no_process.empty()) return why_not(file, call);
    const std::string name = file.filename().string();
    switch (why) {
      case SocketEnd::kLate:
        return {fmt::format("{}: {} did not return within {:g} s, and its process was killed", name,
                            call, seconds_of(timeout))};
      case SocketEnd::kMalformed:
        return {fmt::format("{}: its process answers {} with what is no answer, and was killed",
                            name, call)};
      case SocketEnd::kClosed:
        break;
    }
    return {fmt::format("{}: its process {} in {}", name, how_ended(status), call)};
  }

  const Number number;
  FileDescriptor socket = {};               // open until nobody has it any more
  std::atomic<Phase> phase = Phase::kOpen;  // written by the loop's thread

  // The loop's thread's own.
  FileDescriptor theirs;  // until its process has it
  std::string out, in;    // framed; what is not sent or not whole yet
  bool waits_to_send = false;
  bool is_released = false;  // nobody has it any more
  // The call in flight.
  Done done = nullptr;
  const char* call = "";
  Time timeout{}, deadline{};
  // Why it is ending.
  SocketEnd why = SocketEnd::kClosed;
  Time ending_since{};
  std::string no_process;  // why it never had one
};

// An order always finds its loop going on: who gives one has the loop.
struct SessionLoop::State final : ProgramLoop {
  using Session = HostedSession::Peer;
  using Phase = Session::Phase;
  using Done = HostedSession::Done;
  using SessionPtr = std::shared_ptr<Session>;

  struct ToHost {
    HostRequest request;
    SessionPtr session;
  };

  struct Asked {
    std::string message;  // framed; what is not sent yet
    Time timeout{}, deadline{};
    const char* call = "";
  };

  State(std::filesystem::path file, std::string digest, std::filesystem::path program,
        Time patience)
      : ProgramLoop(file.string(), nullptr),
        file_(std::move(file)),
        digest_(std::move(digest)),
        program_(std::move(program)),
        patience_(patience) {
    ::pthread_sigmask(SIG_BLOCK, nullptr, &blocked_);
  }

  // --- Any thread.

  static Asked asked(const Packer& request, Time timeout, const char* call) {
    return {.message = Packer().text(request.bytes()).bytes(),
            .timeout = timeout,
            .deadline = steady_now() + timeout,
            .call = call};
  }

  // By the loop's thread: a host dies with the thread that has started it.
  Result<std::string> post_start() {
    auto said = std::make_shared<Answer>();
    post([this, said](bool) { start_ = said; });
    return said->get_future().get();
  }

  SessionPtr post_open(bool is_polled) {
    auto session = std::make_shared<Session>(next_++);
    auto sockets = socket_pair();
    if (!sockets) {
      session->no_process = sockets.failure().message;
      session->phase = Phase::kEnded;
      return session;
    }
    session->socket = std::move(sockets.value()[0]);
    session->theirs = std::move(sockets.value()[1]);
    post([this, session, is_polled](bool) { open(session, is_polled); });
    return session;
  }

  // Sent from here, and the loop need not wake up before the answer comes: that would cost half as
  // much again as a call.
  void post_begin(const SessionPtr& session, Asked what, Done done) {
    const std::string message = std::exchange(what.message, {});
    post(
        [this, session, what = std::move(what), done = std::move(done)](bool) mutable {
          if (session->is_open())
            ask(*session, std::move(what), std::move(done));
          else
            done(session->why_not(file_, what.call));
        },
        /*wakes=*/false);
    if (is_quiet_) wake();
    const size_t sent = send_some(session->socket.get(), message).value_or(message.size());
    if (sent == message.size()) return;
    post([this, session, rest = message.substr(sent)](bool) {
      session->out += rest;
      if (session->done && session->phase == Phase::kOpen) send(*session);
    });
  }

  Result<std::string> call(const SessionPtr& session, const Packer& request, Time timeout,
                           const char* call) {
    std::optional<SocketEnd> end_of;
    if (session->phase == Phase::kOpen) {
      const Time begin = steady_now();
      std::string answer;
      end_of = send_message(session->socket.get(), request.bytes(), timeout);
      if (!end_of)
        end_of = receive_message(session->socket.get(), kMostAnswer,
                                 std::max(Time{0}, timeout - (steady_now() - begin)), answer);
      if (!end_of && answer.empty()) end_of = SocketEnd::kMalformed;
      if (!end_of) return result_of(answer);
    }
    // How it has ended its host knows. Shared: it is answered once, also when nobody waits.
    auto promise = std::make_shared<Answer>();
    post([this, session, timeout, call, end_of, promise](bool) {
      session->call = call;
      session->timeout = timeout;
      if (!end_of) return promise->set_value(session->why_not(file_, call));
      if (session->phase == Phase::kEnded)
        return promise->set_value(session->why_ended(file_, std::nullopt));
      await(*session, [promise](Result<std::string> said) { promise->set_value(std::move(said)); });
      end(session, *end_of);
    });
    auto failure = promise->get_future();
    if (failure.wait_for(2 * kHostAnswers) == std::future_status::ready) return failure.get();
    return Failure{fmt::format("its process ended in {}, and nobody says how", call)};
  }

  void post_release(const SessionPtr& session, std::optional<Asked> goodbye) {
    post([this, session, goodbye = std::move(goodbye)](bool) mutable {
      release(session, std::move(goodbye));
    });
  }

 private:
  // --- The loop's thread.

  Time turn(Time now) override {
    if (!is_ending_) launch_if_wanted();
    send_to_host();
    if (now - last_look_ >= kStep) end_what_is_late(now);
    const bool is_busy =
        in_flight_ > 0 || !asked_of_host_.empty() || !to_host_.empty() || now - last_heard_ < kStep;
    // One tick more, for the calls that were begun before it said that it is quiet.
    const bool was_quiet = is_quiet_.exchange(!is_busy);
    return is_busy || !was_quiet ? last_look_ + kStep : Time::max();
  }

  void end() override {
    is_ending_ = true;
    const Time until = steady_now() + kLongestClose;
    while (!sessions_.empty() && steady_now() < until) round();
    end_host(host_);
  }

  void hear_file(Number number, uint32_t what) override {
    last_heard_ = steady_now();
    const auto at = sessions_.find(number);
    const SessionPtr session = at == sessions_.end() ? nullptr : at->second;
    // The order of a call may still wait when its answer, or the end of its process, is heard.
    if (session == nullptr || !session->done) (void)take_orders();
    if (number == kControl) return hear_host();
    if (session == nullptr || session->phase != Phase::kOpen) return;
    if ((what & EPOLLOUT) != 0) send(*session);
    if ((what & ~uint32_t{EPOLLOUT}) != 0) hear_session(session);
  }

  // --- Its host.

  // Another file under its name would play something else.
  Result<HostProcess> launch(std::string& said) const {
    const Result<Digest> digest = digest_of_file(file_);
    if (!digest) return digest.failure();
    if (digest.value() != digest_)
      return Failure{"the file has changed since it was first asked; a run keeps its library"};
    return launch_host(file_, program_, patience_, blocked_, said);
  }

  // Takes as long as a library loads; meanwhile it has no session that could be late.
  void launch_if_wanted() {
    if (host_.control.is_open() || (to_host_.empty() && start_ == nullptr)) return;
    std::string said;
    auto launched = launch(said);
    if (const auto start = std::exchange(start_, nullptr); start != nullptr)
      start->set_value(launched ? Result<std::string>(said) : launched.failure());
    if (launched) {
      host_ = std::move(launched).value();
      (void)::fcntl(host_.control.get(), F_SETFL, O_NONBLOCK);
      watch_file(EPOLL_CTL_ADD, host_.control.get(), EPOLLIN, kControl);
      return;
    }
    for (const ToHost& waiting : std::exchange(to_host_, {})) {
      waiting.session->no_process = launched.failure().message;
      ended(waiting.session, std::nullopt);
    }
  }

  // What its socket does not take is sent at the next tick.
  void send_to_host() {
    while (host_.control.is_open() && !to_host_.empty()) {
      const auto& [request, session] = to_host_.front();
      const bool opens = request == HostRequest::kOpen;
      if (!ask_host(host_, {.session = session->number, .request = request},
                    opens ? session->theirs.get() : -1))
        return;
      if (opens) session->theirs.reset();
      asked_of_host_.push_back(steady_now());
      to_host_.pop_front();
    }
  }

  void hear_host() {
    while (host_.control.is_open()) {
      HostMessage answer{};
      const ssize_t got = ::recv(host_.control.get(), &answer, sizeof answer, MSG_DONTWAIT);
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
      if (got != sizeof answer || asked_of_host_.empty()) return lose_host();
      asked_of_host_.pop_front();
      host_answered_ = steady_now();
      const auto at = sessions_.find(answer.session);
      if (at == sessions_.end()) continue;
      if (answer.request == HostRequest::kGone)
        ended(SessionPtr(at->second), answer.value);
      else if (answer.value < 0)
        at->second->no_process =
            fmt::format("there is no process for a session: {}", ::strerror(-answer.value));
    }
  }

  // All its sessions are dead, or die with it; those that it has not heard of wait for the next.
  void lose_host() {
    end_host(host_);
    asked_of_host_.clear();
    const auto waits = [](const Session& session) {
      return session.phase == Phase::kOpen && session.theirs.is_open();
    };
    std::erase_if(to_host_, [&](const ToHost& request) { return !waits(*request.session); });
    for (auto at = sessions_.begin(); at != sessions_.end();) {
      const SessionPtr session = (at++)->second;
      if (session->phase != Phase::kEnded && !waits(*session)) ended(session, std::nullopt);
    }
  }

  // --- Its sessions.

  void open(const SessionPtr& session, bool is_polled) {
    sessions_.emplace(session->number, session);
    if (is_polled) watch_file(EPOLL_CTL_ADD, session->socket.get(), EPOLLIN, session->number);
    to_host_.push_back({HostRequest::kOpen, session});
  }

  void await(Session& session, Done done) {
    session.done = std::move(done);
    ++in_flight_;
  }

  void ask(Session& session, Asked what, Done done) {
    await(session, std::move(done));
    session.call = what.call;
    session.timeout = what.timeout;
    session.deadline = what.deadline;
    session.out = std::move(what.message);
    send(session);
  }

  // As much as the socket takes. One that is closed is heard of when it is read.
  void send(Session& session) {
    session.out.erase(0, send_some(session.socket.get(), session.out).value_or(0));
    const bool waits = !session.out.empty();
    if (waits != std::exchange(session.waits_to_send, waits))
      watch_file(EPOLL_CTL_MOD, session.socket.get(), waits ? EPOLLIN | EPOLLOUT : EPOLLIN,
                 session.number);
  }

  void hear_session(const SessionPtr& session) {
    // One chunk a turn, so that a long answer keeps nobody waiting.
    char chunk[1 << 16];
    const ssize_t got = ::recv(session->socket.get(), chunk, sizeof chunk, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (got <= 0) return end(session, SocketEnd::kClosed);
    std::string& in = session->in;
    in.append(chunk, static_cast<size_t>(got));
    uint64_t bytes = 0;
    const bool has_size = in.size() >= sizeof bytes;
    if (has_size) std::memcpy(&bytes, in.data(), sizeof bytes);
    const uint64_t whole = sizeof bytes + bytes;
    // Nobody asked, or it is longer than it says, or than anything that we read.
    if (!session->done || bytes > kMostAnswer || (has_size && (bytes == 0 || in.size() > whole)))
      return end(session, SocketEnd::kMalformed);
    if (!has_size || in.size() < whole) return;
    Result<std::string> result = result_of(std::string_view(in).substr(sizeof bytes));
    in.clear();
    finish(*session, std::move(result));
    if (session->is_released) end(session, SocketEnd::kClosed);
  }

  void finish(Session& session, Result<std::string> result) {
    if (!session.done) return;
    --in_flight_;
    std::exchange(session.done, nullptr)(std::move(result));
  }

  void release(const SessionPtr& session, std::optional<Asked> goodbye) {
    const bool was_in_call = session->done != nullptr;
    session->is_released = true;
    finish(*session, Failure{"its process was ended in its call"});
    if (session->phase == Phase::kEnded)
      sessions_.erase(session->number);
    else if (session->phase == Phase::kOpen && goodbye && !was_in_call)
      ask(*session, std::move(*goodbye), [](const Result<std::string>&) {});
    else if (session->phase == Phase::kOpen)
      end(session, SocketEnd::kClosed);
  }

  // Its host is told to kill it; how it has ended comes back. Its call stays in flight until then.
  void end(const SessionPtr& session, SocketEnd why) {
    watch_file(EPOLL_CTL_DEL, session->socket.get(), 0, session->number);
    session->phase = Phase::kEnding;
    session->why = why;
    session->ending_since = steady_now();
    to_host_.push_back({HostRequest::kGone, session});
  }

  void ended(const SessionPtr& session, std::optional<int32_t> status) {
    watch_file(EPOLL_CTL_DEL, session->socket.get(), 0, session->number);
    session->phase = Phase::kEnded;
    session->theirs.reset();
    finish(*session, session->why_ended(file_, status));
    if (session->is_released) sessions_.erase(session->number);
  }

  void end_what_is_late(Time now) {
    last_look_ = now;
    // Deaf: its sessions go with it. One that answers has only much to do.
    if (!asked_of_host_.empty() &&
        now - std::max(asked_of_host_.front(), host_answered_) > kHostAnswers)
      lose_host();
    for (const auto& [number, session] : sessions_) {
      if (!session->done) continue;
      if (session->phase == Phase::kOpen && now >= session->deadline)
        end(session, SocketEnd::kLate);
      // Nobody waits for a busy host to say how it was.
      if (session->phase == Phase::kEnding &&
          (session->why != SocketEnd::kClosed || now - session->ending_since > kLongestEnd))
        finish(*session, session->why_ended(file_, std::nullopt));
    }
  }

  const std::filesystem::path file_;
  const std::string digest_;
  const std::filesystem::path program_;
  const Time patience_;
  sigset_t blocked_{};  // signals, where this loop was made: its host has them so
  std::atomic<Number> next_ = kControl + 1;
  std::atomic<bool> is_quiet_ = false;  // nothing is in flight, and no tick is near
  // The thread's own.
  HostProcess host_;
  std::shared_ptr<Answer> start_;  // somebody waits for a host
  std::map<Number, SessionPtr> sessions_;
  std::deque<ToHost> to_host_;
  std::deque<Time> asked_of_host_;  // answered in this order
  Time host_answered_{}, last_look_{}, last_heard_{};
  int64_t in_flight_ = 0;
  bool is_ending_ = false;
};

SessionLoop::SessionLoop(std::filesystem::path file, std::string digest,
                         std::filesystem::path program, Time patience)
    : state_(std::make_shared<State>(std::move(file), std::move(digest), std::move(program),
                                     patience)),
      thread_(state_) {
  allow_all_files();
}

SessionLoop::~SessionLoop() = default;

Result<std::string> SessionLoop::start() { return state_->post_start(); }

HostedSession::HostedSession(std::shared_ptr<SessionLoop> loop, Calls calls)
    : loop_(std::move(loop)), peer_(loop_->state_->post_open(calls == Calls::kBegun)) {}

HostedSession::~HostedSession() {
  if (!released_.exchange(true)) loop_->state_->post_release(peer_, std::nullopt);
}

void HostedSession::begin(const Packer& request, Time timeout, const char* call, Done done) {
  loop_->state_->post_begin(peer_, SessionLoop::State::asked(request, timeout, call),
                            std::move(done));
}
Result<std::string> HostedSession::call(const Packer& request, Time timeout, const char* call) {
  return loop_->state_->call(peer_, request, timeout, call);
}
bool HostedSession::is_alive() const { return peer_->phase == Peer::Phase::kOpen; }
void HostedSession::close(const Packer& goodbye, Time timeout) {
  if (!released_.exchange(true))
    loop_->state_->post_release(peer_, SessionLoop::State::asked(goodbye, timeout, "close()"));
}

}  // namespace tailrace::sandbox
