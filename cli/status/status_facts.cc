#include "cli/status/status_facts.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/config/hardware_file.h"
#include "cli/inputs/resolved_run.h"
#include "cli/roles/endpoint.h"
#include "cli/status/run_state.h"
#include "cli/view/health.h"
#include "core/base/enum_names.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json_text.h"
#include "core/base/time.h"
#include "core/config/yaml_config.h"
#include "core/run/metrics.h"
#include "core/run/stage_row.h"
#include "scheduler/state/waits.h"

namespace tailrace {
namespace {

using Json = nlohmann::ordered_json;
using scheduler::State;

Json prompts_json(const scheduler::Policy& policy, std::optional<int32_t> dataset) {
  Json json = Json::object();
  for (const PromptCount& place : count_prompts(policy, dataset))
    json[std::string(place.key)] = place.count;
  return json;
}

Json worker_json(const State& state, const WorkerId& id, const scheduler::Worker& worker) {
  Json json = {{"name", id},
               {"role", name_of(worker.role)},
               {"connected", worker.connected},
               {"joined", worker.joined},
               {"stalled", worker.stalled}};
  if (!worker.site.pool.empty()) json["pool"] = worker.site.pool;
  if (!worker.site.cluster.empty()) json["cluster"] = worker.site.cluster;
  if (!worker.site.host.empty()) json["host"] = worker.site.host;
  if (!worker.site.numerics_class.empty()) json["numerics"] = worker.site.numerics_class;
  if (worker.role != Role::kTrainer) {
    json["leased"] = worker.leased;
    json["slots"] = worker.slots;
  }
  if (worker.role == Role::kRollout) {
    // null: without weights.
    json["version"] = worker.version < 0 ? Json() : Json(worker.version);
    if (worker.install) {
      json["installs"] = worker.install->version;
      if (worker.install->phase == scheduler::Install::Phase::kStaging)
        json["arrived_bytes"] = worker.install->bytes;
    }
    if (worker.rest) json["failed_fetches"] = worker.rest->times;
  }
  if (in_quarantine(state, id)) json["quarantine"] = state.health.at(id).reason;
  return json;
}

void add_policy(const StatusFacts& facts, const State& state, const scheduler::Policy& policy,
                Json& json) {
  json["step"] = std::max<int64_t>(0, policy.published);
  // null: the run ends with its data; no checkpoint yet.
  json["steps"] = state.config.steps > 0 ? Json(state.config.steps) : Json();
  json["checkpoint"] = policy.durable < 0 ? Json() : Json(policy.durable);
  json["prompts"] = prompts_json(policy, std::nullopt);
  for (size_t i = 0; i < facts.datasets.size(); ++i)
    json["datasets"][facts.datasets[i]] = prompts_json(policy, static_cast<int32_t>(i));
}

Json supervised_json(const SupervisedFacts& facts) {
  const auto or_null = [](const auto& value) { return value ? Json(*value) : Json(); };
  return {{"stage", facts.stage.number == 0 ? Json()
                                            : Json{{"number", facts.stage.number},
                                                   {"of", facts.stage.of},
                                                   {"name", facts.stage.name}}},
          {"kind", facts.kind.empty() ? Json() : Json(facts.kind)},
          {"updates", facts.updates},
          {"of", or_null(facts.of)},
          {"loss", or_null(facts.loss)},
          {"eval_loss", or_null(facts.eval_loss)},
          {"checkpoint", facts.checkpoint.empty() ? Json() : Json(facts.checkpoint)}};
}

// The newest in `folder`, by its path in the run; empty: none.
std::string newest_within(const std::filesystem::path& folder, const RunPaths& paths) {
  std::optional<int64_t> newest;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored))
    newest = std::max(newest, checkpoint_step(entry.path()));
  if (!newest) return "";
  return (folder / checkpoint_name(*newest)).lexically_relative(paths.root).string();
}

std::string how_it_stands(const State& state, const std::string& run, bool runs,
                          bool supervised_alone) {
  if (!state.halted.empty()) return "halted: " + state.halted;
  if (!state.end && !runs)
    return fmt::format(
        "no scheduler of it answers here; unless it runs on another machine, as somebody else, or "
        "is just being started, 'tailrace launch --run-dir {}' continues it",
        run);
  if (!state.end) return state.stopping ? "it is being stopped" : "it goes on";
  if (supervised_alone && state.end->reason != scheduler::RunEnd::Reason::kStopped)
    return "complete: all updates are done";
  switch (state.end->reason) {
    case scheduler::RunEnd::Reason::kSteps:
      return "complete: all steps are trained";
    case scheduler::RunEnd::Reason::kDataEnd:
      return "complete: the data has ended";
    case scheduler::RunEnd::Reason::kStopped:
      return "stopped; 'tailrace launch --run-dir' continues it";
  }
  return "";  // not reached
}

// As its config says; absent: it cannot be read. Where a run stands is told all the same.
std::optional<ResolvedRun> run_of(const RunPaths& paths) {
  try {
    RunOptions options;
    ConfigNode root = load_config(paths.config(), {});
    drop_simulate_section(root);
    bind_config(root, options);
    return resolve(std::move(options));
  } catch (const UserError&) {
    return std::nullopt;
  }
}

// By dataset, as the config of the run has them; without one they are numbered.
std::vector<std::string> names_of(const std::optional<ResolvedRun>& run, size_t num_datasets) {
  std::vector<std::string> names;
  if (run) names = dataset_names(run->datasets);
  for (size_t i = names.size(); i < num_datasets; ++i)
    names.push_back(fmt::format("dataset {}", i));
  return names;
}

// For programs.
std::string_view state_word(const State& state, bool runs) {
  if (!state.halted.empty()) return "halted";
  if (state.end)
    return state.end->reason == scheduler::RunEnd::Reason::kStopped ? "stopped" : "complete";
  if (!runs) return "interrupted";
  return state.stopping ? "stopping" : "running";
}

}  // namespace

std::optional<SupervisedFacts> supervised_facts(const RunPaths& paths, const RowFacts& rows,
                                                bool alone, const scheduler::Policy& policy) {
  SupervisedFacts facts;
  facts.alone = alone;
  facts.stage = policy.stage;
  const int64_t published = policy.published;
  facts.checkpoint = newest_within(published < 0 && policy.stage.number > 0
                                       ? paths.stage_checkpoints(policy.stage.name)
                                       : paths.checkpoints(),
                                   paths);
  const auto newest = [&](const std::string& name) {
    const auto found = rows.newest().find(name);
    return found == rows.newest().end() ? std::nullopt : std::optional(found->second);
  };
  // Rows of an earlier stage tell nothing of one that has just begun.
  const auto updates = rows.updates();
  if (updates && (policy.stage.number == 0 || updates->stage == policy.stage.number)) {
    facts.of = updates->of;
    facts.updates = updates->done;
    facts.kind = updates->kind;
    facts.loss = newest(fmt::format("{}/loss", updates->kind));
    facts.eval_loss = newest(fmt::format("{}/eval_loss", updates->kind));
  }
  if (!alone && (published >= 0 || !facts.of)) return std::nullopt;
  return facts;
}

std::vector<PromptCount> count_prompts(const scheduler::Policy& policy,
                                       std::optional<int32_t> dataset) {
  int64_t running = 0, ready = 0, parked = 0, queued = 0, long_queue = 0, handed = 0;
  for (const auto& [id, task] : policy.tasks) {
    if (dataset && id.dataset != *dataset) continue;
    running += task.place == scheduler::Place::kRunning;
    handed += task.place == scheduler::Place::kHandedOver;
  }
  std::array<int64_t, kEnumNames<scheduler::TaskEnd>.size()> ended{};
  for (int32_t index = 0; index < std::ssize(policy.datasets); ++index) {
    if (dataset && index != *dataset) continue;
    const scheduler::Dataset& one = policy.datasets[static_cast<size_t>(index)];
    ready += std::ssize(one.ready);
    parked += std::ssize(one.parked);
    queued += std::ssize(one.queued);
    long_queue += std::ssize(one.long_queue);
    for (size_t i = 0; i < ended.size(); ++i) ended[i] += one.ended[i];
  }
  std::vector<PromptCount> counts;
  for (size_t i = 0; i < ended.size(); ++i) {
    const std::string_view end = kEnumNames<scheduler::TaskEnd>[i];
    counts.push_back({end, end, ended[i]});
  }
  counts.push_back({"at_trainer", "at the trainer", handed});
  counts.push_back({"ready", "ready", ready});
  counts.push_back({"later_step", "complete, for a later step", parked});
  counts.push_back({"running", "running", running});
  counts.push_back({"queued", "to be sampled again", queued});
  counts.push_back({"long_round", "for a long round", long_queue});
  return counts;
}

RunSilence silence_of(const RunPaths& paths) {
  using FileTime = std::filesystem::file_time_type;
  std::error_code error;
  FileTime journal = FileTime::min();
  for (const auto& file : std::filesystem::directory_iterator(paths.journal(), error)) {
    const auto written = file.last_write_time(error);
    if (!error) journal = std::max(journal, written);
  }
  const auto rows = std::filesystem::last_write_time(paths.metrics(), error);
  const FileTime all = error ? journal : std::max(journal, rows);
  const auto now = FileTime::clock::now();
  // A disk may have another clock.
  const auto since = [&](FileTime written) {
    if (written > now || written == FileTime::min()) return Time{};
    return std::chrono::duration_cast<Time>(now - written);
  };
  return {since(journal), since(all)};
}

RowFacts row_facts_of(const RunPaths& paths) {
  const auto config = read_file(paths.config());
  RowFacts facts(config ? config.value() : "");
  const auto rows = read_metrics(paths.metrics());
  for (const MetricsRow& row : rows ? rows.value() : std::vector<MetricsRow>()) facts.add(row);
  return facts;
}

RunStatus read_status(const std::string& run, const RowFacts& rows) {
  const RunPaths paths{run};
  RunState found = read_run_state(paths);
  if (!found.state)
    throw UserError("{} has no journal; 'tailrace launch' makes a run directory.",
                    paths.root.string());
  const State& state = *found.state;
  // The journal's word on workers and waits is true now only while somebody writes it.
  const bool runs = is_running(paths.root);
  const std::optional<ResolvedRun> resolved = run_of(paths);
  const bool alone = resolved && resolved->supervised_only;
  const RunSilence silence = silence_of(paths);
  StatusFacts facts{.run = run,
                    .state = std::string(state_word(state, runs)),
                    .about = how_it_stands(state, run, runs, alone),
                    .damage = found.damage,
                    .quiet = silence.journal,
                    .silent = silence.all,
                    .datasets = {},
                    .waits = {},
                    .supervised = {},
                    .health = {},
                    .figures = {},
                    .findings = {},
                    .seconds_left = {}};
  const Health& health = rows.health();
  facts.health = health.line();
  facts.figures = health.figures();
  for (const Finding& finding : health.present()) facts.findings.push_back(finding.line());
  for (const auto& [id, policy] : state.policies) {
    if (policy.datasets.size() > 1) facts.datasets = names_of(resolved, policy.datasets.size());
    facts.supervised = supervised_facts(paths, rows, alone, policy);
  }
  // Not while steps are trained again behind which rows stand.
  if (runs && !state.end && !state.policies.empty() &&
      rows.last_step() <= state.policies.begin()->second.published)
    facts.seconds_left = rows.seconds_left(state.config.steps);
  if (!state.end)
    // The state's time stands at its last event. While the run lives its waits go on since then;
    // where it does not, their ages are those of its end.
    facts.waits = scheduler::waits_of(state, runs ? state.now + facts.quiet : state.now);
  // It is no wait: the updates are its work.
  if (facts.supervised && facts.supervised->of)
    std::ranges::replace(
        facts.waits, std::string(scheduler::kNoVersionYet),
        fmt::format("the trainer works on {} update {}", words_of_stage(facts.supervised->kind),
                    std::min(facts.supervised->updates + 1, *facts.supervised->of)));
  return {std::move(facts), std::move(*found.state), runs};
}

std::string status_json(const StatusFacts& facts, const State& state, int indent) {
  Json json = {{"run", facts.run}, {"state", facts.state}, {"about", facts.about}};
  // null: the journal is whole.
  json["damaged"] = facts.damage.empty() ? Json() : Json(facts.damage);
  for (const auto& [id, policy] : state.policies) add_policy(facts, state, policy, json);
  if (facts.supervised) json["supervised"] = supervised_json(*facts.supervised);
  // null: no step is done.
  json["health"] = facts.health.empty() ? Json() : Json(facts.health);
  json["figures"] = Json::array();
  for (const HealthFigure& figure : facts.figures)
    json["figures"].push_back({{"name", figure.name},
                               {"value", figure.value},
                               {"word", figure.word},
                               {"course", figure.course}});
  json["findings"] = facts.findings;
  // null: nobody knows.
  json["seconds_left"] = facts.seconds_left ? Json(*facts.seconds_left) : Json();
  json["workers"] = Json::array();
  for (const auto& [id, worker] : state.workers)
    json["workers"].push_back(worker_json(state, id, worker));
  json["waits"] = facts.waits;
  json["quiet_seconds"] = seconds_of(facts.quiet);
  json["silent_seconds"] = seconds_of(facts.silent);
  return json_text(json, indent);
}

}  // namespace tailrace
