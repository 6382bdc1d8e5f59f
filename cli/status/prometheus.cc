#include "cli/status/prometheus.h"

#include <cctype>
#include <cmath>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/enum_names.h"
#include "core/base/join_texts.h"
#include "core/base/time.h"

namespace tailrace {
namespace {

using Labels = std::vector<std::pair<std::string_view, std::string>>;

std::string metric_name(std::string_view name) {
  std::string out = "tailrace_";
  for (const char c : name) out += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return out;
}

// As a label's value and a HELP line have it; only a value's quotes need more.
std::string escaped(std::string_view text, bool quotes) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || (quotes && c == '"')) out += '\\';
    out += c == '\n' ? "\\n" : std::string(1, c);
  }
  return out;
}

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

// The families, each once with its type before its samples.
class Exposition {
 public:
  void add(const std::string& name, std::string_view help, const Labels& labels, double value) {
    if (names_.insert(name).second)
      text_ +=
          fmt::format("# HELP {0} {1}\n# TYPE {0} gauge\n", name, escaped(help, /*quotes=*/false));
    std::vector<std::string> parts;
    for (const auto& [label, said] : labels)
      if (!said.empty())
        parts.push_back(fmt::format("{}=\"{}\"", label, escaped(said, /*quotes=*/true)));
    text_ += name;
    if (!parts.empty()) text_ += fmt::format("{{{}}}", join_texts(parts, ","));
    text_ += fmt::format(" {}\n", number(value));
  }
  void comment(const std::string& words) {
    text_ += fmt::format("# {}\n", escaped(words, /*quotes=*/false));
  }
  bool has(const std::string& name) const { return names_.contains(name); }
  std::string take() && { return std::move(text_); }

 private:
  std::string text_;
  std::set<std::string> names_;
};

// A family's samples stand together, so each is a loop of its own.
void add_workers(const RunStatus& status, Exposition& out) {
  const scheduler::State& state = status.state;
  const auto each = [&](const std::string& name, std::string_view help, const auto& value_of) {
    for (const auto& [id, worker] : state.workers) {
      const std::optional<double> value = value_of(id, worker);
      if (!value) continue;
      out.add(name, help,
              {{"worker", id},
               {"role", std::string(name_of(worker.role))},
               {"pool", worker.site.pool},
               {"cluster", worker.site.cluster},
               {"host", worker.site.host}},
              *value);
    }
  };
  using scheduler::Worker;
  using Value = std::optional<double>;
  each("tailrace_worker_connected", "1: the scheduler hears of the worker",
       [&](const WorkerId&, const Worker& worker) -> Value {
         return status.runs && worker.connected;
       });
  each("tailrace_worker_stalled", "1: it makes no progress",
       [](const WorkerId&, const Worker& worker) -> Value { return worker.stalled; });
  each("tailrace_worker_quarantined", "1: it gets no work for a while",
       [&](const WorkerId& id, const Worker&) -> Value { return in_quarantine(state, id); });
  each("tailrace_worker_slots", "attempts that it plays at once",
       [](const WorkerId&, const Worker& worker) -> Value {
         if (worker.role == Role::kTrainer) return std::nullopt;
         return worker.slots;
       });
  each("tailrace_worker_leased", "attempts that it plays now",
       [](const WorkerId&, const Worker& worker) -> Value {
         if (worker.role == Role::kTrainer) return std::nullopt;
         return worker.leased;
       });
  each("tailrace_worker_version", "of its weights",
       [](const WorkerId&, const Worker& worker) -> Value {
         if (worker.role != Role::kRollout || worker.version < 0) return std::nullopt;
         return static_cast<double>(worker.version);
       });
}

void add_run(const RunStatus& status, Exposition& out) {
  const StatusFacts& facts = status.facts;
  out.add("tailrace_run", "1, with where the run stands as a label",
          {{"run", facts.run}, {"state", facts.state}}, 1);
}

void add_steps(const RunStatus& status, Exposition& out) {
  const StatusFacts& facts = status.facts;
  if (status.runs)
    out.add("tailrace_silent_seconds", "since the scheduler wrote an event or a row of metrics", {},
            seconds_of(facts.silent));
  if (facts.supervised) {
    out.add("tailrace_supervised_update", "supervised updates that are done", {},
            static_cast<double>(facts.supervised->updates));
    if (facts.supervised->of)
      out.add("tailrace_supervised_updates", "supervised updates in all", {},
              static_cast<double>(*facts.supervised->of));
  }
  out.add("tailrace_findings", "how many findings about the health of the run hold now", {},
          static_cast<double>(facts.findings.size()));
  for (const auto& [id, policy] : status.state.policies) {
    out.add("tailrace_step", "steps that are trained", {},
            static_cast<double>(std::max<int64_t>(0, policy.published)));
    if (status.state.config.steps > 0)
      out.add("tailrace_steps", "steps of the whole run", {},
              static_cast<double>(status.state.config.steps));
    if (policy.durable >= 0)
      out.add("tailrace_checkpoint", "step of the newest checkpoint", {},
              static_cast<double>(policy.durable));
    for (const PromptCount& place : count_prompts(policy, std::nullopt))
      out.add("tailrace_prompts", "prompts that were begun, by where they are",
              {{"place", std::string(place.key)}}, static_cast<double>(place.count));
  }
}

}  // namespace

std::string prometheus_text(const RunStatus& status, const std::map<std::string, double>& newest) {
  Exposition out;
  add_run(status, out);
  if (status.facts.state == "unknown") return std::move(out).take();
  add_steps(status, out);
  add_workers(status, out);
  for (const auto& [name, value] : newest) {
    const std::string as = metric_name(name);
    if (out.has(as))
      out.comment(fmt::format("{} is left out: {} is there", name, as));
    else
      out.add(as, name, {}, value);
  }
  return std::move(out).take();
}

}  // namespace tailrace
