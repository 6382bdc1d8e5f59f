#include "cli/simulate/simulated_text.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cli/run/counted.h"
#include "cli/run/pools.h"

namespace tailrace {
namespace {

using Json = nlohmann::ordered_json;
using simulator::StepRecord;
using simulator::World;

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

std::string stop_text(const SimulatedMode& mode) {
  switch (mode.run.stop) {
    case World::Stop::kEnded:
      return "the run was over";
    case World::Stop::kHalted:
      return "the scheduler halted: " + mode.run.halted;
    case World::Stop::kTime:
      return "simulate.days were over";
    case World::Stop::kSteps:
      return "simulate.steps were done";
    case World::Stop::kStuck:
      return "nothing would ever happen again";
  }
  return "";  // not reached
}

// "12.3 s", "4 min 05 s", "3 h 20 min", "2 d 03 h".
std::string time_text(double seconds) {
  if (seconds < 99.95) return fmt::format("{:.1f} s", seconds);
  const auto s = static_cast<int64_t>(std::llround(seconds));
  if (s < 6000) return fmt::format("{} min {:02} s", s / 60, s % 60);
  if (s < 100 * 3600) return fmt::format("{} h {:02} min", s / 3600, s / 60 % 60);
  return fmt::format("{} d {:02} h", s / 86400, s / 3600 % 24);
}

// Of numbers that are counted in thousands and more.
std::string number_text(double value) {
  if (value < 1000) return fmt::format("{:.3g}", value);
  const std::string_view units[] = {"", "k", "M", "G", "T"};
  size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < std::size(units); ++unit) value /= 1000;
  return fmt::format("{:.3g}{}", value, units[unit]);
}

Json shares_json(const UseShares& shares) {
  Json json = Json::object();
  for (size_t i = 0; i < kNumUses; ++i)
    if (shares[i] > 0) json[std::string(name_of(static_cast<Use>(i)))] = shares[i];
  return json;
}

// "generate 71 %, waits for the trainer 20 %": the largest first, what is below half a percent left
// out.
std::string shares_text(const UseShares& shares) {
  std::vector<std::pair<double, std::string_view>> parts;
  for (size_t i = 0; i < kNumUses; ++i)
    if (shares[i] >= 0.005) parts.emplace_back(shares[i], name_of(static_cast<Use>(i)));
  std::ranges::sort(parts, std::greater());
  std::vector<std::string> texts;
  for (const auto& [share, name] : parts)
    texts.push_back(fmt::format("{} {:.0f} %", name, share * 100));
  return fmt::format("{}", fmt::join(texts, ", "));
}

}  // namespace

std::string cluster_text(const SimulatedMode& mode) {
  std::vector<std::string> pools;
  for (const simulator::PoolModel& pool : mode.simulation.cluster.pools)
    pools.push_back(fmt::format("{}{} of {}, {} each", pool.name.empty() ? "" : pool.name + ": ",
                                counted(pool.workers, "rollout worker"), pool.hardware.name,
                                counted(pool.slots, "slot")));
  const HardwareSection trainer = hardware_section(
      mode.options.simulate, mode.options.simulate.trainer.hardware, "simulate.trainer.hardware");
  return fmt::format("{}; {} of {}; {} + {}", fmt::join(pools, "; "),
                     counted(mode.options.simulate.trainer.workers, "trainer worker"), trainer.name,
                     counted(mode.simulation.rollout_devices, "device"),
                     mode.simulation.trainer_devices);
}

Json simulated_json(const SimulatedMode& mode) {
  const SimulatedRun& run = mode.run;
  const World::Totals& totals = run.totals;
  std::vector<double> seconds, rollout;
  double staleness = 0, stalest = 0, longest = 0, samples = 0, tokens = 0, old_tokens = 0;
  for (const StepRecord& step : run.steps) {
    seconds.push_back(step.ended - step.begun);
    rollout.push_back(step.handed - step.begun);
    const auto count = static_cast<double>(step.samples);
    staleness += step.staleness_mean * count;
    stalest = std::max(stalest, step.staleness_max);
    longest = std::max(longest, static_cast<double>(step.longest));
    samples += count;
    tokens += static_cast<double>(step.tokens);
    old_tokens += static_cast<double>(step.old_tokens);
  }
  const auto steps = static_cast<double>(run.steps.size());
  const double whole = run.seconds_of_steps();
  const auto devices =
      static_cast<double>(mode.simulation.rollout_devices + mode.simulation.trainer_devices);
  return {{"mode", name_of(mode.options.scheduler.mode.name)},
          {"stopped", stop_text(mode)},
          {"virtual_seconds", run.seconds},
          {"rollout_workers", mode.simulation.rollout_workers},
          {"devices", mode.simulation.rollout_devices + mode.simulation.trainer_devices},
          {"steps", run.steps.size()},
          {"step_seconds",
           {{"mean", ratio(whole, steps)},
            {"median", median(seconds)},
            {"rollout_median", median(rollout)}}},
          {"samples_per_step", ratio(samples, steps)},
          {"tokens_per_step", ratio(tokens, steps)},
          {"response_tokens", {{"mean", ratio(tokens, samples)}, {"max", longest}}},
          {"tokens_per_s", ratio(tokens, whole)},
          {"tokens_per_s_of_a_device", ratio(ratio(tokens, whole), devices)},
          {"staleness",
           {{"mean", ratio(staleness, samples)},
            {"max", stalest},
            {"old_tokens", ratio(old_tokens, tokens)}}},
          {"rollout", shares_json(run.rollout)},
          {"trainer_busy", ratio(totals.trainer_busy, run.seconds)},
          {"trainer", shares_json(run.trainer)},
          {"reward", shares_json(run.reward)},
          {"engine",
           {{"busy", ratio(totals.engine_busy, totals.engine_time)},
            {"slots_decoding", ratio(totals.sequence_seconds, totals.slot_seconds)},
            {"prefilled_tokens", totals.prefilled},
            {"generated_tokens", totals.generated},
            {"preemptions", totals.preemptions}}},
          {"discarded_samples", run.discarded},
          {"failed_attempts", run.failed},
          {"lost_attempts", run.lost},
          {"deaths", totals.deaths},
          {"events", totals.events},
          {"cost", {{"whole", totals.price}, {"step", ratio(totals.price, steps)}}}};
}

std::string simulated_text(const SimulatedMode& mode) {
  const Json json = simulated_json(mode);
  const auto number = [&](std::string_view path) {
    return json.at(Json::json_pointer(std::string(path))).get<double>();
  };
  const SimulatedRun& run = mode.run;
  std::string text;
  const auto line = [&](std::string_view label, const std::string& value) {
    text += fmt::format("{:<10} {}\n", label, value);
  };
  line("law", fmt::format("{}, {} x {} samples a step", name_of(mode.options.scheduler.mode.name),
                          counted(mode.options.step.prompts_per_step, "prompt"),
                          mode.options.step.group_size));
  line("cluster", cluster_text(mode));
  line("simulated",
       fmt::format("{} in {} ({}); it took {}", counted(std::ssize(run.steps), "step"),
                   time_text(run.seconds), stop_text(mode), time_text(mode.real_seconds)));
  if (!run.steps.empty()) {
    line("step", fmt::format("{} mean, {} median; until its samples are there {}",
                             time_text(number("/step_seconds/mean")),
                             time_text(number("/step_seconds/median")),
                             time_text(number("/step_seconds/rollout_median"))));
    line("tokens",
         fmt::format("{} a step, {}/s, {}/s of a device; a response has {} mean, {} at "
                     "most",
                     number_text(number("/tokens_per_step")), number_text(number("/tokens_per_s")),
                     number_text(number("/tokens_per_s_of_a_device")),
                     number_text(number("/response_tokens/mean")),
                     number_text(number("/response_tokens/max"))));
    line("staleness",
         fmt::format("{:.2f} versions mean, {:.0f} at most; {:.0f} % of the tokens are "
                     "older than their step's weights",
                     number("/staleness/mean"), number("/staleness/max"),
                     100 * number("/staleness/old_tokens")));
  }
  line("rollout", shares_text(run.rollout));
  line("engines", fmt::format("busy {:.0f} % of the time, {:.0f} % of the slots decode; {} "
                              "prefilled for {} decoded; {}",
                              100 * number("/engine/busy"), 100 * number("/engine/slots_decoding"),
                              number_text(number("/engine/prefilled_tokens")),
                              number_text(number("/engine/generated_tokens")),
                              counted(run.totals.preemptions, "preemption")));
  line("trainer", fmt::format("computes {:.0f} % of the time; {}", 100 * number("/trainer_busy"),
                              shares_text(run.trainer)));
  if (mode.simulation.cluster.reward_workers > 0 &&
      run.reward[static_cast<size_t>(Use::kVerify)] > 0)
    line("reward", shares_text(run.reward));
  if (run.totals.deaths + run.failed + run.lost + run.discarded > 0)
    line("waste", fmt::format("{}; {} failed, {} lost; {} that no step trained",
                              counted(run.totals.deaths, "death"), counted(run.failed, "attempt"),
                              run.lost, counted(run.discarded, "sample")));
  if (run.totals.price > 0)
    line("cost",
         fmt::format("{:.2f} a step, {:.2f} in all", number("/cost/step"), number("/cost/whole")));
  return text;
}

std::string simulated_table(std::span<const SimulatedMode> modes) {
  std::string text =
      fmt::format("{:<14}{:>7}{:>11}{:>10}{:>11}{:>6}{:>10}{:>10}{:>12}\n", "mode", "steps",
                  "s a step", "tokens/s", "staleness", "max", "generate", "trainer", "cost a step");
  for (const SimulatedMode& mode : modes) {
    const Json json = simulated_json(mode);
    const auto number = [&](std::string_view path) {
      return json.at(Json::json_pointer(std::string(path))).get<double>();
    };
    const double generate = mode.run.rollout[static_cast<size_t>(Use::kGenerate)];
    text +=
        fmt::format("{:<14}{:>7}{:>11.1f}{:>10}{:>11.2f}{:>6.0f}{:>8.0f} %{:>8.0f} %{:>12.2f}\n",
                    name_of(mode.options.scheduler.mode.name), mode.run.steps.size(),
                    number("/step_seconds/mean"), number_text(number("/tokens_per_s")),
                    number("/staleness/mean"), number("/staleness/max"), 100 * generate,
                    100 * number("/trainer_busy"), number("/cost/step"));
  }
  return text;
}

}  // namespace tailrace
