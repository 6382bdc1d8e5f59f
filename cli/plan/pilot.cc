#include "cli/plan/pilot.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <signal.h>

#include "cli/plan/quiet_steps.h"
#include "cli/process/child_process.h"
#include "cli/process/supervisor.h"
#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/config/config_printer.h"
#include "core/model/parameter_files.h"
#include "core/model/parameters.h"
#include "core/text/tokenizer.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr int64_t kPilotSteps = 14, kFirstMeasured = 3;
constexpr int64_t kPilotTokens = 4;  // of an answer
constexpr auto kPilotEnds = 60s, kPilotLeaves = 10s;

ModelCreateSection tiny_policy(const RunOptions& options, const ModelConfig& model) {
  ModelCreateSection tiny;
  tiny.hidden_size = tiny.intermediate_size = 32;
  tiny.layers = tiny.heads = tiny.kv_heads = 1;
  tiny.tie_embeddings = true;
  tiny.max_positions =
      std::max<int64_t>(options.rollout.engine.max_context_tokens, model.max_positions);
  return tiny;
}

void wait_for(ChildProcess& child, const fs::path& log, QuietSteps& steps) {
  const Time begin = steady_now();
  bool told = false;
  for (;;) {
    if (const std::optional<ExitStatus> status = child.try_reap()) {
      if (status->ok()) return;
      std::string message = fmt::format("the pilot of the plan failed ({})", describe(*status));
      for (const std::string& line : last_lines(log, 5)) message += "\n       " + line;
      throw UserError("{}", message);
    }
    steps.look();
    const Time passed = steady_now() - begin;
    // Processes that are still there then die with `child`.
    if (passed > kPilotEnds + kPilotLeaves)
      throw UserError(
          "the pilot of the plan was not done within {} s: environments or rewards take longer",
          kPilotEnds.count());
    if (passed > kPilotEnds && !std::exchange(told, true)) child.send_signal(SIGTERM);
    std::this_thread::sleep_for(5ms);
  }
}

}  // namespace

RunOptions pilot_options(const RunOptions& options, const ModelConfig& model,
                         const fs::path& folder) {
  // Environments, rewards, workers and limits are the run's. The policy is as small as can be, so
  // that the time of a step is what goes on beside the model.
  RunOptions pilot = options;
  const ModelCreateSection tiny = tiny_policy(options, model);
  if (options.model.creates()) {
    pilot.model.create = tiny;
  } else {
    const fs::path stand_in = folder / "policy";
    const ModelConfig config = model_config(tiny, model.vocab_size);
    const ParameterLayout layout(config);
    Parameters parameters(layout);
    init_parameters(config, 0, parameters);
    save_model(stand_in, config, parameters);
    text::copy_tokenizer(options.model.path, stand_in, {});
    pilot.model.path = stand_in.string();
  }
  pilot.model.compute = Compute::kAuto;
  pilot.lora = {};
  // The tiny policy has no experts that could be recorded or balanced.
  pilot.algo.router_replay = RouterReplay::kOff;
  pilot.train.balance_coef = pilot.train.balance_bias_rate = 0;
  pilot.train.trace_steps = 0;
  pilot.sft = {};
  pilot.reward_model = {};
  pilot.preference = {};
  pilot.distill = {};
  pilot.stages.clear();
  // Teachers of stages are named by nobody then.
  std::erase_if(pilot.policies, [&](const PolicySection& policy) {
    return policy.name != options.algo.distill.policy;
  });
  pilot.eval = {};
  // Synchronous: sampling and training of a step follow each other, so that their times can be told
  // apart.
  pilot.scheduler.mode = {};
  pilot.scheduler.replace_zero_signal = false;
  pilot.run.name = "pilot";
  pilot.run.dir.clear();
  pilot.run.listen.clear();
  pilot.run.steps = kPilotSteps;
  pilot.run.epochs = 0;
  // No checkpoint falls into the steps that are measured.
  pilot.save.interval_steps = 2 * kPilotSteps;
  pilot.optim = {};
  const int64_t action = pilot.rollout.max_action_tokens;
  pilot.rollout.max_action_tokens = action > 0 ? std::min(action, kPilotTokens) : kPilotTokens;
  for (DatasetSection& dataset : pilot.datasets) dataset.eval_dataset.clear();
  pilot.env.eval_dataset.clear();
  return pilot;
}

QuietStep run_pilot(const ResolvedRun& pilot, const fs::path& program, const fs::path& folder,
                    const RunPaths& paths) {
  const fs::path config = folder / "pilot.yaml", log = folder / "pilot.log";
  if (auto written = write_file_atomic(config, print_config(pilot.options)); !written)
    throw UserError("{}", written.failure().message);
  auto child = ChildProcess::spawn(
      {program.string(), "launch", config.string(), "--run-dir", paths.root.string()}, log);
  if (!child) throw UserError("{}", child.failure().message);
  QuietSteps steps(paths, pilot.threads, kFirstMeasured);
  wait_for(child.value(), log, steps);
  const std::optional<QuietStep> step = steps.mean();
  if (!step) throw UserError("the pilot of the plan has trained no step");
  return *step;
}

}  // namespace tailrace
