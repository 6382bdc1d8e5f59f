#include "cli/inputs/agent_trial.h"

#include <condition_variable>
#include <filesystem>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/json_text.h"
#include "core/base/unique_number.h"
#include "core/http/server.h"
#include "core/text/dataset.h"
#include "kernels/base/mutex.h"
#include "rollout/agent/agent_processes.h"
#include "sandbox/process/command.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using sandbox::AgentProgram;

// Stands where the key of an episode stands (Gateway::base_url()), so that an agent is tried with
// the kind of URL that it will have.
constexpr const char* kKey = "tr-trial";
constexpr int64_t kSeat = 1;

// In the place of the policy: it hears that it is asked, and does not answer.
class SilentPolicy {
 public:
  SilentPolicy()
      : server_({}, [this](const http::Request&, http::Reply reply) { hear(std::move(reply)); }) {}

  http::Server& server() { return server_; }
  std::string url(bool is_isolated) const {
    return fmt::format("http://127.0.0.1:{}/s/{}/v1", is_isolated ? kSandboxPort : server_.port(),
                       kKey);
  }
  bool wait(Time longest) {
    MutexLock lock(mutex_);
    return asked_.wait_for(lock.native(), longest, [&] { return !calls_.empty(); });
  }

 private:
  // Kept, as a reply that nobody holds is an error that its client would meet.
  void hear(http::Reply reply) {
    MutexLock lock(mutex_);
    calls_.push_back(std::move(reply));
    asked_.notify_one();
  }

  Mutex mutex_;
  std::condition_variable asked_;
  std::vector<http::Reply> calls_ TR_GUARDED_BY(mutex_);
  http::Server server_;  // last: its thread ends first
};

std::string first_task(const RunDataset& dataset, const text::RowLimits& limits, uint64_t seed) {
  ordered_json row;
  const RowsFile file = rows_of(dataset, /*held_out=*/dataset.dataset.empty());
  if (!file.file.empty()) {
    const auto rows = text::read_dataset(file.file, file.columns, limits);
    if (!rows.empty()) row = parse_ordered_json(rows.front().json);
  }
  return json_text(
      ordered_json{{"episode", 1}, {"seed", seed}, {"row", row}, {"evaluates", false}});
}

class TrialFolder {
 public:
  ~TrialFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  fs::path path() const { return path_; }

 private:
  const fs::path path_ =
      fs::temp_directory_path() / fmt::format("tailrace-trial-{:016x}", unique_number());
};

enum class Verdict { kAsked, kSlow };

// Throws UserError where it ends.
Verdict try_agent(const std::shared_ptr<const AgentProgram>& program, const std::string& key,
                  std::string task, uint64_t seed, Time patience) {
  SilentPolicy policy;
  const TrialFolder folder;
  // Its last words are in the message.
  AgentProcesses processes(folder.path(), &policy.server(), /*logs=*/false);
  processes.start({.seat = kSeat,
                   .episode = 1,
                   .program = program,
                   .base_url = policy.url(program->is_isolated),
                   .api_key = kKey,
                   .task = std::move(task),
                   .seed = seed});
  for (const Time until = steady_now() + patience; steady_now() < until;) {
    if (policy.wait(std::chrono::milliseconds(20))) return Verdict::kAsked;
    for (const AgentEnd& end : processes.collect()) {
      // Its last question and its end may come together.
      if (policy.wait(std::chrono::milliseconds(20))) return Verdict::kAsked;
      throw UserError::at(key, "is '{}', which in a first episode, before the run, {}.",
                          sandbox::shown({.words = program->run}),
                          end.failure.empty()
                              ? "has ended without a call to the policy (OPENAI_BASE_URL)"
                              : "fails before its first call to the policy: " + end.failure);
    }
  }
  return Verdict::kSlow;
}

}  // namespace

std::vector<std::string> try_agents(const ResolvedRun& run,
                                    const sandbox::EnvironmentRegistry& environments,
                                    Time patience) {
  std::vector<std::string> notes;
  if (run.rollout_workers == 0) return notes;
  const RunOptions& options = run.options;
  for (const RunDataset& dataset : run.datasets) {
    const auto program = environments.source(dataset.env, dataset.settings)->agent();
    if (program == nullptr) continue;
    const std::string key = dataset.key("agent.command");
    const uint64_t seed = sandbox::task_seed(static_cast<uint64_t>(options.run.seed), false, 0);
    const Verdict verdict =
        try_agent(program, key, first_task(dataset, options.files.limits(), seed), seed, patience);
    if (verdict == Verdict::kSlow)
      notes.push_back(
          fmt::format("{} is '{}', which has not asked the policy within {:g} s of a first episode",
                      key, sandbox::shown({.words = program->run}), seconds_of(patience)));
  }
  return notes;
}

}  // namespace tailrace
