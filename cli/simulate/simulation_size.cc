#include "cli/simulate/simulation_size.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "cli/simulate/simulated_text.h"
#include "core/base/error.h"
#include "scheduler/simulator/episodes.h"

namespace tailrace {
namespace {

// Measured with configs/simulate_64.yaml, of up to 640,000 samples a step and 100,000 workers, and
// rounded up. A member is one of the scheduler and its sample of the world, with the nodes of the
// maps that hold them; its seconds are those from its grant to its verdict. Those of a worker are
// of one version that it installs.
constexpr double kMemberBytes = 600, kWorkerBytes = 3500;
constexpr double kMemberSeconds = 30e-6, kWorkerSeconds = 10e-6;
constexpr double kTurnSeconds = 3e-6, kDrawnTurnSeconds = 2e-8;

// Below these nobody has to hear of it.
constexpr double kNotedBytes = 1e9, kNotedSeconds = 120;

double number(int64_t value) { return static_cast<double>(value); }

// The shape of an episode: turns that are drawn, and those it plays before its context is full;
// tokens, and seconds where nothing waits. The least of the datasets, but for the turns.
struct Shape {
  double drawn = 1, turns = 1;
  double tokens = 0, seconds = 0;
};

Shape shape_of(const Simulation& simulation) {
  const auto* drawn = dynamic_cast<const simulator::DrawnEpisodes*>(simulation.episodes.get());
  // Recorded episodes are in memory already, and few have many turns.
  if (drawn == nullptr || drawn->models().empty()) return {};
  double decode = std::numeric_limits<double>::infinity();
  for (const simulator::PoolModel& pool : simulation.cluster.pools)
    decode = std::min(decode, pool.hardware.decode.step);
  Shape shape{.tokens = std::numeric_limits<double>::infinity(),
              .seconds = std::numeric_limits<double>::infinity()};
  for (const simulator::EpisodeModel& model : drawn->models()) {
    const double all = std::max(1.0, model.turns.mean),
                 turns = model.room > 0 ? std::min(all, number(model.room)) : all,
                 limit = number(model.length.limit),
                 tokens = limit > 0 ? std::min(model.length.median, limit) : model.length.median;
    shape.drawn = std::max(shape.drawn, all);
    shape.turns = std::max(shape.turns, turns);
    shape.tokens = std::min(shape.tokens, tokens);
    shape.seconds = std::min(shape.seconds, model.reset.mean + turns * model.env.mean +
                                                model.verify.mean + tokens * decode);
  }
  return shape;
}

// Samples that a step trains.
double samples_of(const scheduler::Config& law) {
  return number(law.prompts_per_step()) * number(law.group_size);
}

// Steps that come before the limit, the end of the data or that of the time, at the earliest.
double steps_of(const Simulation& simulation, const Shape& shape, double slots) {
  const scheduler::Config& law = simulation.law;
  double steps = law.steps > 0 ? number(law.steps) : std::numeric_limits<double>::infinity();
  for (const scheduler::DatasetConfig& dataset : law.datasets)
    if (dataset.prompts_per_step > 0 && dataset.prompts_per_epoch > 0 && dataset.epochs > 0)
      steps = std::min(steps, std::ceil(number(dataset.prompts_per_epoch) * number(dataset.epochs) /
                                        number(dataset.prompts_per_step)));
  const simulator::TrainModel& train = simulation.cluster.trainer;
  const double samples = samples_of(law);
  // The least time of a step, by its slots or by its trainer: a size that is said too large is on
  // the safe side.
  const double sampling = samples * shape.seconds / std::max(1.0, slots),
               training = train.step + train.update +
                          samples * (train.sample + train.token * shape.tokens);
  const double step = std::max(sampling, training);
  if (step > 0) steps = std::min(steps, std::ceil(simulation.seconds / step));
  // Nothing ends it: nobody knows.
  constexpr double kEndless = 1e6;
  return std::isfinite(steps) ? steps : kEndless;
}

std::string bytes_text(const SimulationSize& size) {
  // More than any machine has is said as so much.
  constexpr double kMost = 1e18;
  return format_bytes(static_cast<int64_t>(std::min(size.bytes, kMost)));
}

}  // namespace

SimulationSize size_of(const Simulation& simulation) {
  const scheduler::Config& law = simulation.law;
  const double ahead = to_double(law.mode.ahead);
  double workers = number(simulation.cluster.reward_workers), slots = 0;
  for (const simulator::PoolModel& pool : simulation.cluster.pools) {
    workers += number(pool.workers);
    slots += number(pool.workers) * number(pool.slots);
  }
  const Shape shape = shape_of(simulation);
  const double steps = steps_of(simulation, shape, slots);
  const double members =
      samples_of(law) * to_double(law.mode.launch_prompts) * to_double(law.mode.launch_members);
  // Samples that are done are kept until a checkpoint covers them.
  const double kept = 1 + ahead + std::min(steps, number(law.save.interval_steps));
  const double playing = std::min(slots, members * (1 + ahead));

  SimulationSize size{.steps = steps, .cure = {}};
  struct Part {
    double bytes, seconds;
    const char* cure;
  };
  const std::array<Part, 3> parts = {
      Part{kMemberBytes * members * kept, kMemberSeconds * members * steps,
           "rollout.prompts_per_step or rollout.group_size"},
      Part{kWorkerBytes * workers, kWorkerSeconds * workers * (steps + 1),
           "hardware.workers (or the number of workers of the run)"},
      Part{sizeof(simulator::Turn) * shape.drawn * playing,
           (kTurnSeconds * shape.turns + kDrawnTurnSeconds * shape.drawn) * members * steps,
           "hardware.episodes.turns"}};
  for (const Part& part : parts) size.bytes += part.bytes, size.seconds += part.seconds;
  size.events = members * steps * (2 + shape.turns) + 3 * workers * (steps + 1);
  // By what there is most of: memory first, which no patience helps.
  const bool by_bytes = size.bytes > kNotedBytes;
  size.cure = std::ranges::max_element(parts, {}, [&](const Part& part) {
                return by_bytes ? part.bytes : part.seconds;
              })->cure;
  return size;
}

void require_size(const SimulationSize& size, const MemoryFacts& machine) {
  if (machine.available_bytes <= 0 || size.bytes <= static_cast<double>(machine.available_bytes))
    return;
  throw UserError(
      "this simulation would take about {} of memory at its largest, and {} are free: about {} "
      "events of {} steps.\n       Try a smaller {}.",
      bytes_text(size), format_bytes(machine.available_bytes), number_text(size.events),
      number_text(size.steps), size.cure);
}

std::string size_note(const SimulationSize& size) {
  if (size.bytes < kNotedBytes && size.seconds < kNotedSeconds) return "";
  return fmt::format(
      "this simulation is large: about {} of memory at its largest, and up to {} of one core for "
      "{} events of {} steps. Smaller: {}, or hardware.steps",
      bytes_text(size), time_text(size.seconds), number_text(size.events), number_text(size.steps),
      size.cure);
}

}  // namespace tailrace
