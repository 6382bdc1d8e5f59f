#include "core/wire/worker_client.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <thread>

#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/unique_number.h"
#include "core/wire/pieces.h"
#include "core/wire/socket.h"
#include "core/wire/wakeup.h"
#include "kernels/base/mutex.h"

namespace tailrace::wire {

struct WorkerClient::Impl {
  Impl(Hello hello_in, const Endpoint& endpoint, LinkOptions options_in,
       std::function<Heartbeat()> says_in)
      : hello(std::move(hello_in)),
        options(options_in),
        says(std::move(says_in)),
        socket(Socket::Kind::kDealer),
        last_heard(steady_now()) {
    // By it the scheduler tells a further session of this process from another process of its name.
    if (hello.incarnation == 0) hello.incarnation = unique_number();
    if (endpoint.keys) socket.watch();
    socket.connect(endpoint);
    thread = std::jthread([this] { run(); });
  }

  // ---- any thread
  int64_t send(const Message& message) {
    auto frames = encode_frames(message);
    int64_t count = 0;
    {
      MutexLock lock(mu);
      for (auto& frame : frames)
        outbox.push_back(std::make_shared<const std::vector<std::byte>>(std::move(frame)));
      count = num_sent += std::ssize(frames);
    }
    wakeup.ring();
    return count;
  }

  // ---- the I/O thread
  void run() {
    while (true) {
      const Time time = steady_now();
      // First what came, then what goes: an acknowledgement that waits shortens what is sent again.
      drain(time);
      while (socket.contact()) {
      }
      socket.revive();
      std::optional<Time> close_at;
      {
        MutexLock lock(mu);
        num_taken += static_cast<int64_t>(outbox.size());
        for (auto& body : outbox) take_for_sending(std::move(body));
        outbox.clear();
        close_at = closing_since;
        total = finished;
        if (link) total += link->counters();
        acknowledged = num_acknowledged();
      }
      const bool for_room = link ? !transmit(time) : !say_hello(time);
      if (close_at && (all_sent() || time >= *close_at + options.linger)) break;
      socket.wait(next_wakeup(close_at) - time, for_room, wakeup.descriptor());
      (void)wakeup.silence();
    }
    // Only when all has arrived: a goodbye ends the session, and with it what is still on its way.
    if (link && link->idle() && orderly()) {
      const Header goodbye{link->session(), 0, 0, Signal::kGoodbye};
      socket.send("", heartbeat, goodbye);
    }
  }

  void drain(Time time) {
    while (auto received = socket.receive()) {
      const auto header = decode_header(received->frame);
      if (!header) {
        ++finished.malformed;
        continue;
      }
      // Any frame of ours counts, of whatever session: the scheduler lives.
      last_heard.store(time);
      if (header->signal == Signal::kSayHello) {
        if (link && link->session() == header->session) end_session();
      } else if (header->signal == Signal::kWelcome) {
        // One that comes again acknowledges a Hello, not the session's messages.
        if (!link && header->ack == attempt) on_answer(*header, received->frame, time);
      } else if (link && link->session() == header->session) {
        on_frame(*header, received->frame, time);
      }
    }
  }

  void on_frame(const Header& header, std::span<const std::byte> frame, Time time) {
    if (link->on_frame(header, time, std::ssize(frame)) != Link::Verdict::kDeliver) return;
    // This process is the owner, and the session ends with it: no need to wait until receive() is
    // called, or the message is whole.
    auto taken = assembly.take(frame);
    if (taken && (!*taken || is_from_worker(taken->value()))) return link->skip(header.sequence);
    if (taken) deliver(std::move(*taken).value());
    link->take_over(header.sequence);
  }

  void on_answer(const Header& header, std::span<const std::byte> frame, Time time) {
    auto decoded = decode(frame);
    if (!decoded) return;
    if (std::holds_alternative<Welcome>(decoded.value().message)) {
      link.emplace(header.session, options, time);
      assembly = {};
      for (auto& body : waiting) link->push(std::move(body));
      waiting.clear();
      MutexLock lock(mu);
      inbox.clear();  // of the session before: void
    } else if (std::holds_alternative<Shutdown>(decoded.value().message) && !refused) {
      refused = true;
      displaced.store(true);  // another process has this worker's name
    } else {
      return;
    }
    deliver(std::move(decoded.value().message));
  }

  void end_session() {
    waiting = link->release();
    finished += link->counters();
    finished.sent -= static_cast<int64_t>(waiting.size());  // they count again in the next session
    link.reset();
    // The number of the Hello: a Welcome that answers an earlier one opens nothing.
    ++attempt;
    hello_at = Time::min();
  }

  void take_for_sending(Link::Body body) {
    if (link) {
      link->push(std::move(body));
    } else if (!refused) {
      waiting.push_back(std::move(body));
    }
  }

  // False: there is something to send and no room for it.
  bool transmit(Time time) {
    for (const auto& transmission : link->due(time)) {
      if (!transmission.body && says) heartbeat = encode({}, says());
      const auto& frame = transmission.body ? *transmission.body : heartbeat;
      if (!socket.send("", frame, transmission.header)) {
        link->not_sent(transmission.header);
        // A heartbeat is not worth waking for: the next one says the same.
        return transmission.header.sequence == 0;
      }
    }
    return true;
  }

  bool say_hello(Time time) {
    if (refused || time < hello_at) return true;
    if (!socket.send("", encode({}, hello), Header{0, attempt, 0, Signal::kNone})) return false;
    hello_at = time + options.resend;
    return true;
  }

  bool all_sent() const { return refused || (link ? link->idle() : waiting.empty()); }

  Time next_wakeup(std::optional<Time> close_at) const {
    const Time idle = steady_now() + options.heartbeat;
    Time at = link ? link->next_due() : std::max(hello_at, Time(0));
    if (link && at == Time::min()) at = blocked_retry();
    // The Hello that is due was refused: nobody is there, and the poll for room may return at once.
    if (!link && at <= steady_now()) at = blocked_retry();
    if (!link && refused) at = idle;
    if (close_at) at = std::min(at, *close_at + options.linger);
    return std::min(at, idle);
  }
  // The socket had no room: it is polled for that, and asked again after a while in any case.
  Time blocked_retry() const { return steady_now() + std::chrono::milliseconds(50); }

  int64_t num_acknowledged() const {
    return num_taken - (link ? link->num_unacknowledged() : std::ssize(waiting));
  }

  void deliver(Message message) {
    {
      MutexLock lock(mu);
      // With the count of this moment: receive() may hand the message out much later, and a worker
      // that hears Welcome asks what had arrived before it.
      inbox.push_back({std::move(message), num_acknowledged()});
    }
    arrived.notify_one();
  }

  Hello hello;
  const LinkOptions options;
  const std::function<Heartbeat()> says;
  Wakeup wakeup;

  // The I/O thread's.
  Socket socket;
  std::optional<Link> link;        // none: no session, Hello is being said
  Assembly assembly;               // of the session
  std::deque<Link::Body> waiting;  // for the next session
  uint64_t attempt = 1;            // sessions asked for
  Time hello_at = Time::min();
  bool refused = false;
  std::atomic<bool> displaced = false;  // `refused`, for the owner
  int64_t num_taken = 0;                // from the outbox
  std::vector<std::byte> heartbeat = encode({}, Heartbeat{});

  std::atomic<Time> last_heard;

  Mutex mu;
  std::condition_variable arrived;
  struct Arrived {
    Message message;
    int64_t acknowledged = 0;  // when it came
  };
  std::deque<Arrived> inbox TR_GUARDED_BY(mu);
  std::deque<Link::Body> outbox TR_GUARDED_BY(mu);
  int64_t num_sent TR_GUARDED_BY(mu) = 0;
  bool orderly() {
    MutexLock lock(mu);
    return !unwinding;
  }

  int64_t acknowledged TR_GUARDED_BY(mu) = 0;
  std::optional<Time> closing_since TR_GUARDED_BY(mu);
  // The owner ends by an exception: that is a crash, and must not look like leave-taking.
  bool unwinding TR_GUARDED_BY(mu) = false;
  const int exceptions = std::uncaught_exceptions();  // of the owner's thread, when it began
  LinkCounters finished;                 // of ended sessions; written by the I/O thread
  LinkCounters total TR_GUARDED_BY(mu);  // a copy for counters()

  int64_t told_acknowledged = 0;  // the receiving thread's

  std::jthread thread;  // last: starts after, and is joined before, all that it uses
};

WorkerClient::WorkerClient(Hello hello, const Endpoint& endpoint, LinkOptions options,
                           std::function<Heartbeat()> says)
    : impl_(std::make_unique<Impl>(std::move(hello), endpoint, options, std::move(says))) {}

WorkerClient::~WorkerClient() {
  {
    MutexLock lock(impl_->mu);
    impl_->closing_since = steady_now();
    impl_->unwinding = std::uncaught_exceptions() > impl_->exceptions;
  }
  impl_->wakeup.ring();
  impl_->thread.join();
}

int64_t WorkerClient::send(const Message& message) { return impl_->send(message); }

int64_t WorkerClient::num_acknowledged() const { return impl_->told_acknowledged; }

std::optional<Message> WorkerClient::receive(std::chrono::milliseconds timeout) {
  MutexLock lock(impl_->mu);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (impl_->inbox.empty()) {
    if (impl_->arrived.wait_until(lock.native(), deadline) == std::cv_status::timeout) break;
  }
  if (impl_->inbox.empty()) {
    impl_->told_acknowledged = impl_->acknowledged;
    return std::nullopt;
  }
  Impl::Arrived next = std::move(impl_->inbox.front());
  impl_->inbox.pop_front();
  impl_->told_acknowledged = next.acknowledged;
  return std::move(next.message);
}

std::chrono::milliseconds WorkerClient::silence() const {
  return std::chrono::duration_cast<std::chrono::milliseconds>(steady_now() -
                                                               impl_->last_heard.load());
}

bool WorkerClient::displaced() const { return impl_->displaced.load(); }

LinkCounters WorkerClient::counters() const {
  MutexLock lock(impl_->mu);
  return impl_->total;
}

}  // namespace tailrace::wire
