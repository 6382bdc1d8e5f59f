#include "cli/run/gate_role.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "cli/run/bundle.h"
#include "cli/run/pools.h"
#include "cli/run/role_locks.h"
#include "core/base/error.h"
#include "core/gate/gate.h"
#include "core/text/utf8.h"

namespace tailrace {
namespace {

using wire::GreetingAnswer;

// The names of the workers that have joined, each held as long as its worker may come back.
class Guests {
 public:
  Guests(const RunPaths& run, const RunOptions& options) : run_(run), options_(options) {}

  GreetingAnswer admit(const wire::Greeting& greeting) {
    try {
      return welcome(greeting);
    } catch (const UserError& error) {
      return {.kind = GreetingAnswer::Kind::kRefused, .name = {}, .reason = error.what()};
    }
  }

  void release(const std::string& name) {
    roles_.erase(name);
    logs_.erase(name);
  }

  void write(const std::string& name, std::span<const wire::LogLine> lines) {
    auto& log = logs_[name];
    const HeldRole& role = roles_.at(name);
    if (!log)
      log = std::make_unique<Log>(name, run_.log(name_of(role.name.kind), role.name.index),
                                  options_.log.level);
    // What a worker says may be anything.
    for (const wire::LogLine& line : lines) log->write(line.level, text::printable(line.text));
    log->flush();
  }

 private:
  GreetingAnswer welcome(const wire::Greeting& greeting) {
    const bool samples = greeting.role == Role::kRollout;
    std::string pool, cluster = greeting.cluster;
    check_cluster(cluster);
    if (samples) {
      const PoolSection found = pool_to_join(options_, greeting.pool);
      pool = found.name;
      if (cluster.empty()) cluster = found.cluster;
      if (!found.cluster.empty() && cluster != found.cluster)
        throw UserError("--cluster is {}, and the workers of pool {} are in {}", cluster, pool,
                        found.cluster);
    } else if (!greeting.pool.empty()) {
      throw UserError("--pool has no use here: a reward worker is in no pool");
    }
    HeldRole role = hold(samples ? RoleKind::kRollout : RoleKind::kReward, greeting.name);
    const std::string name = role.name.text();
    roles_.insert_or_assign(name, std::move(role));
    return {.kind = GreetingAnswer::Kind::kWelcome,
            .name = name,
            .reason = {},
            .run = options_.run.name,
            .cluster = cluster,
            .pool = pool};
  }

  // Where the config lists clusters, it is one of them.
  void check_cluster(const std::string& cluster) const {
    std::vector<std::string> names;
    for (const ClusterSection& known : options_.clusters) names.push_back(known.name);
    if (cluster.empty() || names.empty() || std::ranges::find(names, cluster) != names.end())
      return;
    throw UserError("--cluster is {}, and the run has {}", cluster, fmt::join(names, ", "));
  }

  // The name that it had under an earlier gate, which went with that one's process.
  HeldRole hold(RoleKind kind, const std::string& before) {
    if (before.empty()) return hold_role_to_join(kind, options_, run_);
    auto role = hold_role_again(kind, before, options_, run_);
    if (!role) throw UserError("its name {} is another worker's by now. Join again", before);
    return std::move(*role);
  }

  const RunPaths& run_;
  const RunOptions& options_;
  std::map<std::string, HeldRole> roles_;
  std::map<std::string, std::unique_ptr<Log>> logs_;
};

}  // namespace

std::vector<std::string> check_gate(const RunOptions& options) {
  if (options.run.listen.empty()) return {};
  const wire::KeyFolder keys{options.run.keys};
  std::error_code error;
  if (!std::filesystem::exists(keys.server(), error))
    throw UserError::at("run.keys",
                        "is {}, which has no server.key.\n       Try 'tailrace keys new NAME --dir "
                        "{}', with the name of the first machine that will join.",
                        options.run.keys, options.run.keys);
  try {
    (void)wire::read_secret_key(keys.server());
  } catch (const UserError& fault) {
    throw fault.about("run.keys");
  }
  Log log("launch", "");
  try {
    const Gate probe({.listen = options.run.listen, .scheduler = {}, .keys = keys}, log);
  } catch (const UserError& fault) {
    throw UserError::at("run.listen",
                        "cannot be opened: {}.\n       Try another port, or * for all addresses of "
                        "this machine.",
                        fault.what());
  }
  for (const auto& entry : std::filesystem::directory_iterator(keys.allowed(), error))
    if (entry.path().extension() == ".pub") return {};
  return {fmt::format("nobody may join yet: {} has no key ('tailrace keys new NAME --dir {}')",
                      keys.allowed().string(), options.run.keys)};
}

ExitCode run_gate(const RunPaths& run, const RunOptions& options, const std::string& scheduler,
                  Log& log, const std::stop_token& stop) {
  const Bundle bundle(run, options);
  bundle.write_listings();
  Guests guests(run, options);
  Gate gate(
      {.listen = options.run.listen,
       .scheduler = scheduler,
       .keys = {options.run.keys},
       .find = [&](const std::string& name) { return bundle.find(name); },
       .admit = [&](const wire::Greeting& greeting,
                    const std::string&) { return guests.admit(greeting); },
       .release = [&](const std::string& name) { guests.release(name); },
       .write_lines = [&](const std::string& name,
                          std::span<const wire::LogLine> lines) { guests.write(name, lines); }},
      log);
  log.info("workers of other hosts may join at {}", options.run.listen);
  gate.run(stop);
  return kExitDone;
}

}  // namespace tailrace
