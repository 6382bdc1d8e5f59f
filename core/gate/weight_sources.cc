#include "core/gate/weight_sources.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "core/base/clock.h"
#include "core/base/join_texts.h"

namespace tailrace {
namespace {

// Ways that are on their way to a payload, of all versions that this process brings.
constexpr size_t kMaxUnproved = 64;

}  // namespace

std::string name_at_relay(const Digest& root, const std::string& file) {
  return fmt::format("weights/{}/{}", root, file);
}

WeightSources::WeightSources(RemoteRun& run, WeightSourcesOptions options)
    : run_(run), options_(std::move(options)) {}

Result<FetchCounters> WeightSources::fetch(const WeightFile& file,
                                           const std::filesystem::path& target,
                                           const std::stop_token& stop, const Progress& progress) {
  const std::string at_run = "weights/" + file.name;
  const bool is_of_run = file.max_bytes < 0;
  FetchCounters all;
  std::vector<std::string> failures;
  // The next source finds the bytes that one source has given.
  const auto add = [&](const std::string& source, const FetchCounters& counters, Time start) {
    all.kept = std::max<int64_t>(counters.kept - all.received, 0);
    all.received += counters.received;
    all.damaged += counters.damaged;
    all.asked_again += counters.asked_again;
    note_received(source, file.name, counters.received, steady_now() - start);
  };

  std::error_code ignored;
  // A file that another worker of this host has fetched is only to be proved.
  const auto relays = std::filesystem::exists(target, ignored) ? std::vector<wire::RelayAddress>()
                                                               : relays_to_ask(stop);
  std::optional<wire::FileFacts> facts;
  // A relay is another worker, which may be wrong or hostile. The digest of the file comes from the
  // run, and the relay gives the bytes alone.
  if (!relays.empty() && is_of_run) {
    auto told = run_.facts(at_run, stop);
    if (!told) return told.failure();
    facts = std::move(told).value();
  }
  for (const wire::RelayAddress& relay : relays) {
    FetchCounters counters;
    const FetchOptions options{.incarnation = run_.incarnation(),
                               .expected = facts ? &*facts : nullptr,
                               .max_bytes = file.max_bytes,
                               .patience = options_.patience,
                               .stall = options_.patience / 2,
                               .on_progress = progress,
                               .counters = &counters};
    const wire::Endpoint endpoint(relay.address, {run_.endpoint().keys->own, relay.public_key});
    const Time start = steady_now();
    const auto fetched =
        fetch_file(options, endpoint, name_at_relay(file.root, file.name), target, stop);
    add(relay.name, counters, start);
    if (fetched) {
      note_good(relay);
      // The run has not said what this file holds: it is proved by the version that it leads to,
      // and refuse() then finds the relay that gave it.
      if (!is_of_run) note_unproved(target, relay);
      return all;
    }
    if (stop.stop_requested()) return fetched.failure();
    failures.push_back(fmt::format("{}: {}", relay.name, fetched.failure().message));
    leave(relay, file.name, fetched.failure().message);
  }
  FetchCounters counters;
  FetchOptions options;
  options.on_progress = progress;
  options.counters = &counters;
  options.max_bytes = file.max_bytes;
  const Time start = steady_now();
  const auto fetched = run_.fetch(at_run, target, stop, options);
  add(kRun, counters, start);
  if (fetched) return all;
  if (failures.empty()) return fetched.failure();
  failures.push_back(fmt::format("{}: {}", kRun, fetched.failure().message));
  return Failure{join_texts(failures, "; ")};
}

void WeightSources::note_unproved(const std::filesystem::path& target,
                                  const wire::RelayAddress& relay) {
  MutexLock lock(mu_);
  unproved_.push_back({target, relay});
  if (unproved_.size() > kMaxUnproved) unproved_.pop_front();
}

bool WeightSources::refuse(const std::filesystem::path& target, const std::string& why) {
  wire::RelayAddress relay;
  {
    MutexLock lock(mu_);
    const auto found = std::ranges::find(unproved_, target, &Unproved::target);
    if (found == unproved_.end()) return false;
    relay = found->relay;
    unproved_.erase(found);
  }
  leave(relay, target.filename().string(), why);
  return true;
}

std::vector<wire::RelayAddress> WeightSources::relays_to_ask(const std::stop_token& stop) {
  std::vector<wire::RelayAddress> relays;
  const wire::RelayList list = run_.relays(stop);
  const Time now = steady_now();
  for (const wire::RelayAddress& relay : list.relays) {
    // The relays behind it each ask this one.
    if (options_.is_here(relay.address)) break;
    MutexLock lock(mu_);
    const auto left = left_.find(relay.address);
    if (left == left_.end() || now >= left->second.until) relays.push_back(relay);
  }
  return relays;
}

void WeightSources::note_received(const std::string& source, const std::string& file, int64_t bytes,
                                  Time time) {
  if (bytes == 0) return;
  if (log_ != nullptr)
    log_->info("received {} from={} bytes={} seconds={:.2f}", file, source, bytes,
               seconds_of(time));
  MutexLock lock(mu_);
  received_[source] += bytes;
}

void WeightSources::leave(const wire::RelayAddress& relay, const std::string& file,
                          const std::string& why) {
  Left left;
  {
    MutexLock lock(mu_);
    Left& known = left_[relay.address];
    // Doubling, up to a bound: a relay that is gone for good costs less and less.
    known.pause = known.pause.count() == 0 ? options_.pause
                                           : std::min(2 * known.pause, options_.longest_pause);
    known.until = steady_now() + known.pause;
    left = known;
  }
  if (log_ != nullptr)
    log_->warning("relay {} at {} did not give {} ({}): it is left for {} s", relay.name,
                  relay.address, file, why, left.pause.count() / 1000);
}

void WeightSources::note_good(const wire::RelayAddress& relay) {
  MutexLock lock(mu_);
  left_.erase(relay.address);
}

std::map<std::string, int64_t> WeightSources::received() const {
  MutexLock lock(mu_);
  return received_;
}

}  // namespace tailrace
