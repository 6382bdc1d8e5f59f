#include "cli/roles/gate_role.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/config/pools.h"
#include "cli/roles/bundle.h"
#include "cli/roles/role_locks.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/join_texts.h"
#include "core/base/json_file.h"
#include "core/gate/gate.h"

namespace tailrace {
namespace {

using wire::GreetingAnswer;

// The names of the workers that have joined, each held as long as its worker may come back.
class Guests {
 public:
  Guests(const RunPaths& run, const ResolvedRun& resolved)
      : run_(run), resolved_(resolved), options_(resolved.options) {}

  GreetingAnswer admit(const wire::Greeting& greeting) {
    GreetingAnswer answer;
    try {
      answer = place(greeting);
    } catch (const UserError& error) {
      return {.kind = GreetingAnswer::Kind::kRefused, .name = {}, .reason = error.what()};
    }
    try {
      HeldRole role = hold_role_to_join(kind_of(greeting.role), resolved_, run_);
      answer.name = role.name.text();
      roles_.insert_or_assign(answer.name, std::move(role));
      return answer;
    } catch (const UserError& error) {
      // No name is free, or the disk is full: that may pass.
      return {.kind = GreetingAnswer::Kind::kLater, .name = {}, .reason = error.what()};
    }
  }

  // Workers of an earlier gate whose names are still theirs.
  std::vector<AdmittedWorker> restore(Log& log) {
    std::vector<AdmittedWorker> restored;
    try {
      if (!std::filesystem::exists(run_.guests())) return restored;
      // A gate that was started again holds the names of the workers that may still be there: given
      // to others, two workers would answer under one name.
      for (const auto& row : read_proved_json(run_.guests()).at("workers")) {
        AdmittedWorker worker = read_worker(row);
        const auto name = parse_role_name(worker.answer.name);
        auto role = name ? hold_role_again(*name, resolved_, run_) : std::nullopt;
        if (!role) continue;
        roles_.insert_or_assign(worker.answer.name, std::move(*role));
        restored.push_back(std::move(worker));
      }
    } catch (const std::exception& error) {
      log.warning("{}: workers that had joined before have to join again", error.what());
    }
    return restored;
  }

  void remember(std::span<const AdmittedWorker> workers) const {
    nlohmann::json rows = nlohmann::json::array();
    for (const AdmittedWorker& worker : workers) rows.push_back(json_of(worker));
    if (auto written = write_file_atomic(run_.guests(), to_proved_json({{"workers", rows}}));
        !written)
      throw UserError("{}", written.failure().message);
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
    // A worker may say anything; the log shows control characters.
    for (const wire::LogLine& line : lines) log->write(line.level, line.text);
    log->flush();
  }

 private:
  static RoleKind kind_of(Role role) {
    return role == Role::kRollout ? RoleKind::kRollout : RoleKind::kReward;
  }

  nlohmann::json json_of(const AdmittedWorker& worker) const {
    return {{"name", worker.answer.name},
            {"user", worker.user},
            {"incarnation", worker.greeting.incarnation},
            {"role", name_of(worker.greeting.role)},
            {"pool", worker.answer.pool},
            {"cluster", worker.answer.cluster},
            {"host", worker.greeting.host},
            {"relay", worker.greeting.relay}};
  }

  AdmittedWorker read_worker(const nlohmann::json& row) const {
    AdmittedWorker worker;
    worker.user = row.at("user").get<std::string>();
    worker.greeting.incarnation = row.at("incarnation").get<uint64_t>();
    worker.greeting.role = row.at("role").get<std::string>() == name_of(Role::kReward)
                               ? Role::kReward
                               : Role::kRollout;
    worker.greeting.host = row.at("host").get<std::string>();
    worker.greeting.relay = row.at("relay").get<std::string>();
    worker.answer = {.kind = GreetingAnswer::Kind::kWelcome,
                     .name = row.at("name").get<std::string>(),
                     .run = options_.run.name,
                     .cluster = row.at("cluster").get<std::string>(),
                     .pool = row.at("pool").get<std::string>()};
    return worker;
  }

  // Where a worker is to work; without a name. Throws UserError where it is a mistake.
  GreetingAnswer place(const wire::Greeting& greeting) const {
    const bool samples = greeting.role == Role::kRollout;
    std::string pool, cluster = greeting.cluster;
    check_cluster(cluster);
    if (samples) {
      const PoolSection found = pool_to_join(resolved_.pools, greeting.pool);
      pool = found.name;
      if (cluster.empty()) cluster = found.cluster;
      if (!found.cluster.empty() && cluster != found.cluster)
        throw UserError("--cluster is {}, and the workers of pool {} are in {}", cluster, pool,
                        found.cluster);
    } else if (!greeting.pool.empty()) {
      throw UserError("--pool has no use here: a reward worker is in no pool");
    }
    return {.kind = GreetingAnswer::Kind::kWelcome,
            .name = {},
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
    throw UserError("--cluster is {}, and the run has {}", cluster, join_texts(names, ", "));
  }

  const RunPaths& run_;
  const ResolvedRun& resolved_;
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
    throw UserError::at(
        "run.keys",
        "is {}, which has no server.key.\n       Try 'tailrace worker keys new NAME --dir "
        "{}', with the name of the first machine that will join.",
        options.run.keys, options.run.keys);
  try {
    (void)wire::read_secret_key(keys.server());
  } catch (const UserError& fault) {
    throw fault.about("run.keys");
  }
  // Workers know the run by the other file.
  if (std::filesystem::exists(keys.server_public(), error) &&
      wire::read_public_key(keys.server_public()) !=
          wire::read_secret_key(keys.server()).public_key)
    throw UserError::at("run.keys", "is {}, whose server.key and server.pub are of two pairs.",
                        options.run.keys);
  Log log("launch", "");
  try {
    // Opened for a moment: a port that somebody has is said now, and not by a process of the run
    // that breaks again and again.
    const Gate probe({.listen = options.run.listen, .scheduler = {}, .keys = keys}, log);
  } catch (const UserError& fault) {
    throw UserError::at("run.listen",
                        "cannot be opened: {}.\n       Try another port, or * for all addresses of "
                        "this machine.",
                        fault.what());
  }
  for (const auto& entry : std::filesystem::directory_iterator(keys.allowed(), error))
    if (entry.path().extension() == ".pub") return {};
  return {
      fmt::format("nobody may join yet: {} has no key ('tailrace worker keys new NAME --dir {}')",
                  keys.allowed().string(), options.run.keys)};
}

ExitCode run_gate(const RunPaths& run, const ResolvedRun& resolved, const std::string& scheduler,
                  Log& log, const std::stop_token& stop) {
  const RunOptions& options = resolved.options;
  const Bundle bundle(run, resolved);
  bundle.write_listings();
  Guests guests(run, resolved);
  Gate gate(
      {.listen = options.run.listen,
       .scheduler = scheduler,
       .keys = {options.run.keys},
       .find = [&](const std::string& name) { return bundle.find(name); },
       .admit = [&](const wire::Greeting& greeting,
                    const std::string&) { return guests.admit(greeting); },
       .admitted = guests.restore(log),
       .remember = [&](std::span<const AdmittedWorker> workers) { guests.remember(workers); },
       .may_have = [&](Role role, const std::string& name) { return bundle.is_for(role, name); },
       .release = [&](const std::string& name) { guests.release(name); },
       .write_lines = [&](const std::string& name,
                          std::span<const wire::LogLine> lines) { guests.write(name, lines); }},
      log);
  log.info("workers of other hosts may join at {}", options.run.listen);
  gate.run(stop);
  return kExitDone;
}

}  // namespace tailrace
