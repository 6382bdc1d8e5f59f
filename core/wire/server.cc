#include "core/wire/server.h"

#include <bit>
#include <deque>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "core/base/clock.h"
#include "core/base/unique_number.h"
#include "core/wire/admission.h"
#include "core/wire/pieces.h"
#include "core/wire/socket.h"
#include "core/wire/wakeup.h"

namespace tailrace::wire {
namespace {

constexpr std::chrono::milliseconds kBlockedRetry{50};
// Then the service gets its turn: what it has not looked at is in memory.
constexpr int kMaxFramesAtOnce = 4096;
constexpr int64_t kMaxBytesAtOnce = int64_t{64} << 20;
// Bytes that wait for a worker to acknowledge them; more than that is one that takes nothing.
constexpr int64_t kMaxBacklogBytes = int64_t{256} << 20;
constexpr std::chrono::seconds kFileCheck{1};
// From giving the old listener up until the path is bound anew.
constexpr std::chrono::milliseconds kRebind{100};

}  // namespace

struct WorkerServer::Impl {
  struct Peer {
    std::string routing;  // of its latest frame
    Link link;
    Assembly assembly = {};
    Time blocked_until = Time::min();
    uint64_t progress = 0;                   // Heartbeat::progress, its latest
    std::string held = {};                   // Heartbeat::held, its latest
    std::optional<uint64_t> suspected = {};  // of being lost, since num_rounds was so
    // Incoming::sequence, the link's sequence.
    std::deque<std::pair<uint64_t, uint64_t>> unacknowledged = {};
  };
  using Events = std::vector<ServerEvent>;

  explicit Impl(LinkOptions options_in)
      : options(options_in), socket(Socket::Kind::kRouter), admission(options.timeout) {}

  // Whether nothing was left to take.
  bool drain(Events& out) {
    int64_t bytes = 0;
    for (int i = 0; i < kMaxFramesAtOnce && bytes < kMaxBytesAtOnce; ++i) {
      auto received = socket.receive();
      if (!received) {
        this_round.clear();
        return true;
      }
      count_rounds(received->peer);
      bytes += std::ssize(received->frame);
      const auto header = decode_header(received->frame);
      if (!header) {
        refuse_frame(fmt::format("{} bytes that are no frame of ours", received->frame.size()));
      } else if (header->session == 0) {
        on_hello(*header, received->peer, received->frame, out);
      } else {
        on_frame(*header, received->peer, received->frame, out);
      }
    }
    return false;
  }

  // ZeroMQ gives of each connection in turn: when one comes again, all that had something to say
  // were heard.
  void count_rounds(std::string_view routing) {
    if (this_round.emplace(routing).second) return;
    ++num_rounds;
    this_round.clear();
    this_round.emplace(routing);
  }

  void on_hello(const Header& header, std::string_view routing, std::span<const std::byte> frame,
                Events& out) {
    auto decoded = decode(frame);
    const Hello* hello = decoded ? std::get_if<Hello>(&decoded.value().message) : nullptr;
    if (hello == nullptr) {
      refuse_frame(decoded ? describe(decoded.value().message) + " outside of a session"
                           : decoded.failure().message);
      return;
    }
    auto peer = peers.find(hello->worker);
    switch (admission.ask(hello->worker, hello->incarnation, header.sequence, steady_now())) {
      case Admission::Answer::kBegin:
        if (peer != peers.end()) close_session(peer);
        peer = open_session(*hello);
        out.push_back(WorkerUp{*hello, peer->second.link.session()});
        break;
      case Admission::Answer::kAgain:
        break;
      case Admission::Answer::kReplaced: {
        const Shutdown reason{fmt::format("another process has the name {}", hello->worker)};
        socket.send(routing, encode({}, reason), Header{0, 0, header.sequence, Signal::kWelcome});
        return;
      }
      case Admission::Answer::kRefused:
        refuse_frame(fmt::format("{}: too many sessions, or too many workers", hello->worker));
        return;
      case Admission::Answer::kOld:
        return;
    }
    peer->second.routing = routing;
    const uint64_t session = peer->second.link.session();
    // Not through the link: it is answered as often as Hello is heard, and a lost one is asked for
    // again.
    socket.send(routing, encode({}, Welcome{session}),
                Header{session, 0, header.sequence, Signal::kWelcome});
  }

  std::map<std::string, Peer>::iterator open_session(const Hello& hello) {
    // Never 0, which is a Hello's. No peer can guess its neighbour's, nor meet one of an earlier
    // scheduler.
    const uint64_t session = unique_number();
    const auto [peer, added] =
        peers.insert({hello.worker, {"", Link(session, options, steady_now())}});
    TR_CHECK(added);
    workers[session] = hello.worker;
    return peer;
  }

  void on_frame(const Header& header, std::string_view routing, std::span<const std::byte> frame,
                Events& out) {
    const auto worker = workers.find(header.session);
    if (worker == workers.end()) {
      socket.send(routing, heartbeat, Header{header.session, 0, 0, Signal::kSayHello});
      return;
    }
    Peer& peer = peers.at(worker->second);
    if (peer.routing != routing) {  // it connected anew: what was in flight may be lost
      peer.routing = routing;
      peer.blocked_until = Time::min();
      peer.link.resend_all();
    }
    const auto verdict = peer.link.on_frame(header, steady_now(), std::ssize(frame));
    if (header.signal == Signal::kGoodbye) {
      // A copy: drop() erases the entry that holds the name.
      drop(std::string(worker->second), "said goodbye", /*silent=*/false, out);
      return;
    }
    if (verdict == Link::Verdict::kHeartbeat) return on_heartbeat(peer, frame);
    if (verdict != Link::Verdict::kDeliver) return;
    auto taken = peer.assembly.take(frame);
    if (!taken) return;
    Result<Message>& message = *taken;
    if (!message || !is_from_worker(message.value())) {
      last_malformed = fmt::format("{}: {}", worker->second,
                                   message ? describe(message.value()) : message.failure().message);
      peer.link.skip(header.sequence, peer.assembly.num_frames());
      return;
    }
    // Numbered through all sessions: what is acknowledged late must not count for the session after
    // it.
    peer.unacknowledged.emplace_back(++last_incoming, header.sequence);
    out.push_back(Incoming{worker->second, last_incoming, std::move(message).value()});
  }

  void on_heartbeat(Peer& peer, std::span<const std::byte> frame) {
    const auto decoded = decode(frame);
    if (!decoded) return;
    const auto* heartbeat_in = std::get_if<Heartbeat>(&decoded.value().message);
    if (heartbeat_in == nullptr) return;
    peer.progress = heartbeat_in->progress;
    peer.held = heartbeat_in->held;
  }

  void close_session(std::map<std::string, Peer>::iterator peer) {
    ended += peer->second.link.counters();
    workers.erase(peer->second.link.session());
    peers.erase(peer);
  }

  void drop(const std::string& worker, std::string reason, bool silent, Events& out) {
    const auto peer = peers.find(worker);
    if (peer == peers.end()) return;
    out.push_back(WorkerDown{worker, peer->second.link.session(), std::move(reason), silent});
    close_session(peer);
    admission.on_end(worker);
  }

  // Empty: it is well.
  std::string fault_of(const Peer& peer) const {
    if (peer.link.lost(steady_now()))
      return fmt::format("silent for more than {} ms", options.timeout.count());
    if (peer.link.num_unacknowledged() > 1 && peer.link.unacknowledged_bytes() > kMaxBacklogBytes)
      return fmt::format("it takes nothing, and {} messages wait for it",
                         peer.link.num_unacknowledged());
    return {};
  }

  // Drops silent workers, and those heard that take nothing: their backlog would grow without end.
  // But nobody of whom a frame may wait: all was taken, or a whole round since it was suspected.
  // Without the latter one peer that floods would keep the others from being missed.
  void drop_lost(bool all_taken, Events& out) {
    std::vector<std::pair<std::string, std::string>> lost;
    for (auto& [worker, peer] : peers) {
      std::string fault = fault_of(peer);
      if (fault.empty()) {
        peer.suspected.reset();
        continue;
      }
      if (!peer.suspected) peer.suspected = num_rounds;
      // The round of then had begun before.
      if (all_taken || num_rounds >= *peer.suspected + 2)
        lost.emplace_back(worker, std::move(fault));
    }
    for (auto& [worker, reason] : lost) drop(worker, std::move(reason), /*silent=*/true, out);
  }

  void look_after_file(Events& out) {
    if (steady_now() < next_file_check) return;
    std::string trouble;
    const Socket::File file = socket.look_after_file(trouble);
    next_file_check =
        steady_now() +
        (file == Socket::File::kGone && trouble.empty() ? Time(kRebind) : Time(kFileCheck));
    if (file == Socket::File::kBack)
      out.push_back(
          Notice{fmt::format("the socket {} was taken away; it is there again", endpoint)});
    if (trouble.empty()) {
      num_troubles = 0;
      return;
    }
    // At each doubling: it is tried again every second.
    if (std::has_single_bit(++num_troubles))
      out.push_back(
          Notice{fmt::format("the socket {} was taken away, and cannot be put back (tried "
                             "{} times): {}. No worker can connect until then",
                             endpoint, num_troubles, trouble)});
  }

  void transmit(Peer& peer) {
    const Time time = steady_now();
    if (time < peer.blocked_until) return;
    for (const auto& transmission : peer.link.due(time)) {
      const auto& frame = transmission.body ? *transmission.body : heartbeat;
      if (!socket.send(peer.routing, frame, transmission.header)) {
        peer.link.not_sent(transmission.header);
        peer.blocked_until = time + kBlockedRetry;
        return;
      }
    }
  }

  // One turn: what came, who fell silent, what is due.
  void turn(Events& out) {
    // Before drop_lost(): after a long absence of ours the frames wait, maybe more of them than are
    // taken at once, and nobody was silent.
    const bool all_taken = drain(out);
    drop_lost(all_taken, out);
    look_after_file(out);
    for (auto& [worker, peer] : peers) transmit(peer);
  }

  void wait_until(Time deadline) {
    for (const auto& [worker, peer] : peers) {
      deadline = std::min(deadline, std::max(peer.link.next_due(), peer.blocked_until));
    }
    socket.wait(deadline - steady_now(), /*for_room=*/false, wakeup.descriptor());
    if (wakeup.silence()) woken = true;
  }

  void refuse_frame(std::string why) {
    ++ended.malformed;
    last_malformed = std::move(why);
  }

  const LinkOptions options;
  Wakeup wakeup;
  bool woken = false;  // since receive() began
  Socket socket;
  std::string endpoint;
  Time next_file_check{};
  uint64_t num_troubles = 0;  // in a row, of putting the socket's file back
  Admission admission;
  std::map<std::string, Peer> peers;        // by worker: those with a session
  std::map<uint64_t, std::string> workers;  // by session
  uint64_t num_rounds = 0;                  // of all connections that had something to say
  std::set<std::string> this_round;         // the connections heard in it
  uint64_t last_incoming = 0;
  Events held_back;  // arrived during flush()
  LinkCounters ended;
  std::string last_malformed;
  const std::vector<std::byte> heartbeat = encode({}, Heartbeat{});
};

WorkerServer::WorkerServer(const std::string& endpoint, LinkOptions options)
    : impl_(std::make_unique<Impl>(options)) {
  impl_->socket.bind(endpoint);
  impl_->endpoint = endpoint;
}

WorkerServer::~WorkerServer() = default;

std::vector<ServerEvent> WorkerServer::receive(std::chrono::milliseconds timeout) {
  const Time deadline = steady_now() + timeout;
  auto events = std::move(impl_->held_back);
  impl_->held_back.clear();
  impl_->turn(events);
  // A ring of before this call counts for it: what it tells of came after the last receive().
  impl_->woken = impl_->wakeup.silence();
  while (events.empty() && !impl_->woken && steady_now() < deadline) {
    impl_->wait_until(deadline);
    impl_->turn(events);
  }
  return events;
}

void WorkerServer::wake() { impl_->wakeup.ring(); }

void WorkerServer::acknowledge(const std::string& worker, uint64_t sequence) {
  const auto peer = impl_->peers.find(worker);
  if (peer == impl_->peers.end()) return;
  auto& waiting = peer->second.unacknowledged;
  while (!waiting.empty() && waiting.front().first <= sequence) {
    peer->second.link.take_over(waiting.front().second);
    waiting.pop_front();
  }
}

bool WorkerServer::send(const std::string& worker, uint64_t session, const Message& message) {
  const auto peer = impl_->peers.find(worker);
  if (peer == impl_->peers.end() || peer->second.link.session() != session) return false;
  for (auto& frame : encode_frames(message))
    peer->second.link.push(std::make_shared<const std::vector<std::byte>>(std::move(frame)));
  impl_->transmit(peer->second);
  return true;
}

void WorkerServer::flush(std::chrono::milliseconds timeout) {
  const Time deadline = steady_now() + timeout;
  const auto all_idle = [this] {
    return std::all_of(impl_->peers.begin(), impl_->peers.end(),
                       [](const auto& entry) { return entry.second.link.idle(); });
  };
  impl_->turn(impl_->held_back);
  while (!all_idle() && steady_now() < deadline) {
    impl_->wait_until(deadline);
    impl_->turn(impl_->held_back);
  }
}

std::optional<uint64_t> WorkerServer::progress(const std::string& worker, uint64_t session) const {
  const auto peer = impl_->peers.find(worker);
  if (peer == impl_->peers.end() || peer->second.link.session() != session ||
      peer->second.progress == 0)
    return std::nullopt;
  return peer->second.progress + static_cast<uint64_t>(peer->second.link.counters().received);
}

std::vector<std::string> WorkerServer::held() const {
  std::vector<std::string> texts;
  for (const auto& [worker, peer] : impl_->peers)
    if (!peer.held.empty()) texts.push_back(fmt::format("{}: {}", worker, peer.held));
  return texts;
}

LinkCounters WorkerServer::counters() const {
  LinkCounters total = impl_->ended;
  for (const auto& [worker, peer] : impl_->peers) total += peer.link.counters();
  return total;
}

std::string WorkerServer::last_malformed() const { return impl_->last_malformed; }

}  // namespace tailrace::wire
