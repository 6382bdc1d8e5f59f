#include "cli/commands/status_facts.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <system_error>

#include <nlohmann/json.hpp>

#include "core/base/enum_names.h"
#include "core/base/json_text.h"
#include "core/base/time.h"
#include "core/run/metrics.h"

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
  return {{"updates", facts.updates},
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

}  // namespace

std::optional<SupervisedFacts> supervised_facts(const RunPaths& paths, bool alone,
                                                int64_t published) {
  SupervisedFacts facts;
  facts.alone = alone;
  facts.checkpoint = newest_within(published < 0 ? paths.warm_up() : paths.checkpoints(), paths);
  // Where a run stands is told all the same when its metrics are damaged.
  const Result<std::vector<MetricsRow>> rows = read_metrics(paths.metrics());
  for (const MetricsRow& row : rows ? rows.value() : std::vector<MetricsRow>()) {
    const double* of = row.find("sft/updates");
    if (of == nullptr) continue;
    facts.of = static_cast<int64_t>(*of);
    facts.updates = std::max(facts.updates, row.step);
    if (const double* loss = row.find("sft/loss")) facts.loss = *loss;
    if (const double* loss = row.find("sft/eval_loss")) facts.eval_loss = *loss;
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

std::string status_json(const StatusFacts& facts, const State& state) {
  Json json = {{"run", facts.run}, {"state", facts.state}, {"about", facts.about}};
  // null: the journal is whole.
  json["damaged"] = facts.damage.empty() ? Json() : Json(facts.damage);
  for (const auto& [id, policy] : state.policies) add_policy(facts, state, policy, json);
  if (facts.supervised) json["supervised"] = supervised_json(*facts.supervised);
  // null: no step is done.
  json["health"] = facts.health.empty() ? Json() : Json(facts.health);
  json["findings"] = facts.findings;
  json["workers"] = Json::array();
  for (const auto& [id, worker] : state.workers)
    json["workers"].push_back(worker_json(state, id, worker));
  json["waits"] = facts.waits;
  json["quiet_seconds"] = seconds_of(facts.quiet);
  return json_text(json, 2);
}

}  // namespace tailrace
