#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <sys/stat.h>

#include "cli/commands/commands.h"
#include "cli/commands/leave.h"
#include "cli/commands/status_sample.h"
#include "cli/config/counted.h"
#include "cli/status/live_page.h"
#include "cli/status/status_facts.h"
#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/join_texts.h"
#include "core/base/machine.h"
#include "core/base/printable.h"
#include "core/base/time.h"
#include "core/config/flags.h"
#include "core/run/run_directory.h"
#include "scheduler/state/state.h"

namespace tailrace {
namespace {

using scheduler::State;

// The text may quote what a worker said.
void line(std::string_view label, const std::string& text) {
  fmt::print("{:<9} {}\n", label, printable(text));
}

// The progress of weights that come from afar; empty: nothing is told of them.
std::string arrived(const scheduler::Install& install) {
  const bool comes = install.phase == scheduler::Install::Phase::kStaging && install.bytes > 0;
  return comes ? fmt::format(" ({} of it arrived)", format_bytes(install.bytes)) : "";
}

std::string describe(const State& state, const WorkerId& id, const scheduler::Worker& worker) {
  std::vector<std::string> parts;
  if (worker.joined) parts.push_back("joined");
  if (!worker.connected) parts.push_back("away");
  if (!worker.site.pool.empty()) parts.push_back("pool " + worker.site.pool);
  if (!worker.site.cluster.empty()) parts.push_back("cluster " + worker.site.cluster);
  if (!worker.site.host.empty()) parts.push_back("host " + worker.site.host);
  if (worker.stalled) parts.push_back("makes no progress");
  if (worker.role != Role::kTrainer)
    parts.push_back(fmt::format("{} of {} slots", worker.leased, worker.slots));
  if (worker.role == Role::kRollout) {
    parts.push_back(worker.version < 0 ? "without weights"
                                       : fmt::format("version {}", worker.version));
    if (worker.install)
      parts.push_back(fmt::format("{} version {}{}", is_asked(worker) ? "installs" : "has staged",
                                  worker.install->version, arrived(*worker.install)));
    if (worker.rest)
      parts.push_back(
          fmt::format("could not get weights, {} in a row", counted(worker.rest->times, "time")));
  }
  if (!worker.site.numerics_class.empty()) parts.push_back(worker.site.numerics_class);
  if (in_quarantine(state, id)) parts.push_back("in quarantine: " + state.health.at(id).reason);
  return join_texts(parts, ", ");
}

// Places without prompts are left out.
std::string describe_prompts(const scheduler::Policy& policy, std::optional<int32_t> dataset) {
  std::vector<std::string> parts;
  for (const PromptCount& place : count_prompts(policy, dataset))
    if (place.count > 0) parts.push_back(fmt::format("{} {}", place.count, place.words));
  return parts.empty() ? "none begun" : join_texts(parts, ", ");
}

std::string describe(const SupervisedFacts& facts) {
  std::string text = facts.of ? fmt::format("{} of {}", facts.updates, *facts.of) : "none yet";
  if (facts.stage.of > 1)
    text = fmt::format("stage {} of {}, {}: {}", facts.stage.number, facts.stage.of,
                       facts.stage.name, text);
  if (facts.loss) text += fmt::format(", loss {:.3f}", *facts.loss);
  if (facts.eval_loss) text += fmt::format(", held-out loss {:.3f}", *facts.eval_loss);
  return text + fmt::format(", newest checkpoint {}",
                            facts.checkpoint.empty() ? "none" : facts.checkpoint);
}

void show_text(const StatusFacts& facts, const State& state, bool runs) {
  if (!facts.damage.empty())
    line("damaged", facts.damage + ". What follows is the state before the damage");
  line("run", fmt::format("{}: {}", facts.run, facts.about));
  if (facts.supervised) line("updates", describe(*facts.supervised));
  for (const auto& [id, policy] : state.policies) {
    if (facts.supervised && facts.supervised->alone) continue;
    line("step",
         fmt::format("{}{}, newest checkpoint {}", std::max<int64_t>(0, policy.published),
                     state.config.steps > 0 ? fmt::format(" of {}", state.config.steps) : "",
                     policy.durable < 0 ? "none" : std::to_string(policy.durable)));
    line("prompts", describe_prompts(policy, std::nullopt));
    for (size_t i = 0; i < facts.datasets.size(); ++i)
      line("", fmt::format("{}: {}", facts.datasets[i],
                           describe_prompts(policy, static_cast<int32_t>(i))));
  }
  if (!facts.health.empty()) line("health", facts.health);
  for (const std::string& finding : facts.findings) line("", finding);
  std::string_view label = runs || state.end ? "workers" : "had";
  for (const auto& [id, worker] : state.workers) {
    const std::string text = describe(state, id, worker);
    line(label, text.empty() ? id : fmt::format("{}: {}", id, text));
    label = "";
  }
  if (state.end) return;
  line(runs ? "waits" : "waited", join_texts(facts.waits, "; "));
  line("", fmt::format("the scheduler's last event was {:.1f} s ago", seconds_of(facts.quiet)));
}

void show_status(const std::string& run, bool json) {
  const RunStatus status = read_status(run, row_facts_of(RunPaths{run}));
  if (json) return fmt::print("{}\n", status_json(status.facts, status.state));
  show_text(status.facts, status.state, status.runs);
}

// Not by the command line, which every user of the machine can read. Empty: a new one.
std::string key_of(const std::string& file) {
  if (file.empty()) return "";
  struct stat status {};
  if (::stat(file.c_str(), &status) == 0 && (status.st_mode & 077) != 0)
    throw UserError("--key-file: others can read {}; chmod 600 it.", file);
  const auto text = read_file(file);
  if (!text) throw UserError("--key-file: {}", text.failure().message);
  const std::string key = text.value().substr(0, text.value().find_first_of("\r\n"));
  if (key.empty()) throw UserError("--key-file: the first line of {} is empty.", file);
  return key;
}

// Until a person ends it.
void serve_page(const std::string& run, const LivePageOptions& options) {
  // Before the server's thread, so that it leaves the signals to this.
  const Signals signals{SIGINT, SIGTERM, SIGHUP};
  const SteadyClock clock;
  LivePage page(run, options);
  fmt::print("{}\n", page.url());
  fmt::print(stderr,
             "For this machine alone; from another one: ssh -L {0}:127.0.0.1:{0} HOST. Ctrl-C ends "
             "the page, the run goes on.\n",
             page.port());
  std::fflush(stdout);
  while (!signals.wait()) page.step(clock.now());
}

}  // namespace

void add_status(Command& program) {
  auto run = std::make_shared<std::string>();
  auto sample = std::make_shared<std::vector<std::string>>();
  auto json = std::make_shared<bool>(false), web = std::make_shared<bool>(false);
  auto port = std::make_shared<int64_t>(0);
  auto key_file = std::make_shared<std::string>();
  Command& command = program.command(
      "status", "Where a run stands, and who waits for whom since when; or one sample of it");
  command.option("run", *run, {.help = "run directory", .value = "RUN", .required = true});
  command.option("--sample", *sample,
                 {.help = "one sample instead: who sampled and scored it when, and its tokens as "
                          "they were trained. Its name as logs and samples.jsonl print it, or "
                          "enough of it: prompt=12 member=3",
                  .value = "KEY"});
  command.option("--json", *json,
                 {.help = "one JSON object, with the same facts, of a sample with every digit"});
  command.option("--web", *web,
                 {.help = "a page for the browser instead, which goes on with the run; and "
                          "/metrics for Prometheus",
                  .excludes = {"--sample", "--json"}});
  command.option(
      "--port", *port,
      {.help = "of the page, at 127.0.0.1; 0: any that is free", .max = 65535, .needs = "--web"});
  command.option(
      "--key-file", *key_file,
      {.help = "a file with the key of the page's address, which nobody else can read: at "
               "least 16 letters, digits or -._~; without it a new one",
       .value = "FILE",
       .needs = "--web"});
  command.footer(
      "Reads the journal, of a living run too; for a sample RUN/timeline.jsonl "
      "(scheduler.timeline_rows) and\nRUN/traces (train.trace_steps).\n\n"
      "Examples:\n  tailrace status runs/quickstart\n"
      "  tailrace status runs/quickstart --web\n"
      "  tailrace status runs/quickstart --sample prompt=12 member=3");
  command.action([run, sample, json, web, port, key_file, &command] {
    if (*web)
      serve_page(*run, {.port = static_cast<uint16_t>(*port), .key = key_of(*key_file)});
    else if (command.given("--sample"))
      show_sample(*run, *sample, *json);
    else
      show_status(*run, *json);
    return kExitDone;
  });
}

}  // namespace tailrace
