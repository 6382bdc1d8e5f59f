#include "core/gate/weight_relay.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "core/base/clock.h"
#include "core/base/digest.h"
#include "core/base/error.h"
#include "core/gate/file_desk.h"
#include "core/wire/doorkeeper.h"
#include "core/wire/socket.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kRelayLook{100};
constexpr std::chrono::seconds kTryToOpen{1};  // while another worker of this host relays
constexpr int kMaxRequestsAtOnce = 256;        // then the files that are ready have their turn
// Files that are fetched one after the other: those of a few versions.
constexpr size_t kMaxWanted = 16;
// A file that could not be had is not tried again for so long.
constexpr std::chrono::seconds kRefuse{5};
constexpr size_t kMaxRefused = 64;

}  // namespace

// The socket and what it needs, for as long as this worker is the one that relays.
struct WeightRelay::Port {
  Port(const WeightRelayOptions& options, FileShelf::Find find, wire::Wakeup& bell)
      : doorkeeper(
            context,
            [&options](std::string_view key) {
              return options.is_guest(key) ? std::optional<std::string>(key) : std::nullopt;
            },
            bell),
        router(wire::Socket::Kind::kRouter, context),
        desk(router, std::move(find), bell) {
    router.bind(options.listen, options.own, doorkeeper);
  }

  void turn() {
    for (int i = 0; i < kMaxRequestsAtOnce; ++i) {
      const auto received = router.receive();
      if (!received) break;
      const auto message = wire::decode_gate_message(received->frame);
      if (!message || received->user.empty()) continue;
      // A relay hands out files and nothing else: other messages of the gate mean nothing here.
      if (const auto* file = std::get_if<wire::AskFile>(&message.value()))
        desk.on(*received, *file);
      if (const auto* chunk = std::get_if<wire::AskChunk>(&message.value()))
        desk.on(*received, *chunk);
    }
    // A worker that was refused has asked before it was known here, and comes again.
    (void)doorkeeper.refusals();
  }

  wire::SocketContext context;
  wire::Doorkeeper doorkeeper;  // outlives the router
  wire::Socket router;
  FileDesk desk;
};

WeightRelay::WeightRelay(WeightRelayOptions options, Log& log)
    : options_(std::move(options)), log_(log) {
  if (!open())
    log_.info("another worker of this host relays weights at {}: this one waits to take its place",
              options_.listen);
  fetcher_ = std::jthread([this](std::stop_token stop) { fetch_wanted(stop); });
  server_ = std::jthread([this](std::stop_token stop) { serve(stop); });
}

WeightRelay::~WeightRelay() {
  server_.request_stop();
  fetcher_.request_stop();
  bell_.ring();
}

bool WeightRelay::open() {
  lock_.emplace(options_.lock);
  if (!lock_->held()) {
    lock_.reset();
    return false;
  }
  port_ = std::make_unique<Port>(
      options_, [this](const std::string& name) { return find(name); }, bell_);
  log_.info("relays weights to other hosts of its cluster at {}", options_.listen);
  return true;
}

void WeightRelay::serve(const std::stop_token& stop) {
  bool told = false;
  while (!stop.stop_requested()) {
    if (port_) {
      port_->router.wait(kRelayLook, false, bell_.descriptor());
      if (bell_.silence()) port_->desk.answer_waiting();
      port_->turn();
      continue;
    }
    MutexLock lock(mu_);
    changed_.wait_for(lock.native(), stop, kTryToOpen, [] { return false; });
    if (stop.stop_requested()) return;
    // open() logs and binds a socket, neither of which may hold the lock that find() waits for.
    lock.native().unlock();
    try {
      (void)open();
    } catch (const UserError& error) {
      if (!std::exchange(told, true)) log_.warning("it does not relay yet: {}", error.what());
    }
    lock.native().lock();
  }
}

std::optional<WeightRelay::Wanted> WeightRelay::parse(const std::string& name) {
  constexpr std::string_view kPrefix = "weights/";
  const std::string_view text = name;
  if (!text.starts_with(kPrefix) || text.size() <= kPrefix.size() + kDigestDigits + 1)
    return std::nullopt;
  Wanted wanted{Digest(text.substr(kPrefix.size(), kDigestDigits)),
                std::string(text.substr(kPrefix.size() + kDigestDigits + 1))};
  const fs::path file(wanted.file);
  // The name comes from another host and becomes a path here: one component, no hidden file, and
  // none of the names that a transfer keeps beside its target.
  if (text[kPrefix.size() + kDigestDigits] != '/' || !is_digest(wanted.root) ||
      wanted.file.front() == '.' ||
      wanted.file.find_first_of(std::string_view("/\0", 2)) != std::string::npos ||
      wanted.file.size() > 200 || file.extension() == ".part" || file.extension() == ".lock")
    return std::nullopt;
  return wanted;
}

SharedFile WeightRelay::find(const std::string& name) {
  const auto wanted = parse(name);
  if (!wanted) return {.path = {}, .absent = "a relay has files of weights alone"};
  const fs::path path = options_.weights / wanted->root / wanted->file;
  std::error_code ignored;
  if (fs::exists(path, ignored)) return {.path = path};
  {
    MutexLock lock(mu_);
    const auto refused = refused_.find(name);
    if (refused != refused_.end() && steady_now() < refused->second.until)
      return {.path = {}, .absent = refused->second.why};
    if (std::ranges::find(wanted_, name) == wanted_.end()) {
      if (wanted_.size() >= kMaxWanted)
        return {.path = {}, .absent = "this relay fetches too many other files"};
      wanted_.push_back(name);
    }
  }
  changed_.notify_all();
  // The part of an earlier transfer that lies there is no progress, and would hide that of this
  // one: the fetch tells of what it has proved, or of the worker of this host for which it waits.
  return {.path = path, .arriving = progress_.load()};
}

void WeightRelay::fetch_wanted(const std::stop_token& stop) {
  while (true) {
    std::string name;
    {
      MutexLock lock(mu_);
      changed_.wait(lock.native(), stop, [this] { return !wanted_.empty(); });
      if (stop.stop_requested()) return;
      // It stays in the list while it is fetched, so that find() does not ask for it twice.
      name = wanted_.front();
    }
    const Wanted wanted = parse(name).value();
    const auto fetched = options_.fetch(wanted.root, wanted.file, stop,
                                        [this](int64_t number) { progress_ = number; });
    {
      MutexLock lock(mu_);
      wanted_.pop_front();
      refused_.erase(name);
      if (!fetched) {
        if (refused_.size() >= kMaxRefused) refused_.clear();
        refused_[name] = {fetched.failure().message, steady_now() + kRefuse};
      }
    }
    bell_.ring();
  }
}

}  // namespace tailrace
