#include "cli/plan/plan_text.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/config/counted.h"
#include "cli/config/simulate_options.h"
#include "cli/view/wrapped.h"

namespace tailrace {
namespace {

using Json = nlohmann::ordered_json;

std::string_view mode_of(const PlannedMode& planned) {
  return name_of(planned.simulated.options.scheduler.mode.name);
}

std::string split_text(const PlannedMode& planned) {
  return fmt::format("{}, {}",
                     counted(planned.simulated.simulation.rollout_workers(), "rollout worker"),
                     counted(planned.simulated.options.simulate.trainer.workers, "trainer worker"));
}

// "async with 2 rollout workers, 1 trainer worker: 80 steps in 16.1 s, 0.99 versions stale, cost
// 2".
std::string choice_text(const PlannedMode& planned, int64_t steps, bool says_split) {
  return fmt::format("{}{}: {} in {}, {:.2f} versions stale{}", mode_of(planned),
                     says_split ? " with " + split_text(planned) : "", counted(steps, "step"),
                     time_text(planned.eta), planned.staleness,
                     planned.cost > 0 ? fmt::format(", cost {:.2f}", planned.cost) : "");
}

std::string row_text(const PlannedMode& planned, bool is_own) {
  const std::string name = fmt::format("{}{}", mode_of(planned), is_own ? ", as given" : "");
  return fmt::format("{:<24}{:>8}{:>9}{:>12}{:>14}{:>11.2f}{}\n", name,
                     planned.simulated.simulation.rollout_workers(),
                     planned.simulated.options.simulate.trainer.workers, time_text(planned.step),
                     time_text(planned.eta), planned.staleness,
                     planned.cost > 0 ? fmt::format("{:>12.2f}", planned.cost) : "");
}

std::string machine_text(const MachineCosts& costs) {
  const simulator::DecodeModel& decode = costs.worker.decode;
  const auto rate = [](double seconds) { return seconds > 0 ? number_text(1 / seconds) : "any"; };
  const auto time = [](double seconds) {
    return seconds < 1e-3 ? fmt::format("{:.3g} us", 1e6 * seconds) : time_text(seconds);
  };
  return fmt::format(
      "{:<10} decode step of a worker: {} + {} a sequence + {} for 1,000 tokens of context\n"
      "{:<10} prefill {} tokens/s; a turn {} beside the engine\n"
      "{:<10} trainer {} tokens/s; the updates of a step {}\n"
      "{:<10} a step besides: weights are published {}, reach the workers {}; processes, messages "
      "and\n{:<10} the journal {}\n",
      "machine", time(decode.step), time(decode.sequence), time(1000 * decode.context), "",
      number_text(costs.worker.prefill_tokens_per_s), time(costs.worker.turn), "",
      rate(costs.train.token), time(costs.train.update), "", time(costs.train.publish),
      time(costs.transfer.fetch), "", time(costs.train.step));
}

std::string hardware_text(const SimulatedMode& mode) {
  const SimulateSection& section = mode.options.simulate;
  const HardwareSection worker = hardware_section(section, section.rollout_hardware),
                        trainer = hardware_section(section, section.trainer.hardware);
  const auto rate = [](double value) { return value > 0 ? number_text(value) : "any"; };
  return wrapped(
      fmt::format(
          "{} decodes {} tokens/s with {} sequences of {} tokens, reads {} prompt tokens/s, "
          "holds {} in its KV cache; {} trains {} tokens/s",
          worker.name, rate(worker.tokens_per_s), worker.at_sequences, worker.at_context_tokens,
          rate(worker.prefill_tokens_per_s), rate(static_cast<double>(worker.kv_tokens)),
          trainer.name, rate(trainer.train_tokens_per_s)),
      "hardware   ");
}

Json items_json(const std::vector<MemoryItem>& items) {
  Json json = Json::array();
  for (const MemoryItem& item : items)
    json.push_back({{"name", item.name}, {"bytes", item.bytes}, {"certain", item.certain}});
  return json;
}

Json processes_json(const Plan& plan) {
  return {
      {"total_bytes", plan.total_bytes()},   {"certain_bytes", plan.certain_bytes()},
      {"trainers", plan.trainers},           {"rollout_workers", plan.rollout_workers},
      {"trainer", items_json(plan.trainer)}, {"rollout_worker", items_json(plan.rollout_worker)},
      {"in_turn", items_json(plan.in_turn)}, {"others", items_json(plan.others)}};
}

Json machine_json(const MachineCosts& costs) {
  const simulator::Hardware& worker = costs.worker;
  return {{"decode",
           {{"step", worker.decode.step},
            {"sequence", worker.decode.sequence},
            {"context", worker.decode.context}}},
          {"prefill_tokens_per_s", worker.prefill_tokens_per_s},
          {"kv_tokens", worker.kv_tokens},
          {"turn", worker.turn},
          {"train", {{"token", costs.train.token}, {"update", costs.train.update}}},
          {"publish", costs.train.publish},
          {"beside", costs.train.step},
          {"install", costs.transfer.fetch},
          {"payload_bytes", costs.transfer.payload_bytes}};
}

Json fit_json(const CardFit& fit) {
  return {{"fits", fit.is_known() ? Json(fit.fits()) : Json()},
          {"trainer", {{"card", fit.trainer_card}, {"needs", fit.trainer_needs}}},
          {"rollout_worker", {{"card", fit.rollout_card}, {"needs", fit.rollout_needs}}},
          {"kv_tokens", fit.kv_tokens},
          {"kv_room_mb", fit.kv_room_mb},
          {"would_fit", fit.would}};
}

Json mode_json(const PlannedMode& planned) {
  return {{"mode", mode_of(planned)},
          {"rollout_workers", planned.simulated.simulation.rollout_workers()},
          {"trainer_workers", planned.simulated.options.simulate.trainer.workers},
          {"step_seconds", planned.step},
          {"eta_seconds", planned.eta},
          {"staleness", planned.staleness},
          {"device_hours", planned.device_hours},
          {"cost", planned.cost}};
}

}  // namespace

std::string planned_text(const PlannedRun& planned) {
  const PlannedMode& own = planned.modes[planned.own];
  const SimulatedRun& run = own.simulated.run;
  const Json numbers = simulated_json(own.simulated);
  std::string text;
  const auto line = [&](std::string_view label, const std::string& value) {
    text += fmt::format("{:<10} {}\n", label, value);
  };
  line("episodes", planned.episodes);
  line("cluster", cluster_text(own.simulated));
  line("step", fmt::format("{}: samples are there after {}, trained and published {} later "
                           "(medians of {})",
                           time_text(own.step), time_text(run.summary().rollout_median),
                           time_text(run.summary().train_median),
                           counted(std::ssize(run.steps), "simulated step")));
  line("tokens",
       fmt::format("{} a step, {}/s", number_text(numbers.at("tokens_per_step").get<double>()),
                   number_text(numbers.at("tokens_per_s").get<double>())));
  line("rollout", shares_text("", run.rollout));
  line("trainer", shares_text("", run.trainer));
  if (run.reward[static_cast<size_t>(Use::kVerify)] > 0)
    line("reward", shares_text("", run.reward));
  text += planned.machine ? machine_text(*planned.machine) : hardware_text(own.simulated);
  text += fmt::format("\n{:<24}{:>8}{:>9}{:>12}{:>14}{:>11}{}\n", "mode", "workers", "trainers",
                      "a step", counted(planned.steps, "step"), "staleness",
                      own.cost > 0 ? fmt::format("{:>12}", "cost") : "");
  for (size_t i = 0; i < planned.modes.size(); ++i)
    text += row_text(planned.modes[i], i == planned.own);
  for (size_t i = 1; i < planned.splits.size(); ++i) text += row_text(planned.splits[i], false);
  for (const auto& [mode, why] : planned.refused)
    text += fmt::format("{} is not for this config: {}\n", mode, why.substr(0, why.find('\n')));
  const PlannedMode& best = planned.chosen();
  line("best", choice_text(best, planned.steps, !planned.splits.empty()));
  if (planned.in_turn)
    line("one card",
         fmt::format(
             "by turns (run.colocate=true): {} in {}{}", counted(planned.steps, "step"),
             time_text(planned.in_turn->eta),
             planned.in_turn->cost > 0 ? fmt::format(", cost {:.2f}", planned.in_turn->cost) : ""));
  if (!planned.machine)
    line("cost", fmt::format("{:.3g} device-hours{}", best.device_hours,
                             best.cost > 0 ? fmt::format(", {:.2f} in all", best.cost)
                                           : "; --price AMOUNT says what they cost"));
  const int64_t workers = best.simulated.simulation.rollout_workers();
  if (!planned.machine && best.simulated.simulation.trainer_devices() > 0)
    text += wrapped(fmt::format("the trainer and {} are planned on devices of their own. Those of "
                                "one machine share its first GPU; {} from another host "
                                "(docs/hosts.md)",
                                counted(workers, "rollout worker"),
                                workers == 1 ? "the worker joins" : "each worker joins"),
                    "hosts      ");
  const PlannedMode* one = planned.best_with_one_trainer();
  const bool helps =
      one != nullptr && best.simulated.simulation.trainer_devices() > 1 && planned.gaps.size() == 1;
  return text + gaps_text(planned.gaps, helps ? choice_text(*one, planned.steps, true) : "");
}

std::string memory_json(const Plan& memory, const std::optional<CardFit>& fit) {
  Json json = {{"memory", processes_json(memory)}};
  if (fit) json["fit"] = fit_json(*fit);
  return json.dump() + "\n";
}

std::string planned_json(const std::optional<Plan>& memory, const PlannedRun& planned) {
  const PlannedMode& own = planned.modes[planned.own];
  const SimulatedRun& run = own.simulated.run;
  Json json = Json::object();
  if (memory) json["memory"] = processes_json(*memory);
  json["episodes"] = planned.episodes;
  json["steps"] = planned.steps;
  json["step"] = {{"seconds", own.step},
                  {"rollout", run.summary().rollout_median},
                  {"train", run.summary().train_median}};
  json["seconds"] = own.eta;
  json["simulated"] = simulated_json(own.simulated);
  if (planned.machine) json["machine"] = machine_json(*planned.machine);
  json["modes"] = Json::array();
  for (const PlannedMode& mode : planned.modes) json["modes"].push_back(mode_json(mode));
  json["splits"] = Json::array();
  for (const PlannedMode& split : planned.splits) json["splits"].push_back(mode_json(split));
  json["best"] = mode_json(planned.chosen());
  if (planned.in_turn) json["in_turn"] = mode_json(*planned.in_turn);
  if (planned.fit) json["fit"] = fit_json(*planned.fit);
  if (!planned.machine) json["not_today"] = planned.gaps;
  return json.dump() + "\n";
}

}  // namespace tailrace
