// RollPacker (arXiv 2509.21009), its sensitivity table: mean rollout seconds over a period of short
// rounds and one long round, 128 prompts x 8 responses a step, at caps of 8k, 16k and 32k tokens.
// Rows 1 to 8.
//
// Fitted, for each cap: the lengths, on the three cells in which only responses are launched beyond
// need (rows 4 and 5, and the same at 8k) and on what the paper says of the lengths themselves
// (median 580 tokens, 75 % below 930, 93 % below 2k, 97 % below 4k: means over its three tasks, at
// 16k, which as readings of a figure weigh a twenty-fifth); the seconds of a decode step, on the
// cell without any surplus. No cell of rows 1, 2, 3, 6 and 7 takes part. The same rows with lengths
// that were fitted to all cells are shown: they say nothing but that rounds are cut as they should.
// The fit gives deviations by prompt and within one of 0.56 and 0.70 at 8k, 0.48 and 0.65 at 16k,
// 0.12 and 0.67 at 32k, and chances to run to the cap of 0.8, 1.7 and 3.2 %.
//
// Our choice: the form of the lengths (two levels, with a chance to run to the cap that differs by
// prompt), and that a decode step takes equally long whatever the batch: one baseline cell cannot
// tell more. The trainer takes no time, since the table is of rollout alone.
//
// Row 8 counts the rounds that the scheduler opened, by kind.
#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "bench/report/minimum.h"
#include "bench/report/program.h"
#include "bench/scheduler/simulate/experiment.h"
#include "bench/scheduler/simulate/harness.h"

namespace tailrace::simulate {
namespace {

using scheduler::Ratio;
using simulator::LengthModel;

constexpr int64_t kPrompts = 128, kKept = 8;

// What a reading of a figure weighs beside a cell of a table: shares of 7 and 3 % are read to a
// quarter of them, seconds to a twentieth.
constexpr double kReading = 0.04;

struct Cap {
  std::string name;
  int64_t tokens = 0;
  double none = 0;           // seconds without surplus
  double responses[3] = {};  // 9, 10, 12 of 8
  double prompts[3] = {};    // 144, 160, 192 of 128
  double both = 0;           // 1.25 and 1.25
  std::string row_responses, row_prompts, row_both;
  Use use = Use::kGated;
  LengthModel all_cells = {};  // fitted to every cell of the table
};

const std::vector<Cap>& caps() {
  static const std::vector<Cap> kCaps = {{.name = "8k",
                                          .tokens = 8192,
                                          .none = 82,
                                          .responses = {77, 71, 54},
                                          .prompts = {77, 72, 60},
                                          .both = 47,
                                          .row_responses = "-",
                                          .row_prompts = "-",
                                          .row_both = "1",
                                          .use = Use::kShown,
                                          .all_cells = {.median = 581,
                                                        .sigma_prompt = 0.63,
                                                        .sigma_response = 1.15,
                                                        .endless = 0.0062,
                                                        .endless_concentration = 31,
                                                        .limit = 8192}},
                                         {.name = "16k",
                                          .tokens = 16384,
                                          .none = 277,
                                          .responses = {260, 232, 115},
                                          .prompts = {244, 169, 143},
                                          .both = 88,
                                          .row_responses = "5",
                                          .row_prompts = "7",
                                          .row_both = "2",
                                          .use = Use::kGated,
                                          .all_cells = {.median = 516,
                                                        .sigma_prompt = 0.65,
                                                        .sigma_response = 1.13,
                                                        .endless = 0.0145,
                                                        .endless_concentration = 14.0,
                                                        .limit = 16384}},
                                         {.name = "32k",
                                          .tokens = 32768,
                                          .none = 673,
                                          .responses = {658, 655, 265},
                                          .prompts = {636, 259, 279},
                                          .both = 170,
                                          .row_responses = "4",
                                          .row_prompts = "6",
                                          .row_both = "3",
                                          .use = Use::kGated,
                                          .all_cells = {.median = 551,
                                                        .sigma_prompt = 0.14,
                                                        .sigma_response = 1.05,
                                                        .endless = 0.025,
                                                        .endless_concentration = 14.7,
                                                        .limit = 32768}}};
  return kCaps;
}

const Ratio kSurplus[] = {{9, 8}, {5, 4}, {3, 2}};  // of responses or of prompts

// The lengths of a model in closed form: prompts are summed over a grid of medians and of chances
// to run to the cap.
class Lengths {
 public:
  explicit Lengths(const LengthModel& model) : model_(model) {
    const double a = model.endless * model.endless_concentration;
    const double b = (1 - model.endless) * model.endless_concentration;
    double all = 0;
    for (int i = 0; i < kGrid; ++i) {
      const double z = -4 + 8 * (i + 0.5) / kGrid;
      for (int k = 0; k < kGrid; ++k) {
        // The Beta distribution over u = chance^a, in which its density has no pole.
        const double chance = std::pow((k + 0.5) / kGrid, 1 / a);
        const double weight = std::exp(-z * z / 2) * std::pow(1 - chance, b - 1);
        prompts_.push_back({std::log(model.median) + model.sigma_prompt * z, chance, weight});
        all += weight;
      }
    }
    for (Prompt& prompt : prompts_) prompt.weight /= all;
  }

  double share_above(double tokens) const {
    double sum = 0;
    for (const Prompt& prompt : prompts_) sum += prompt.weight * (1 - below(prompt, tokens));
    return sum;
  }

  // Mean of the longest response of a step of 128 prompts, which keep the first 8 of `launched`.
  double longest(int64_t launched) const {
    const auto limit = static_cast<double>(model_.limit);
    double sum = 0, from = 0;
    for (int i = 1; i <= kSteps; ++i) {
      const double to = limit * i / kSteps;
      double group = 0;  // the chance that one has 8 that are shorter
      for (const Prompt& prompt : prompts_)
        group += prompt.weight * eight_of(launched, below(prompt, (from + to) / 2));
      sum += (to - from) * (1 - std::pow(group, kPrompts));
      from = to;
    }
    return sum;
  }

 private:
  static constexpr int kGrid = 24, kSteps = 128;
  struct Prompt {
    double log_median = 0, chance = 0, weight = 0;
  };
  double below(const Prompt& prompt, double tokens) const {
    return (1 - prompt.chance) *
           normal_below((std::log(tokens) - prompt.log_median) / model_.sigma_response);
  }
  // The chance that at least 8 of n come, of which each does with chance p.
  static double eight_of(int64_t n, double p) {
    double sum = 0, ways = 1;
    for (int64_t missing = 0; missing <= n - kKept; ++missing) {
      sum += ways * std::pow(p, n - missing) * std::pow(1 - p, missing);
      ways *= static_cast<double>(n - missing) / static_cast<double>(missing + 1);
    }
    return sum;
  }

  LengthModel model_;
  std::vector<Prompt> prompts_;
};

// On what the head says.
LengthModel fit_lengths(const Cap& cap) {
  const auto model_at = [&](const std::vector<double>& x) {
    return LengthModel{.median = 580,
                       .sigma_prompt = std::exp(x[0]),
                       .sigma_response = std::exp(x[1]),
                       .endless = std::min(0.2, std::exp(x[2])),
                       .endless_concentration = std::exp(x[3]),
                       .limit = cap.tokens};
  };
  const auto squared = [](double simulated, double published) {
    const double off = std::log(std::max(simulated, 1e-6) / published);
    return off * off;
  };
  const auto error = [&](const std::vector<double>& x) {
    const Lengths lengths(model_at(x));
    const double whole = lengths.longest(kKept);
    double sum = 0;
    for (size_t i = 0; i < 3; ++i) {
      const int64_t launched = kSurplus[i].of(kKept);
      sum += squared(lengths.longest(launched) / whole, cap.responses[i] / cap.none);
    }
    sum += kReading * squared(lengths.share_above(930), 0.25);
    sum += kReading * squared(lengths.share_above(2000), 0.07);
    sum += kReading * squared(lengths.share_above(4000), 0.03);
    return sum;
  };
  const std::vector<double> start = {std::log(0.3), std::log(0.8), std::log(0.015), std::log(15)};
  return model_at(minimise(start, 0.4, 200, error));
}

simulator::Cluster cluster_of(double step_seconds) {
  simulator::Cluster cluster;
  cluster.wire.delay = 0;
  cluster.pools = {{.workers = 16, .slots = 256, .hardware = {.decode = {.step = step_seconds}}}};
  return cluster;
}

// Whole periods.
Measured play(const LengthModel& lengths, double step_seconds, Ratio prompts, Ratio responses,
              int64_t steps) {
  scheduler::Mode mode;
  mode.launch_prompts = prompts;
  mode.launch_members = responses;
  mode.dispatch = scheduler::Dispatch::kLeastLoaded;
  if (prompts != Ratio{1, 1}) mode.tail = scheduler::TailPolicy::kDiscard;
  return measure(law_of(mode, kPrompts, kKept), cluster_of(step_seconds), {.length = lengths}, 0,
                 steps);
}

// Over the first 50 rounds that the scheduler opened.
double short_rounds_a_long_one() {
  std::map<scheduler::RoundId, scheduler::RoundKind> rounds;
  const simulator::DrawnEpisodes source({{.length = {.median = 100, .sigma_response = 1}}}, 1);
  scheduler::Mode mode = preset(scheduler::ModeName::kTailBatching);
  simulator::World world(law_of(mode, kPrompts, kKept), cluster_of(0.01), source, 1);
  world.observe = [&](const auto&, const auto&, const scheduler::State& state) {
    for (const auto& [number, policy] : state.policies) {
      for (const scheduler::Round& round : policy.rounds) rounds[round.id] = round.kind;
    }
  };
  require(world.run(1e9, 51) == simulator::World::Stop::kSteps, "the run stopped early");
  double count[2] = {};
  int64_t counted = 0;
  for (const auto& [id, kind] : rounds) {
    if (++counted <= 50) ++count[kind == scheduler::RoundKind::kLong ? 1 : 0];
  }
  return count[0] / count[1];
}

}  // namespace

std::vector<Cell> run_rollpacker() {
  std::vector<Cell> cells = {{.row = "8",
                              .what = "short rounds a long one, prompts x 1.25",
                              .unit = "x",
                              .published = 4,
                              .simulated = short_rounds_a_long_one(),
                              .bound = Bound::kExact}};
  const Ratio one{1, 1}, quarter{5, 4};
  for (const Cap& cap : caps()) {
    for (const bool fit_of_all : {false, true}) {
      const LengthModel lengths = fit_of_all ? cap.all_cells : fit_lengths(cap);
      const double whole = play(lengths, 1, one, one, 50).longest;
      const double step = cap.none / whole;
      const auto seconds = [&](Ratio prompts, Ratio responses) {
        return play(lengths, step, prompts, responses, 90).rollout;
      };
      const Use use = fit_of_all ? Use::kShown : cap.use;
      const std::string name = cap.name + (fit_of_all ? ", lengths fitted to all cells" : "");
      if (!fit_of_all) {
        cells.push_back({.row = "-",
                         .what = name + ", none",
                         .unit = "s",
                         .published = cap.none,
                         .simulated = seconds(one, one),
                         .use = Use::kFitted});
        for (size_t i = 0; i < 3; ++i) {
          const Ratio ratio = kSurplus[i];
          cells.push_back({.row = cap.row_responses,
                           .what = fmt::format("{}, responses x {}", name, to_double(ratio)),
                           .unit = "s",
                           .published = cap.responses[i],
                           .simulated = seconds(one, ratio),
                           .use = Use::kFitted});
        }
      }
      for (size_t i = 0; i < 3; ++i) {
        const Ratio ratio = kSurplus[i];
        cells.push_back({.row = cap.row_prompts,
                         .what = fmt::format("{}, prompts x {}", name, to_double(ratio)),
                         .unit = "s",
                         .published = cap.prompts[i],
                         .simulated = seconds(ratio, one),
                         .use = use});
      }
      cells.push_back({.row = cap.row_both,
                       .what = name + ", both x 1.25",
                       .unit = "s",
                       .published = cap.both,
                       .simulated = seconds(quarter, quarter),
                       .use = use});
    }
  }
  return cells;
}

}  // namespace tailrace::simulate
