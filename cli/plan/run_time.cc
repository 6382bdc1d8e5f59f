#include "cli/plan/run_time.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <stdlib.h>

#include "cli/plan/calibrate.h"
#include "cli/plan/lengths.h"
#include "cli/run/pools.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/run_directory.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Beside the runs, so that its files meet the disk that theirs do.
class CalibrationFolder {
 public:
  CalibrationFolder() {
    std::string pattern = (fs::temp_directory_path() / "tailrace-plan-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr)
      throw UserError("{}", describe_errno("create", pattern, errno));
    path_ = pattern;
  }
  ~CalibrationFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  CalibrationFolder(const CalibrationFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// "12.3 ms", "4.1 s".
std::string short_time(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.0f} us", 1e6 * seconds);
  if (seconds < 1) return fmt::format("{:.3g} ms", 1e3 * seconds);
  if (seconds < 120) return fmt::format("{:.3g} s", seconds);
  if (seconds < 7200) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

Json items_json(const std::vector<MemoryItem>& items) {
  Json json = Json::array();
  for (const MemoryItem& item : items)
    json.push_back({{"name", item.name}, {"bytes", item.bytes}, {"certain", item.certain}});
  return json;
}

}  // namespace

RunTime plan_time(const RunOptions& options, const Registries& registries, int64_t steps,
                  const fs::path& like, const fs::path& program,
                  const std::function<void(const std::string&)>& say) {
  if (num_rollout_workers(options) == 0)
    throw UserError(
        "this config's launch starts no rollout worker (all pools are in clusters), so that "
        "nothing "
        "of them can be measured here.");
  const CalibrationFolder folder;
  const PlannedEpisodes known =
      like.empty() ? PlannedEpisodes() : recorded_episodes(RunPaths{like});
  const Calibration calibration =
      calibrate(options, registries, known, program, folder.path(), say);
  const PlannedEpisodes episodes = !known.episodes.empty() ? known
                                   : !calibration.played.episodes.empty()
                                       ? calibration.played
                                       : longest_episodes(options, 0);
  RunTime time{.costs = calibration.costs, .lengths = episodes.source, .steps = steps};
  for (const auto& step : steps_of(options, episodes))
    time.each.push_back(predict_step(options, calibration.costs, step));
  time.step = mean(time.each);
  return time;
}

std::string format_time(const RunTime& time) {
  std::string out;
  const auto line = [&](std::string_view label, const std::string& text) {
    out += fmt::format("{:<10} {}\n", label, text);
  };
  const StepTime& step = time.step;
  line("lengths", time.lengths);
  line("time", fmt::format("{} a step, of which", short_time(step.step)));
  const auto part = [&](double seconds, const std::string& name) {
    line("", fmt::format("{:>10}  {:>4.0f} %  {}", short_time(seconds),
                         step.step > 0 ? 100 * seconds / step.step : 0, name));
  };
  part(step.install, "new weights reach the rollout workers");
  part(step.generate,
       fmt::format("samples are generated: {:.0f} tokens, {:.0f} tokens/s{}", step.sampled_tokens,
                   step.sampled_tokens / std::max(1e-9, step.generate),
                   step.idle_share > 0.005
                       ? fmt::format("; {:.0f} % of the workers' room waits for the longest",
                                     100 * step.idle_share)
                       : ""));
  if (step.environment > 0.005 * step.step)
    part(step.environment, "of these nothing but environments is waited for");
  part(step.reward, "rewards behind the last sample");
  part(step.train, fmt::format("trains on {:.0f} tokens", step.trained_tokens));
  part(step.publish, "weights are published");
  part(step.beside, "processes, messages and the journal");
  line("", fmt::format("{} steps = {}, without warm-up, evaluations and checkpoints", time.steps,
                       short_time(time.seconds())));
  const simulator::DecodeModel& decode = time.costs.worker.decode;
  line("machine",
       fmt::format("decode step of a worker: {} + {} a sequence + {} for 1,000 tokens of context",
                   short_time(decode.step), short_time(decode.sequence),
                   short_time(1000 * decode.context)));
  line("",
       fmt::format("prefill {:.0f} tokens/s; a turn {} beside the engine",
                   time.costs.worker.prefill_tokens_per_s, short_time(time.costs.turn_seconds)));
  line("", fmt::format("trainer {:.0f} tokens/s; the updates of a step {}",
                       time.costs.train.token > 0 ? 1 / time.costs.train.token : 0,
                       short_time(time.costs.train.update)));
  return out;
}

std::string time_json(const Plan& plan, const RunTime& time) {
  const StepTime& step = time.step;
  const MachineCosts& costs = time.costs;
  const Json json = {{"memory",
                      {{"total_bytes", plan.total_bytes()},
                       {"certain_bytes", plan.certain_bytes()},
                       {"trainers", plan.trainers},
                       {"rollout_workers", plan.rollout_workers},
                       {"trainer", items_json(plan.trainer)},
                       {"rollout_worker", items_json(plan.rollout_worker)},
                       {"others", items_json(plan.others)}}},
                     {"lengths", time.lengths},
                     {"step",
                      {{"seconds", step.step},
                       {"install", step.install},
                       {"generate", step.generate},
                       {"environment", step.environment},
                       {"reward", step.reward},
                       {"train", step.train},
                       {"publish", step.publish},
                       {"beside", step.beside},
                       {"idle_share", step.idle_share},
                       {"sampled_tokens", step.sampled_tokens},
                       {"trained_tokens", step.trained_tokens}}},
                     {"steps", time.steps},
                     {"seconds", time.seconds()},
                     {"machine",
                      {{"decode",
                        {{"step", costs.worker.decode.step},
                         {"sequence", costs.worker.decode.sequence},
                         {"context", costs.worker.decode.context}}},
                       {"prefill_tokens_per_s", costs.worker.prefill_tokens_per_s},
                       {"kv_tokens", costs.worker.kv_tokens},
                       {"turn", costs.turn_seconds},
                       {"train", {{"token", costs.train.token}, {"update", costs.train.update}}},
                       {"publish", costs.train.publish},
                       {"install", costs.transfer.fetch},
                       {"payload_bytes", costs.transfer.payload_bytes}}}};
  return json.dump() + "\n";
}

}  // namespace tailrace
