#include "core/gate/gate.h"

#include <algorithm>
#include <bit>
#include <exception>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/rate_limit.h"
#include "core/base/version.h"
#include "core/gate/file_desk.h"
#include "core/gate/worker_relay.h"
#include "core/wire/doorkeeper.h"
#include "core/wire/socket.h"
#include "kernels/base/pulse.h"

namespace tailrace {
namespace {

using wire::Greeting;
using wire::GreetingAnswer;
using wire::Header;

constexpr std::chrono::milliseconds kGateLook{100};
constexpr int kMaxFramesAtOnce = 256;  // then the other direction has its turn
constexpr size_t kMaxGuests = 512;
constexpr int64_t kMaxGuestsOfKey = 256;
// For so long a list of relays is as it was read.
constexpr std::chrono::seconds kRelaysAreFresh{1};
// Limits on the log lines that strangers can cause, and on those that a worker can.
constexpr int64_t kStrangerLines = 20;
constexpr std::chrono::seconds kStrangerLinePeriod{2};
constexpr int64_t kWorkerLinesAtOnce = 500;
constexpr std::chrono::milliseconds kWorkerLinePeriod{200};

}  // namespace

struct Gate::Impl {
  // A worker that has greeted.
  struct Guest {
    const std::string& name() const { return answer.name; }

    int64_t number = 0;  // in the order of admission
    std::string user;
    Greeting greeting;
    GreetingAnswer answer;
    WorkerRelay relay = {};
    Time heard;
    std::optional<Time> leaves = {};
    uint64_t lines_taken = 0;
    RateLimit lines{kWorkerLinesAtOnce, kWorkerLinePeriod};
  };

  Impl(GateOptions given, Log& log_in)
      : options(std::move(given)),
        log(log_in),
        server(wire::read_secret_key(options.keys.server())),
        doorkeeper(context, options.keys, bell),
        router(wire::Socket::Kind::kRouter, context),
        desk(router, options.find, bell) {
    for (const AdmittedWorker& worker : options.admitted) admit(worker);
    router.watch();
    router.bind(options.listen, server, doorkeeper);
  }

  // ---- from the workers

  void drain_router() {
    for (int i = 0; i < kMaxFramesAtOnce; ++i) {
      const auto received = router.receive();
      if (!received) return;
      // The Doorkeeper names whom it lets in: nobody comes without.
      if (received->user.empty()) {
        note(counters.strayed, "frames of nobody", received->user, "");
        continue;
      }
      guarded("a frame by the key of", received->user, [&] { take(*received); });
    }
  }

  // A worker's frame may lead to a full disk, or to the limit of open files: that is told, and is
  // not the end for all other workers.
  template <class Act>
  void guarded(std::string_view what, std::string_view whose, const Act& act) {
    try {
      act();
    } catch (const std::exception& error) {
      if (tell_faults.take(steady_now()))
        log.error("{} {} came to nothing: {}", what, whose, error.what());
    }
  }

  void take(const wire::Socket::Received& received) {
    if (wire::is_greeting(received.frame)) return on_greeting(received);
    if (const auto header = wire::decode_header(received.frame)) return on_frame(*header, received);
    auto message = wire::decode_gate_message(received.frame);
    if (!message) {
      note(counters.malformed, "frames that make no sense", received.user,
           message.failure().message);
      return;
    }
    std::visit([&](auto& m) { on(received, m); }, message.value());
  }

  void on_greeting(const wire::Socket::Received& received) {
    const auto greeting = wire::decode_greeting(received.frame);
    if (!greeting)
      return note(counters.malformed, "greetings that make no sense", received.user, "");
    router.send(received.peer, wire::encode(answer_to(*greeting, std::string(received.user))));
  }

  GreetingAnswer answer_to(const Greeting& greeting, const std::string& user) {
    // Other builds may compute with other bits and speak another wire format, so there is no range
    // of versions that fit.
    if (greeting.build != build_id()) {
      if (tell.take(steady_now()))
        log.warning("refused a worker of {} at host {}: it is another build of tailrace ({} {})",
                    user, greeting.host, greeting.version, greeting.build);
      return refused(
          fmt::format("the run is another build of tailrace ({} {}; this one is {} {}). Join it "
                      "with the binary "
                      "that launched it",
                      version(), build_id(), greeting.version, greeting.build));
    }
    // A greeting that comes again has the same answer: the first may be lost, and a worker greets
    // at intervals to say that it is there.
    if (const auto known = guests.find(greeting.incarnation); known != guests.end()) {
      if (known->second.user != user) return refused("another key has greeted for this process");
      known->second.heard = steady_now();
      return known->second.answer;
    }
    if (guests.size() >= kMaxGuests)
      return refused(fmt::format("{} workers have joined already", kMaxGuests));
    if (std::ranges::count_if(guests, [&](const auto& guest) {
          return guest.second.user == user;
        }) >= kMaxGuestsOfKey)
      return refused(
          fmt::format("{} workers have joined by the key of {} already. Make another key",
                      kMaxGuestsOfKey, user));
    GreetingAnswer answer = options.admit(greeting, user);
    if (answer.kind == GreetingAnswer::Kind::kWelcome) {
      log.info("{} joins from host {} by the key of {}{}", answer.name, greeting.host, user,
               answer.cluster.empty() ? "" : " cluster=" + answer.cluster);
      admit({user, greeting, answer});
      remember();
    } else if (tell.take(steady_now())) {
      log.warning("refused a {} worker of {} at host {}: {}", name_of(greeting.role), user,
                  greeting.host, answer.reason);
    }
    return answer;
  }

  void admit(const AdmittedWorker& worker) {
    guests.emplace(worker.greeting.incarnation, Guest{.number = ++num_admitted,
                                                      .user = worker.user,
                                                      .greeting = worker.greeting,
                                                      .answer = worker.answer,
                                                      .heard = steady_now()});
  }

  void remember() {
    relays.clear();
    if (!options.remember) return;
    std::vector<AdmittedWorker> all;
    for (const Guest* guest : in_order())
      all.push_back({guest->user, guest->greeting, guest->answer});
    options.remember(all);
  }

  static GreetingAnswer refused(std::string reason) {
    return {.kind = GreetingAnswer::Kind::kRefused, .reason = std::move(reason)};
  }

  // A frame of the run: passed on as it is, if it is the worker's to send.
  void on_frame(const Header& header, const wire::Socket::Received& received) {
    Guest* guest =
        header.session == 0 ? guest_of_hello(received) : guest_of_session(header, received);
    if (guest == nullptr) return;
    guest->heard = steady_now();
    switch (guest->relay.from_worker(header, received.peer, received.frame, context,
                                     options.scheduler)) {
      case WorkerRelay::Verdict::kTooOften:
        return note(counters.strayed, "frames of who connects too often", received.user,
                    guest->name());
      case WorkerRelay::Verdict::kBeyondWindow:
        return note(counters.strayed, "frames of who sends more than its window", received.user,
                    guest->name());
      case WorkerRelay::Verdict::kTaken:
        break;
    }
    if (header.signal == wire::Signal::kGoodbye) {
      guest->leaves = steady_now() + options.parting;
    } else if (header.session == 0) {
      guest->leaves.reset();  // it begins another session
    }
  }

  Guest* guest_of_hello(const wire::Socket::Received& received) {
    const auto decoded = wire::decode(received.frame);
    const auto* hello = decoded ? std::get_if<wire::Hello>(&decoded.value().message) : nullptr;
    if (hello == nullptr) {
      note(counters.malformed, "frames that make no sense", received.user,
           decoded ? "no Hello outside of a session" : decoded.failure().message);
      return nullptr;
    }
    const auto guest = guests.find(hello->incarnation);
    if (guest == guests.end() || guest->second.user != received.user) return stray();
    const Guest& known = guest->second;
    // The scheduler believes what a Hello says, so a worker may say only what the gate has given
    // it.
    if (hello->worker != known.name() || hello->role != known.greeting.role || !hello->joined ||
        hello->host != known.greeting.host || hello->pool != known.answer.pool ||
        hello->cluster != known.answer.cluster) {
      note(counters.strayed, "Hellos that are not their sender's to say", received.user,
           wire::describe(decoded.value().message));
      return nullptr;
    }
    return &guest->second;
  }

  Guest* guest_of_session(const Header& header, const wire::Socket::Received& received) {
    for (auto& [incarnation, guest] : guests)
      if (guest.user == received.user && guest.relay.knows(header.session)) return &guest;
    // An earlier gate has seen this session begin: the worker says Hello, and goes on.
    router.send(received.peer, heartbeat, Header{header.session, 0, 0, wire::Signal::kSayHello});
    ++counters.strayed;
    return nullptr;
  }

  // Not a word: a gate that has just begun hears Hellos before the greetings.
  Guest* stray() {
    ++counters.strayed;
    return nullptr;
  }

  Guest* guest_of(uint64_t incarnation, const wire::Socket::Received& received) {
    const auto guest = guests.find(incarnation);
    if (guest == guests.end() || guest->second.user != received.user) return stray();
    guest->second.heard = steady_now();
    return &guest->second;
  }

  void on(const wire::Socket::Received& received, const wire::AskFile& ask) {
    const Guest* guest = guest_of(ask.incarnation, received);
    if (guest == nullptr) return;
    if (options.may_have && !options.may_have(guest->greeting.role, ask.name)) {
      router.send(received.peer,
                  wire::encode(wire::FileFacts{.name = ask.name,
                                               .status = wire::FileFacts::Status::kAbsent,
                                               .reason = "it is not for workers of this role"}));
      return;
    }
    desk.on(received, ask);
  }

  void on(const wire::Socket::Received& received, const wire::AskChunk& ask) {
    if (guest_of(ask.incarnation, received) == nullptr) return;
    desk.on(received, ask);
    counters.chunks = desk.num_chunks();
  }

  void on(const wire::Socket::Received& received, const wire::AskRelays& ask) {
    const Guest* guest = guest_of(ask.incarnation, received);
    if (guest == nullptr || guest->answer.cluster.empty()) return;
    const wire::RelayList& list = relays_of(guest->answer.cluster);
    // No answer is the answer to a worker whose list is the newest.
    if (list.digest != ask.known) router.send(received.peer, wire::encode(list));
  }

  void on(const wire::Socket::Received& received, const wire::LogLines& message) {
    Guest* guest = guest_of(message.incarnation, received);
    if (guest == nullptr) return;
    std::vector<wire::LogLine> fresh;
    uint64_t number = message.first, taken = guest->lines_taken;
    // Lines are numbered: those that were written already, and whose acknowledgement was lost, are
    // passed over.
    for (const wire::LogLine& line : message.lines) {
      // The rest comes again when there is room.
      if (number > taken) {
        if (!guest->lines.take(steady_now())) break;
        fresh.push_back(line);
        taken = number;
      }
      ++number;
    }
    if (!fresh.empty()) options.write_lines(guest->name(), fresh);
    guest->lines_taken = taken;  // written
    router.send(received.peer, wire::encode(wire::LogTaken{guest->lines_taken}));
  }

  void on(const wire::Socket::Received& received, const wire::Leave& message) {
    Guest* guest = guest_of(message.incarnation, received);
    if (guest != nullptr) guest->leaves = steady_now() + options.parting;
  }

  const wire::RelayList& relays_of(const std::string& cluster) {
    auto& [read_at, list] = relays[cluster];
    const Time now = steady_now();
    if (!list.digest.empty() && now - read_at < kRelaysAreFresh) return list;
    read_at = now;
    list = {};
    for (const Guest* guest : in_order()) {
      if (guest->answer.cluster != cluster || guest->greeting.role != Role::kRollout) continue;
      // Its file may be gone: nobody should let it in, or believe that it is who it was.
      std::string key;
      try {
        key = wire::read_public_key(options.keys.allowed(guest->user));
      } catch (const UserError&) {
        continue;
      }
      if (std::ranges::find(list.guests, key) == list.guests.end()) list.guests.push_back(key);
      const std::string& address = guest->greeting.relay;
      // Several workers of a host may wait for its port: one of them has it.
      const auto is_same = [&](const wire::RelayAddress& known) {
        return known.address == address && known.public_key == key;
      };
      if (!address.empty() && std::ranges::none_of(list.relays, is_same))
        list.relays.push_back({guest->name(), address, key});
    }
    list.digest = wire::digest_of_relays(list);
    return list;
  }

  std::vector<const Guest*> in_order() const {
    std::vector<const Guest*> all;
    for (const auto& [incarnation, guest] : guests) all.push_back(&guest);
    std::ranges::sort(all, {}, &Guest::number);
    return all;
  }

  // A message that a gate says, and no worker.
  template <class Other>
  void on(const wire::Socket::Received& received, const Other&) {
    note(counters.strayed, "messages that are not a worker's to send", received.user, "");
  }

  // ---- who comes and goes

  void look_at_contacts() {
    for (const wire::Doorkeeper::Refusal& refusal : doorkeeper.refusals()) {
      ++counters.not_allowed;
      if (tell.take(steady_now()))
        log.warning(
            "refused a connection from {}: its key ({}) is not in {}. If it is meant to join, put "
            "it "
            "there",
            refusal.address, refusal.public_key, options.keys.allowed().string());
    }
    while (const auto contact = router.contact()) {
      // The Doorkeeper has told of who is not on the list.
      if (*contact != wire::Socket::Contact::kWrongServer &&
          *contact != wire::Socket::Contact::kNotEncrypted)
        continue;
      ++counters.not_shaken;
      if (tell.take(steady_now()))
        log.warning("refused a connection to {}: {}", options.listen,
                    *contact == wire::Socket::Contact::kWrongServer
                        ? "it has not the key of this run (server.pub)"
                        : "it has no key, or is no worker of tailrace");
    }
  }

  void part_with_the_gone() {
    const Time now = steady_now();
    const size_t before = guests.size();
    for (auto guest = guests.begin(); guest != guests.end();) {
      const Guest& known = guest->second;
      const bool left = known.leaves && now >= *known.leaves;
      if (!left && now - known.heard < options.forget) {
        ++guest;
        continue;
      }
      log.info("{} {}", known.name(),
               left ? "has left" : "was away for too long: its name is free");
      guarded("the leave of", known.name(), [&] { options.release(known.name()); });
      guest = guests.erase(guest);
    }
    if (guests.size() != before) guarded("the list", "of workers", [&] { remember(); });
  }

  // Each doubling: a flood of garbage is no flood of lines.
  void note(int64_t& count, std::string_view what, std::string_view user, std::string_view detail) {
    if (!std::has_single_bit(static_cast<uint64_t>(++count))) return;
    log.warning("dropped {}: {}, the latest by the key of {}{}{}", what, count, user,
                detail.empty() ? "" : ": ", detail);
  }

  void turn(std::chrono::milliseconds timeout) {
    std::vector<wire::Socket*> sockets = {&router};
    for (auto& [incarnation, guest] : guests) {
      if (wire::Socket* socket = guest.relay.to_poll()) sockets.push_back(socket);
      timeout = std::min(timeout, guest.relay.patience());
    }
    wire::Socket::wait_for_any(sockets, timeout, bell.descriptor());
    if (bell.silence()) desk.answer_waiting();
    drain_router();
    const auto send = [this](std::string_view routing, std::span<const std::byte> frame) {
      return router.send(routing, frame);
    };
    for (auto& [incarnation, guest] : guests) guest.relay.from_scheduler(send);
    look_at_contacts();
    part_with_the_gone();
  }

  const GateOptions options;
  Log& log;
  const wire::KeyPair server;
  wire::Wakeup bell;
  wire::SocketContext context;
  wire::Doorkeeper doorkeeper;  // outlives the router, which nobody may enter without it
  wire::Socket router;
  FileDesk desk;
  std::map<uint64_t, Guest> guests;  // by incarnation
  int64_t num_admitted = 0;
  std::map<std::string, std::pair<Time, wire::RelayList>> relays;  // by cluster, when it was read
  GateCounters counters;
  RateLimit tell{kStrangerLines, kStrangerLinePeriod};
  RateLimit tell_faults{kStrangerLines, kStrangerLinePeriod};
  const std::vector<std::byte> heartbeat = wire::encode(Header{}, wire::Heartbeat{});
};

Gate::Gate(GateOptions options, Log& log)
    : impl_(std::make_unique<Impl>(std::move(options), log)) {}
Gate::~Gate() = default;

void Gate::run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    beat();
    turn(kGateLook);
  }
}

void Gate::turn(std::chrono::milliseconds timeout) { impl_->turn(timeout); }

const GateCounters& Gate::counters() const { return impl_->counters; }

}  // namespace tailrace
