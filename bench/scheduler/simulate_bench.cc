// Published experiments on scheduling, simulated: the production scheduler decides, in a made-up
// cluster under a virtual clock, and each row says what a paper measured and what came out. One
// file of simulate/ is one paper.
//
// With `--against-modes FOLDER` the real runs that `bench modes --runs 3 --out FOLDER` has left are
// predicted instead, from their run of `sync` alone (bench/run/simulated_modes.h). The bound is 10
// % on seconds and on mean staleness, of medians over the seeds.
//
// Checked: each simulated run publishes all its steps whole, and neither halts nor stands still.
// The exit status is 1 where a gated row misses its bound.
#include <algorithm>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "bench/report/program.h"
#include "bench/run/simulated_modes.h"
#include "bench/scheduler/simulate/experiment.h"
#include "core/base/error.h"

namespace tailrace {
namespace {

using namespace simulate;

std::string bound_of(const Cell& cell) {
  switch (cell.bound) {
    case Bound::kExact:
      return "exact";
    case Bound::kTenPercent:
      return "10 %";
    case Bound::kTwentyPercent:
      return "20 %";
    case Bound::kOrder:
      return "order";
  }
  return "";
}

std::string verdict_of(const Cell& cell) {
  if (cell.use == Use::kFitted) return "fitted";
  if (cell.use == Use::kShown) return "shown";
  if (cell.use == Use::kUndetermined) return "undetermined";
  return cell.within() ? "within" : "MISS";
}

// With --json: as every bench, and what was published behind it.
void add(Report& report, const Experiment& experiment, const Cell& cell) {
  report.add({.name = experiment.name,
              .metric = fmt::format("row {}: {}", cell.row, cell.what),
              .unit = cell.unit,
              .value = spread({cell.simulated}),
              .limit = {},
              .facts = {{"row", cell.row},
                        {"published", cell.published},
                        {"bound", bound_of(cell)},
                        {"verdict", verdict_of(cell)}}});
}

void print(const Cell& cell) {
  fmt::print("  {:>4}  {:<52} {:>9.4g} {:>9.4g} {:<6} {:>7}  {:<6} {}\n", cell.row, cell.what,
             cell.published, cell.simulated, cell.unit,
             cell.published != 0
                 ? fmt::format("{:+.1f} %", 100 * (cell.simulated / cell.published - 1))
                 : "",
             bound_of(cell), verdict_of(cell));
  std::fflush(stdout);
}

struct Count {
  int64_t gated = 0, within = 0;
};

// Whether all gated rows are within their bound.
bool run(const std::string& only, bool json, const Program& program) {
  std::vector<Experiment> chosen;
  std::string names;
  for (const Experiment& experiment : experiments()) {
    if (only.empty() || experiment.name == only) chosen.push_back(experiment);
    names += (names.empty() ? "" : ", ") + experiment.name;
  }
  if (chosen.empty()) throw UserError("--only {} is no experiment; there are {}", only, names);
  std::optional<Report> report;
  if (json) report = program.report({});
  Count numbers, orders;
  for (const Experiment& experiment : chosen) {
    if (!json) {
      fmt::print("{} ({})\n  {:>4}  {:<52} {:>9} {:>9} {:<6} {:>7}  {:<6} {}\n", experiment.name,
                 experiment.paper, "row", "", "published", "simulated", "", "off", "bound", "");
    }
    const Stopwatch watch;
    for (const Cell& cell : experiment.run()) {
      if (cell.use == Use::kGated) {
        Count& count = cell.bound == Bound::kOrder ? orders : numbers;
        ++count.gated;
        count.within += cell.within() ? 1 : 0;
      }
      json ? add(*report, experiment, cell) : print(cell);
    }
    if (!json) fmt::print("        {:.1f} s\n\n", watch.seconds());
  }
  if (!json) {
    if (only.empty()) {
      fmt::print("not simulated or not determined, and what is missing\n");
      for (const Missing& row : missing())
        fmt::print("  {:<17} {:<32} {}\n", row.rows, row.what, row.mechanism);
      fmt::print("\n");
    }
    fmt::print("{} of {} rows of order alone on the published side of 1\n", orders.within,
               orders.gated);
    fmt::print("{} of {} gated rows within their bound\n", numbers.within, numbers.gated);
  }
  return numbers.within == numbers.gated && orders.within == orders.gated;
}

bool run_against_modes(const std::string& folder, const Program& program) {
  constexpr double kBound = 0.1;
  constexpr int64_t kSeeds = 3;
  Report report = program.report({{"bound", kBound}});
  const ModesVerdict verdict = compare_modes(folder, kBound, kSeeds, report);
  if (!program.json()) {
    for (const std::string& miss : verdict.misses) fmt::print("MISS  {}\n", miss);
    fmt::print("{} of {} modes within {:.0f} %\n", verdict.within, verdict.judged, 100 * kBound);
  }
  return verdict.within == verdict.judged;
}

}  // namespace
}  // namespace tailrace

int main(int argc, char** argv) {
  using namespace tailrace;
  std::string only, against_modes;
  Program program("simulate", TAILRACE_MEASURES, "simulate --only rollpacker");
  program.fix_threads(1);
  program.flags().option("--only", only, {.help = "one experiment, by its name"});
  program.flags().option("--against-modes", against_modes,
                         {.help = "predict the runs that `bench modes --out` left in this folder"});
  bool good = true;
  const int status = program.run(argc, argv, [&] {
    good = against_modes.empty() ? run(only, program.json(), program)
                                 : run_against_modes(against_modes, program);
  });
  return status == 0 && !good ? 1 : status;
}
