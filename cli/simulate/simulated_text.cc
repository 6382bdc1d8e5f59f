#include "cli/simulate/simulated_text.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/config/counted.h"
#include "cli/config/pools.h"
#include "core/base/join_texts.h"
#include "scheduler/simulator/summary.h"

namespace tailrace {
namespace {

using Json = nlohmann::ordered_json;
using simulator::RunSummary;
using simulator::World;

// By its own law or that of the hardware file.
bool has_ended(const SimulatedRun& run) { return run.stop == World::Stop::kEnded; }

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

std::string stop_text(const SimulatedMode& mode) {
  switch (mode.run.stop) {
    case World::Stop::kEnded:
      if (mode.run.end == scheduler::RunEnd::Reason::kDataEnd) return "the data has ended";
      return mode.options.simulate.steps > 0 ? "hardware.steps are done" : "run.steps are done";
    case World::Stop::kHalted:
      return "the scheduler halted: " + mode.run.halted;
    case World::Stop::kTime:
      return "hardware.days were over";
    case World::Stop::kSteps:
      break;  // it ends there by its own law
    case World::Stop::kStuck:
      return "nothing would ever happen again";
  }
  return "";  // not reached
}

Json shares_json(const UseShares& shares) {
  Json json = Json::object();
  for (size_t i = 0; i < kNumUses; ++i)
    if (shares[i] > 0) json[std::string(name_of(static_cast<Use>(i)))] = shares[i];
  return json;
}

}  // namespace

std::string time_text(double seconds) {
  if (seconds < 1) return fmt::format("{:.3g} ms", 1000 * seconds);
  if (seconds < 99.95) return fmt::format("{:.1f} s", seconds);
  const auto s = static_cast<int64_t>(std::llround(seconds));
  if (s < 6000) return fmt::format("{} min {:02} s", s / 60, s % 60);
  if (s < 100 * 3600) return fmt::format("{} h {:02} min", s / 3600, s / 60 % 60);
  return fmt::format("{} d {:02} h", s / 86400, s / 3600 % 24);
}

std::string number_text(double value) {
  if (value < 1000) return fmt::format("{:.3g}", value);
  const std::string_view units[] = {"", "k", "M", "G", "T"};
  size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < std::size(units); ++unit) value /= 1000;
  return fmt::format("{:.3g}{}", value, units[unit]);
}

// "of all slots: generate 71 %, ..": the largest first, what is below half a percent left out.
std::string shares_text(std::string_view whose, const UseShares& shares) {
  std::vector<std::pair<double, std::string_view>> parts;
  for (size_t i = 0; i < kNumUses; ++i)
    if (shares[i] >= 0.005) parts.emplace_back(shares[i], name_of(static_cast<Use>(i)));
  std::ranges::sort(parts, std::greater());
  std::vector<std::string> texts;
  for (const auto& [share, name] : parts)
    texts.push_back(fmt::format("{} {:.0f} %", name, share * 100));
  return fmt::format("{}{}", texts.empty() ? "" : whose, join_texts(texts, ", "));
}

std::string cluster_text(const SimulatedMode& mode) {
  std::vector<std::string> pools;
  for (const simulator::PoolModel& pool : mode.simulation.cluster.pools)
    pools.push_back(fmt::format("{}{} of {}, {} each", pool.name.empty() ? "" : pool.name + ": ",
                                counted(pool.workers, "rollout worker"), pool.hardware.name,
                                counted(pool.slots, "slot")));
  const Simulation& simulation = mode.simulation;
  return fmt::format("{}; {} of {}; {} + {}", join_texts(pools, "; "),
                     counted(simulation.trainer_workers, "trainer worker"),
                     simulation.trainer_hardware.name,
                     counted(simulation.rollout_devices(), "device"), simulation.trainer_devices());
}

Json simulated_json(const SimulatedMode& mode) {
  const SimulatedRun& run = mode.run;
  const World::Totals& totals = run.totals;
  const RunSummary summary = simulator::summary_of(run.steps);
  const int64_t devices = mode.simulation.rollout_devices() + mode.simulation.trainer_devices();
  const auto if_any = [&](double value) { return summary.steps > 0 ? Json(value) : Json(); };
  return {{"mode", name_of(mode.options.scheduler.mode.name)},
          {"stopped", stop_text(mode)},
          {"ended", has_ended(run)},
          {"virtual_seconds", run.seconds},
          {"rollout_workers", mode.simulation.rollout_workers()},
          {"devices", devices},
          {"steps", summary.steps},
          {"step_seconds",
           {{"mean", if_any(summary.step_mean)},
            {"median", if_any(summary.step_median)},
            {"rollout_median", if_any(summary.rollout_median)}}},
          {"samples_per_step", if_any(summary.samples_per_step)},
          {"tokens_per_step", if_any(summary.tokens_per_step)},
          {"response_tokens",
           {{"mean", if_any(summary.tokens_per_sample)},
            {"max", if_any(static_cast<double>(summary.longest))}}},
          {"tokens_per_s", if_any(summary.tokens_per_s)},
          {"tokens_per_s_of_a_device", if_any(summary.tokens_per_s / static_cast<double>(devices))},
          {"staleness",
           {{"mean", if_any(summary.staleness_mean)},
            {"max", if_any(summary.staleness_max)},
            {"old_tokens", if_any(summary.old_tokens)}}},
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
          {"untrained_tokens", run.untrained_tokens()},
          {"cost",
           {{"whole", totals.price},
            {"step", if_any(ratio(totals.price, static_cast<double>(summary.steps)))}}}};
}

std::string simulated_text(const SimulatedMode& mode) {
  const SimulatedRun& run = mode.run;
  const RunSummary summary = simulator::summary_of(run.steps);
  const World::Totals& totals = run.totals;
  std::string text;
  const auto line = [&](std::string_view label, const std::string& value) {
    text += fmt::format("{:<10} {}\n", label, value);
  };
  line("law", fmt::format("{}, {} x {} samples a step", name_of(mode.options.scheduler.mode.name),
                          counted(mode.options.step.prompts_per_step, "prompt"),
                          mode.options.step.group_size));
  line("cluster", cluster_text(mode));
  line("simulated",
       fmt::format("{} in {} ({}); it took {}", counted(summary.steps, "step"),
                   time_text(run.seconds), stop_text(mode), time_text(mode.real_seconds)));
  if (summary.steps > 0) {
    const auto devices =
        static_cast<double>(mode.simulation.rollout_devices() + mode.simulation.trainer_devices());
    line("step", fmt::format("{} mean, {} median; until its samples are there {}",
                             time_text(summary.step_mean), time_text(summary.step_median),
                             time_text(summary.rollout_median)));
    line("tokens",
         fmt::format("{} a step, {}/s, {}/s of a device; a response has {} mean, {} at most",
                     number_text(summary.tokens_per_step), number_text(summary.tokens_per_s),
                     number_text(summary.tokens_per_s / devices),
                     number_text(summary.tokens_per_sample),
                     number_text(static_cast<double>(summary.longest))));
    line("staleness",
         fmt::format("{:.2f} versions mean, {:.0f} at most; {:.0f} % of the tokens are older than "
                     "their step's weights",
                     summary.staleness_mean, summary.staleness_max, 100 * summary.old_tokens));
  }
  line("rollout", shares_text("of all slots: ", run.rollout));
  line("engines", fmt::format("busy {:.0f} % of the time, {:.0f} % of the slots decode; {} "
                              "prefilled for {} decoded; {}",
                              100 * ratio(totals.engine_busy, totals.engine_time),
                              100 * ratio(totals.sequence_seconds, totals.slot_seconds),
                              number_text(totals.prefilled), number_text(totals.generated),
                              counted(totals.preemptions, "preemption")));
  line("trainer",
       fmt::format("computes {:.0f} % of the time; {}",
                   100 * ratio(totals.trainer_busy, run.seconds), shares_text("", run.trainer)));
  if (mode.simulation.cluster.reward_workers > 0 &&
      run.reward[static_cast<size_t>(Use::kVerify)] > 0)
    line("reward", shares_text("of all slots: ", run.reward));
  if (totals.deaths + run.failed + run.lost + run.discarded > 0)
    line("waste",
         fmt::format("{} decoded tokens that no step trained; {}; {} failed, {} lost; {} that no "
                     "step trained",
                     number_text(static_cast<double>(run.untrained_tokens())),
                     counted(totals.deaths, "death"), counted(run.failed, "attempt"), run.lost,
                     counted(run.discarded, "sample")));
  if (totals.price > 0) {
    const auto steps = static_cast<double>(summary.steps);
    line("cost",
         fmt::format("{} a step, {:.2f} in all",
                     steps > 0 ? fmt::format("{:.2f}", totals.price / steps) : "-", totals.price));
  }
  return text;
}

std::string simulated_table(std::span<const SimulatedMode> modes) {
  std::string text =
      fmt::format("{:<13} {:>6} {:>11}{:>10}{:>11}{:>6}{:>10}{:>10}{:>12}\n", "mode", "steps",
                  "a step", "tokens/s", "staleness", "max", "generate", "trainer", "cost a step");
  for (const SimulatedMode& mode : modes) {
    const SimulatedRun& run = mode.run;
    const RunSummary summary = simulator::summary_of(run.steps);
    // A run that published nothing has no numbers of a step.
    const auto if_any = [&](const std::string& cell) { return summary.steps > 0 ? cell : "-"; };
    const auto steps = static_cast<double>(std::max<int64_t>(1, summary.steps));
    text +=
        fmt::format("{:<13} {:>6} {:>11}{:>10}{:>11}{:>6}{:>8.0f} %{:>8.0f} %{:>12}{}\n",
                    name_of(mode.options.scheduler.mode.name), summary.steps,
                    if_any(time_text(summary.step_mean)), if_any(number_text(summary.tokens_per_s)),
                    if_any(fmt::format("{:.2f}", summary.staleness_mean)),
                    if_any(fmt::format("{:.0f}", summary.staleness_max)),
                    100 * run.rollout[static_cast<size_t>(Use::kGenerate)],
                    100 * ratio(run.totals.trainer_busy, run.seconds),
                    if_any(fmt::format("{:.2f}", run.totals.price / steps)),
                    has_ended(run)                     ? ""
                    : run.stop == World::Stop::kTime   ? "  (not over)"
                    : run.stop == World::Stop::kHalted ? "  (halted)"
                                                       : "  (stuck)");
  }
  return text;
}

}  // namespace tailrace
