#include "core/gate/remote_run.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/unique_number.h"
#include "core/base/version.h"
#include "core/wire/gate_frames.h"
#include "core/wire/socket.h"
#include "core/wire/wakeup.h"
#include "kernels/base/mutex.h"

namespace tailrace {
namespace {

using wire::GreetingAnswer;
using Contact = wire::Socket::Contact;

constexpr std::chrono::milliseconds kRunLook{100};
constexpr std::chrono::milliseconds kLinger{1'000};
// A round trip or two.
constexpr std::chrono::milliseconds kFirstList{3'000};
constexpr size_t kMaxLines = 256, kLinesPerMessage = 64;

}  // namespace

struct RemoteRun::Impl {
  explicit Impl(RemoteRunOptions given)
      : options(std::move(given)), socket(wire::Socket::Kind::kDealer) {
    wire::Greeting& greeting = options.greeting;
    greeting.build = build_id();
    greeting.version = version();
    greeting.incarnation = unique_number();
    socket.watch();
    socket.connect(options.gate);
    welcome = be_welcomed();
    thread = std::jthread([this](std::stop_token stop) { run(stop); });
  }

  // ---- at the begin

  GreetingAnswer be_welcomed() {
    const std::string& address = options.gate.address;
    const Time give_up = steady_now() + options.patience;
    Time greet_at = Time::min();
    std::string later;
    bool nobody = false, ready = false;
    while (steady_now() < give_up) {
      while (const auto contact = socket.contact()) {
        ready = ready || *contact == Contact::kReady;
        nobody = *contact == Contact::kNobody;
        refuse(*contact);
        // Nothing listens: that does not change by itself within a moment.
        if (nobody && ++num_nobody > kMaxNobody) break;
      }
      if (nobody && num_nobody > kMaxNobody) break;
      // Before the handshake there is nobody to send to.
      if (ready && steady_now() >= greet_at) {
        socket.send("", wire::encode(options.greeting));
        greet_at = steady_now() + options.greet_again;
      }
      if (const auto received = socket.receive()) {
        const auto answer = wire::decode_greeting_answer(received->frame);
        if (!answer) continue;
        if (answer->kind == GreetingAnswer::Kind::kWelcome) return *answer;
        if (answer->kind == GreetingAnswer::Kind::kRefused)
          throw UserError("{}: {}", address, answer->reason);
        later = answer->reason;
        continue;
      }
      socket.wait(std::chrono::milliseconds(20));
    }
    if (!later.empty()) throw Unreachable("{}: {}", address, later);
    if (ready)
      throw Unreachable(
          "{}: it does not answer a greeting, so it is no run of tailrace, or it hangs.", address);
    throw Unreachable(
        "{}: nobody listens there, or it cannot be reached.\n       Is the run under way "
        "(run.listen), and does a firewall stand between?",
        address);
  }

  void refuse(Contact contact) const {
    const std::string& address = options.gate.address;
    switch (contact) {
      case Contact::kNotAllowed:
        throw UserError(
            "{}: the run does not know this key ({}).\n       Put its NAME.pub into the folder "
            "'allowed' of run.keys there; that counts at once.",
            address, options.gate.keys->own.public_key);
      case Contact::kWrongServer:
        throw UserError(
            "{}: the run has another key than --server-key names ({}).\n       Take server.pub "
            "from "
            "the folder run.keys there.",
            address, options.gate.keys->server);
      case Contact::kNotEncrypted:
        throw UserError("{}: what listens there is no run of tailrace.", address);
      default:
        return;
    }
  }

  // ---- the thread

  void run(const std::stop_token& stop) {
    Time greet_at = steady_now() + options.greet_again;
    ask_for_relays();
    std::optional<Time> end;
    while (true) {
      const Time now = steady_now();
      if (stop.stop_requested() && !end) end = now + kLinger;
      if (end && (now >= *end || lines_left() == 0)) break;
      if (now >= greet_at) {
        socket.send("", wire::encode(options.greeting));
        ask_for_relays();
        greet_at = now + options.greet_again;
      }
      while (const auto received = socket.receive()) take(received->frame);
      hand_in_lines(now);
      while (const auto contact = socket.contact()) note(*contact);
      socket.revive();
      socket.wait(kRunLook, false, wakeup.descriptor());
      (void)wakeup.silence();
    }
    socket.send("", wire::encode(wire::Leave{options.greeting.incarnation}));
    // A closed socket does not linger.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }

  void take(std::span<const std::byte> frame) {
    if (const auto answer = wire::decode_greeting_answer(frame)) {
      MutexLock lock(mu);
      refusal = answer->kind == GreetingAnswer::Kind::kRefused ? answer->reason : std::string();
      if (answer->kind == GreetingAnswer::Kind::kWelcome && answer->name != welcome.name)
        refusal = fmt::format("the run knows this worker no more, and calls it {} now: join again",
                              answer->name);
      return;
    }
    const auto message = wire::decode_gate_message(frame);
    if (!message) return;
    if (auto* list = std::get_if<wire::RelayList>(&message.value())) {
      MutexLock lock(mu);
      relays = std::move(*list);
      relays_known.notify_all();
      return;
    }
    const auto* taken = std::get_if<wire::LogTaken>(&message.value());
    if (taken == nullptr) return;
    MutexLock lock(mu);
    if (lines.empty() || first > taken->through) return;  // it takes no more for now
    while (!lines.empty() && first <= taken->through) {
      lines.pop_front();
      ++first;
    }
    tell_at = Time::min();
  }

  // The key may be put back, and the gate started again: until then a person should know.
  void note(Contact contact) {
    const bool refused = contact == Contact::kNotAllowed || contact == Contact::kWrongServer;
    if (refused && !std::exchange(shut_out, true) && options.on_shut_out)
      options.on_shut_out(contact == Contact::kNotAllowed
                              ? "the run does not know this key any more"
                              : "the run has another key than before (server.pub)");
    if (contact == Contact::kReady) shut_out = false;
  }

  // Others have no weights.
  bool may_have_relays() const {
    return !welcome.cluster.empty() && options.greeting.role == Role::kRollout;
  }

  // The answer comes when the list has changed.
  void ask_for_relays() {
    if (!may_have_relays()) return;
    wire::AskRelays ask{options.greeting.incarnation, {}};
    {
      MutexLock lock(mu);
      ask.known = relays.digest;
    }
    socket.send("", wire::encode(ask));
  }

  size_t lines_left() {
    MutexLock lock(mu);
    return lines.size();
  }

  void hand_in_lines(Time now) {
    wire::LogLines message{options.greeting.incarnation, 0, {}};
    {
      MutexLock lock(mu);
      if (lines.empty() || now < tell_at) return;
      message.first = first;
      for (size_t i = 0; i < std::min(lines.size(), kLinesPerMessage); ++i)
        message.lines.push_back(lines[i]);
      tell_at = now + 2 * options.greet_again;  // those that were not acknowledged
    }
    socket.send("", wire::encode(message));
  }

  RemoteRunOptions options;
  wire::Socket socket;  // the thread's, once there is one
  GreetingAnswer welcome;
  bool shut_out = false;  // told
  int num_nobody = 0;
  static constexpr int kMaxNobody = 3;
  wire::Wakeup wakeup;

  Mutex mu;
  std::unique_ptr<FetchConnection> idle TR_GUARDED_BY(mu);
  std::deque<wire::LogLine> lines TR_GUARDED_BY(mu);
  uint64_t first TR_GUARDED_BY(mu) = 1;  // number of lines.front()
  Time tell_at TR_GUARDED_BY(mu) = Time::min();
  int64_t lost TR_GUARDED_BY(mu) = 0;  // lines, since the last one that was kept
  std::string refusal TR_GUARDED_BY(mu);
  wire::RelayList relays TR_GUARDED_BY(mu);
  std::condition_variable_any relays_known;
  std::jthread thread;  // last: uses what is above
};

RemoteRun::RemoteRun(RemoteRunOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}

RemoteRun::~RemoteRun() {
  impl_->thread.request_stop();
  impl_->wakeup.ring();
  impl_->thread.join();
}

const wire::GreetingAnswer& RemoteRun::welcome() const { return impl_->welcome; }
uint64_t RemoteRun::incarnation() const { return impl_->options.greeting.incarnation; }
const wire::Greeting& RemoteRun::greeting() const { return impl_->options.greeting; }
const wire::Endpoint& RemoteRun::endpoint() const { return impl_->options.gate; }

template <class Act>
auto RemoteRun::over_connection(const Act& act) -> decltype(act(std::declval<FetchConnection&>())) {
  std::unique_ptr<FetchConnection> connection;
  {
    MutexLock lock(impl_->mu);
    // A connection costs a handshake and a socket, so the last one is kept for the next file.
    connection = std::move(impl_->idle);
  }
  try {
    if (!connection) connection = std::make_unique<FetchConnection>(endpoint());
  } catch (const UserError& error) {
    return Failure{error.what()};  // no files left
  }
  auto result = act(*connection);
  MutexLock lock(impl_->mu);
  // Two at once have one each, and one of them is kept.
  impl_->idle = std::move(connection);
  return result;
}

Result<FetchCounters> RemoteRun::fetch(const std::string& name, const std::filesystem::path& target,
                                       const std::stop_token& stop, FetchOptions options) {
  options.incarnation = incarnation();
  options.rate_mbit = impl_->options.rate_mbit;
  return over_connection([&](FetchConnection& connection) {
    return fetch_file(options, connection, name, target, stop);
  });
}

Result<wire::FileFacts> RemoteRun::facts(const std::string& name, const std::stop_token& stop) {
  const FetchOptions options{.incarnation = incarnation()};
  return over_connection(
      [&](FetchConnection& connection) { return ask_facts(options, connection, name, stop); });
}

wire::RelayList RemoteRun::relays(const std::stop_token& stop) const {
  MutexLock lock(impl_->mu);
  if (impl_->may_have_relays())
    impl_->relays_known.wait_for(lock.native(), stop, kFirstList,
                                 [this] { return !impl_->relays.digest.empty(); });
  return impl_->relays;
}

bool RemoteRun::is_guest(std::string_view public_key) const {
  MutexLock lock(impl_->mu);
  return std::ranges::find(impl_->relays.guests, public_key) != impl_->relays.guests.end();
}

void RemoteRun::tell(LogLevel level, std::string_view line) {
  {
    MutexLock lock(impl_->mu);
    auto& lines = impl_->lines;
    if (lines.size() >= kMaxLines) {
      // The newest say what is wrong now.
      ++impl_->lost;
      lines.pop_front();
      ++impl_->first;
    }
    std::string text(line.substr(0, 1000));
    if (impl_->lost > 0) text += fmt::format(" ({} lines before were lost)", impl_->lost);
    lines.push_back({level, std::move(text)});
    if (lines.size() < kMaxLines) impl_->lost = 0;
  }
  impl_->wakeup.ring();
}

std::string RemoteRun::refusal() const {
  MutexLock lock(impl_->mu);
  return impl_->refusal;
}

}  // namespace tailrace
